"""The manifest of a prepared data folder: what went in, how, and what must lie beside it, to the byte.

It is written last. A folder without it, or with other bytes than it says, is not used.
"""

import contextlib
import errno
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nmt.data.lines import write_lines
from nmt.data.placeholders import canonical_tag, held_out_tags
from nmt.errors import DataError, MachineError
from nmt.files import lock_file, parse_json, put_in_place, refuse_links_out, sha256_of, sync_file, sync_folder
from nmt.languages import language_of
from nmt.recipe.complaints import WITHOUT_EFFECT, without_numbers
from nmt.recipe.data_options import FilterConfig
from nmt.recipe.draft import SCHEMA
from nmt.recipe.options import Recipe
from nmt.recipe.places import MANIFEST
from nmt.recipe.reader import differences, pass_over_gone

FORMAT = 1
RECIPE = "recipe.yaml"
REPORT = "report.json"
PAGE = "report.html"
SUBWORDS = "subwords.json"
# Hashing is bound by the disk; beyond this a file's size, structure and range of ids must do.
HASHED_BYTES = 1 << 30

_MADE_BY = "nmt-preprocess"
_KEYS = {"made_by", "format", "inputs", "settings", "n_pair", "corpora", "n_vocab", "ids", "subwords_sha256"}
_KEYS |= {"tokenizers", "files"}
# The version of nmt, and of a clone the commit; for people, and in no comparison. Not in folders made before it was.
_VERSION = "nmt"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[a-z0-9]+)?")
# What a disk answers that fails or is full.
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS}


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """The options that decide what is in the folder, and no others: two equal answers mean equal data."""
    data = recipe.data.model_dump(
        mode="json", exclude={"train", "temperature", "valid", "test", "out", "alarms", "workers"}
    )
    training = [list(recipe.data.tags_of(corpus)) for corpus in recipe.data.train]
    held_out = {split: [list(tags)] for split, tags in held_out_tags(recipe.data).items()}
    data["tags"] = {"train": training, **held_out} if any(training) else {}
    for n, own in enumerate(recipe.data.train):
        filters = recipe.data.filters_of(n).model_dump(mode="json")
        found = {name: value for name, value in filters.items() if value != getattr(recipe.data, name)}
        found |= {name: value for name in ("min_score", "best_share") if (value := getattr(own, name)) is not None}
        if own.src_lang not in (None, recipe.data.src_lang):
            found["src_lang"] = own.src_lang
        if own.drop_flagged or own.translated_by:
            found["drop_flagged"] = True
        data |= {f"train.{n}.{name}": value for name, value in found.items()}
    return {"data": data, "subwords": recipe.subwords.model_dump(mode="json")}


def changed_settings(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Return where two answers of `settings_of` differ, as `data.max_len: 256 there, 100 here`."""
    return [f"{name}: {a!r} there, {b!r} here" for name, (a, b) in differences(_known(there, here), here).items()]


def _known(there: dict[str, Any], here: dict[str, Any]) -> dict[str, Any]:
    """The settings of a folder with those options that were not known yet when it was made, and with languages by the
    codes that recipes have now.

    Such an option has its default, which does what was done then; but a filter that was not known was off. One that is
    off here is no change for that reason; and one that has its default is none either, though on: nobody asked for it,
    and the few pairs that it drops are no reason to refuse data that a run was trained on.
    """
    plain = settings_of(Recipe(name="plain"))
    known = {**there, **{section: {**plain[section], **there.get(section, {})} for section in ("data", "subwords")}}
    data = known["data"]
    for name, value in data.items():
        if name.endswith(("src_lang", "trg_lang")) and isinstance(value, str):
            data[name] = language_of(value).code
    data["tags"] = {
        split: [list(map(canonical_tag, each)) for each in tags] for split, tags in (data["tags"] or {}).items()
    }
    pass_over_gone(known, is_stored=True)
    for name in [name for name in data if without_numbers(f"data.{name}") in WITHOUT_EFFECT]:  # of one corpus
        del data[name]
    for name in FilterConfig.model_fields.keys() - there.get("data", {}).keys():
        value = here["data"][name]
        data[name] = value if value in (plain["data"][name], 0) else type(value)(0)
    return known


def write_manifest(folder: Path, content: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Write the manifest over the files `names` of a folder that is otherwise complete."""
    files = {name: {"size": (folder / name).stat().st_size, "sha256": sha256_of(folder / name)} for name in names}
    manifest = {"made_by": _MADE_BY, "format": FORMAT, **content, "files": files}
    assert set(manifest) - {_VERSION} == _KEYS, set(manifest) ^ _KEYS
    write_lines(folder / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False).split("\n"))
    return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a prepared folder; a DataError where there is none of ours."""
    path = folder / MANIFEST
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder of prepared data. Name one that nmt-preprocess wrote.")
    refuse_links_out(folder)
    if not path.is_file():
        raise _unusable(folder, f"not a folder of prepared data, or an incomplete one: no {MANIFEST}")
    try:
        manifest = parse_json(path.read_bytes())
    except ValueError as error:
        raise _unusable(path, f"damaged ({error})") from None
    if not isinstance(manifest, dict) or manifest.get("made_by") != _MADE_BY:
        raise _unusable(path, f"not a manifest of {_MADE_BY}")
    if manifest.get("format") != FORMAT:
        raise _unusable(path, f"format {manifest.get('format')!r}; this version of nmt reads {FORMAT}")
    try:
        # In folders made before there was one, all training pairs are of one corpus.
        manifest.setdefault("corpora", [{"name": "", "n_pair": manifest["n_pair"]["train"]}])
        is_whole = (
            set(manifest) - {_VERSION} == _KEYS
            and all(type(each["n_pair"]) is int and each["n_pair"] >= 0 for each in manifest["corpora"])
            and sum(each["n_pair"] for each in manifest["corpora"]) == manifest["n_pair"]["train"]
            and all(
                _PLAIN_NAME.fullmatch(name) and type(each["size"]) is int and isinstance(each["sha256"], str)
                for name, each in manifest["files"].items()
            )
        )
    except (AttributeError, KeyError, TypeError):
        is_whole = False
    if not is_whole:
        raise _unusable(path, "damaged: entries are missing, unknown or of the wrong kind")
    return manifest


def prepare_again(folder: Path) -> str:
    """Return how a folder that cannot be used is made again, for the end of a message."""
    recipe = folder / RECIPE
    command = ["nmt-preprocess", str(recipe), "--overwrite"] if recipe.is_file() else ["nmt-preprocess", "RECIPE"]
    return f"Prepare the data again: {shlex.join(command)}"


def _unusable(path: Path, why: str) -> DataError:
    return DataError(f"{path}: {why}. {prepare_again(path if path.is_dir() else path.parent)}")


def verify_files(folder: Path, manifest: dict[str, Any]) -> None:
    """Compare every file with the manifest: its size first, so that nothing shorter is ever mapped into memory."""
    for name, expected in manifest["files"].items():
        path = folder / name
        if path.is_symlink() or not path.is_file():
            raise _unusable(path, "missing, or not a plain file")
        size = path.stat().st_size
        if size != expected["size"]:
            raise _unusable(path, f"{size:,} bytes, but the manifest says {expected['size']:,}")
        if size <= HASHED_BYTES and sha256_of(path) != expected["sha256"]:
            raise _unusable(path, "its bytes are not those that were written (SHA-256 differs)")


# A folder that appears whole or not at all.


def refuse_foreign_files(folder: Path) -> dict[str, Any] | None:
    """The manifest of the prepared data in the folder, None if there is nothing; anything else is refused.

    We delete only what we wrote, so a folder with other files in it can be neither filled nor replaced.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise DataError(f"{folder}: is a file or a link; expected a folder. Choose another one with data.out.")
    if not folder.exists() or not any(folder.iterdir()):
        return None
    if not (folder / MANIFEST).exists():
        raise DataError(
            f"{folder}: holds files, and no {MANIFEST} of prepared data. It is not touched: empty it, or choose "
            "another folder with data.out."
        )
    try:
        manifest = read_manifest(folder)
    except DataError as error:
        raise DataError(f"{error} What cannot be recognised is not deleted: remove {folder} yourself first.") from None
    foreign = {path.name for path in folder.iterdir()} - {*manifest["files"], MANIFEST, RECIPE, SCHEMA}
    if foreign:
        raise DataError(
            f"{folder}: holds files that nmt-preprocess did not write: {', '.join(sorted(foreign)[:5])}. Move them, "
            "or choose another folder with data.out."
        )
    return manifest


@contextlib.contextmanager
def beside(folder: Path) -> Iterator[Path]:
    """Give an empty folder beside another one, `.NAME.preparing`, and remove it in the end.

    What a killed process left there is removed first. DataError if a living one is at work there, or if nothing can be
    written there.
    """
    folder = folder.absolute()
    temporary = folder.with_name(f".{folder.name}.preparing")
    lock = temporary.with_name(f"{temporary.name}.lock")
    with contextlib.ExitStack() as stack:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(lock.open("a+b", buffering=0))
            try:
                lock_file(file.fileno())
                is_held = not os.path.samestat(os.fstat(file.fileno()), lock.stat())
            except (BlockingIOError, PermissionError):
                is_held = True
            except OSError:  # some network disks have no locks
                is_held = temporary.exists()
            if is_held:
                file.seek(0)
                raise DataError(
                    f"{folder}: another nmt-preprocess is making it (process {file.read().decode().strip()}). Wait for "
                    f"it, or choose another folder with data.out. If it has ended, remove {temporary}."
                )
            stack.callback(lock.unlink, missing_ok=True)
            file.truncate(0)
            file.write(f"{os.getpid()}\n".encode())
        except OSError as error:
            if error.errno in _DISK - {errno.EROFS}:
                raise
            raise DataError(
                f"{folder}: cannot be made: nothing can be written to {folder.parent} ({error.strerror}). Choose "
                "another folder with --data.out."
            ) from None
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            yield temporary
        except OSError as error:
            is_ours = error.filename is None or Path(str(error.filename)).is_relative_to(temporary)
            if error.errno not in _DISK or not is_ours:
                raise
            raise MachineError(
                f"{folder}: cannot be written ({error.strerror}). What was there is untouched. Look at the disk, make "
                "room on it, and give the command again."
            ) from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def building(folder: Path, *, replace: dict[str, Any] | None) -> Iterator[Path]:
    """Give an empty folder to fill; put it in place when the block ends well, remove it when not.

    replace: the manifest of the prepared data that stands there now and goes away at the end.
    """
    folder = folder.absolute()
    with beside(folder) as temporary:
        yield temporary
        for path in sorted(temporary.iterdir()):
            sync_file(path)
        sync_folder(temporary)
        if refuse_foreign_files(folder) != replace:
            raise DataError(f"{folder}: was changed by another process meanwhile. It is not touched; prepare again.")
        put_in_place(temporary, folder)
