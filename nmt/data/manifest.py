"""The manifest of a prepared data folder: what went in, how, and what must lie beside it, to the byte.

It is written last. A folder without it, or with other bytes than it says, is not used.
"""

import contextlib
import errno
import json
import os
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from nmt.data.lines import write_lines
from nmt.data.placeholders import alike, tags_of_splits
from nmt.errors import DataError, MachineError
from nmt.files import exchange, lock_file, parse_json, refuse_links_out, sha256_of, sync_file, sync_folder
from nmt.languages import language_of
from nmt.recipe.data_options import DataConfig, FilterConfig
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
_KEYS = {
    "made_by",
    "format",
    "inputs",
    "settings",
    "n_pair",
    "n_vocab",
    "ids",
    "subwords_sha256",
    "tokenizers",
    "files",
}
# Without it, as in folders made before there was one, all training pairs are of one corpus.
_CORPORA = "corpora"
# The version of nmt, and of a clone the commit; for people, and in no comparison. Not in folders made before it was.
_VERSION = "nmt"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[a-z0-9]+)?")
_LARGEST = 1 << 20


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """The options that decide what is in the folder, and no others: two equal answers mean equal data."""
    data = recipe.data.model_dump(
        mode="json", exclude={"train", "temperature", "valid", "test", "out", "alarms", "workers"}
    )
    data["tags"] = tags_of_splits(recipe.data)
    for n in range(len(recipe.data.train)):
        data |= {f"train.{n}.{name}": value for name, value in _own_settings(recipe.data, n).items()}
    return {"data": data, "subwords": recipe.subwords.model_dump(mode="json")}


def _own_settings(data: DataConfig, n: int) -> dict[str, Any]:
    """Return what decides about the pairs of a training corpus otherwise than about those of all."""
    own, filters = data.train[n], data.filters_of(n).model_dump(mode="json")
    found = {name: value for name, value in filters.items() if value != getattr(data, name)}
    if own.src_lang not in (None, data.src_lang):
        found["src_lang"] = own.src_lang
    return found | ({"drop_flagged": True} if own.drop_flagged else {})


def changed_settings(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Return where two answers of `settings_of` differ, as `data.max_len: 256 there, 100 here`."""
    changed = differences(_settings_known(there, here), here)
    return [f"{name}: {a!r} there, {b!r} here" for name, (a, b) in changed.items()]


def _settings_known(there: dict[str, Any], here: dict[str, Any]) -> dict[str, Any]:
    """The settings of a folder with those options that were not known yet when it was made.

    Such an option has its default, which does what was done then; but a filter that was not known was off. One that is
    off here is no change for that reason; and one that has its default is none either, though on: nobody asked for it,
    and the few pairs that it drops are no reason to refuse data that a run was trained on. `later_filters` names those.
    """
    plain = settings_of(Recipe(name="plain"))
    known = {**there, **{section: {**plain[section], **there.get(section, {})} for section in ("data", "subwords")}}
    known["data"] = _in_one_form(known["data"])
    pass_over_gone(known)
    for name in FilterConfig.model_fields.keys() - there.get("data", {}).keys():
        off = type(here["data"][name])(0)
        known["data"][name] = here["data"][name] if here["data"][name] in (plain["data"][name], 0) else off
    return known


def _in_one_form(data: dict[str, Any]) -> dict[str, Any]:
    """The settings of the data with each language by the code that recipes have for it."""
    found = {
        name: language_of(value).code if name.endswith(("src_lang", "trg_lang")) and isinstance(value, str) else value
        for name, value in data.items()
    }
    tags = {split: [list(map(alike, each)) for each in corpora] for split, corpora in (data["tags"] or {}).items()}
    return found | {"tags": tags}


def later_filters(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Filters that are on here and were not known yet when the folder was made, by their dotted names."""
    return [
        f"data.{name}" for name in FilterConfig.model_fields if name not in there.get("data", {}) and here["data"][name]
    ]


def write_manifest(folder: Path, content: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Write the manifest over the files `names` of a folder that is otherwise complete."""
    files = {name: {"size": (folder / name).stat().st_size, "sha256": sha256_of(folder / name)} for name in names}
    manifest = {"made_by": _MADE_BY, "format": FORMAT, **content, "files": files}
    assert set(manifest) - {_VERSION} == _KEYS | {_CORPORA}, set(manifest) ^ _KEYS
    write_lines(folder / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False).split("\n"))
    return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a prepared folder; a DataError where there is none of ours."""
    path = folder / MANIFEST
    again = prepare_again(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder of prepared data. Name one that nmt-preprocess wrote.")
    refuse_links_out(folder)
    if not path.is_file() or path.is_symlink():
        raise DataError(f"{folder}: not a folder of prepared data, or an incomplete one: no {MANIFEST}. {again}")
    if path.stat().st_size > _LARGEST:
        raise DataError(f"{path}: {path.stat().st_size:,} bytes are too many for a manifest. {again}")
    try:
        manifest = parse_json(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path}: damaged ({error}). {again}") from None
    if not isinstance(manifest, dict) or manifest.get("made_by") != _MADE_BY:
        raise DataError(f"{path}: not a manifest of {_MADE_BY}. {again}")
    if manifest.get("format") != FORMAT:
        raise DataError(f"{path}: format {manifest.get('format')!r}; this version of nmt reads {FORMAT}. {again}")
    if _CORPORA not in manifest and isinstance(manifest.get("n_pair"), dict):
        manifest[_CORPORA] = [{"name": "", "n_pair": manifest["n_pair"].get("train")}]
    if (
        set(manifest) - {_VERSION} != _KEYS | {_CORPORA}
        or not _are_files(manifest["files"])
        or not _are_corpora(manifest[_CORPORA], manifest["n_pair"])
    ):
        raise DataError(f"{path}: damaged: entries are missing, unknown or of the wrong kind. {again}")
    return manifest


def prepare_again(folder: Path) -> str:
    """Return how a folder that cannot be used is made again, for the end of a message."""
    recipe = folder / RECIPE
    command = ["nmt-preprocess", str(recipe), "--overwrite"] if recipe.is_file() else ["nmt-preprocess", "RECIPE"]
    return f"Prepare the data again: {shlex.join(command)}"


def verify_files(folder: Path, manifest: dict[str, Any]) -> None:
    """Compare every file with the manifest: its size first, so that nothing shorter is ever mapped into memory."""
    for name, expected in manifest["files"].items():
        path = folder / name
        if path.is_symlink() or not path.is_file():
            _refuse(path, "missing, or not a plain file")
        size = path.stat().st_size
        if size != expected["size"]:
            _refuse(path, f"{size:,} bytes, but the manifest says {expected['size']:,}")
        if size <= HASHED_BYTES and sha256_of(path) != expected["sha256"]:
            _refuse(path, "its bytes are not those that were written (SHA-256 differs)")


def _refuse(path: Path, what: str) -> None:
    raise DataError(f"{path}: {what}. {prepare_again(path.parent)}")


def _are_corpora(corpora: Any, n_pair: Any) -> bool:
    """Return whether they are those that the training pairs are made of."""
    return (
        isinstance(corpora, list)
        and all(isinstance(each, dict) and type(each.get("n_pair")) is int and each["n_pair"] >= 0 for each in corpora)
        and isinstance(n_pair, dict)
        and sum(each["n_pair"] for each in corpora) == n_pair.get("train")
    )


def _are_files(files: Any) -> bool:
    return isinstance(files, dict) and all(
        _PLAIN_NAME.fullmatch(name) is not None
        and isinstance(entry, dict)
        and type(entry.get("size")) is int
        and isinstance(entry.get("sha256"), str)
        for name, entry in files.items()
    )


# A folder that appears whole or not at all.
# What a disk answers that fails or is full.
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS}


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
    foreign = {path.name for path in folder.iterdir()} - _own_names(manifest)
    if foreign:
        raise DataError(
            f"{folder}: holds files that nmt-preprocess did not write: {', '.join(sorted(foreign)[:5])}. Move them, "
            "or choose another folder with data.out."
        )
    return manifest


@contextlib.contextmanager
def beside(folder: Path) -> Iterator[Path]:
    """Give an empty folder for what is needed while another one is made beside it; it is removed in the end."""
    folder = folder.absolute()
    temporary = folder.with_name(f".{folder.name}.preparing-{secrets.token_hex(4)}")
    with _claimed_beside(folder, _lock_of(temporary)):
        try:
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
    DataError at once if another process is building the same folder.
    """
    folder = folder.absolute()
    claim = folder.with_name(f".{folder.name}.preparing.lock")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_claimed_beside(folder, claim))
        except _Held:
            raise DataError(
                f"{folder}: another nmt-preprocess is making it{_process_in(claim)}. Wait for it, or choose another "
                "folder with data.out."
            ) from None
        with beside(folder) as temporary:
            yield temporary
            for path in sorted(temporary.iterdir()):
                sync_file(path)
            sync_folder(temporary)
            _put_in_place(temporary, folder, replace)
    remove_abandoned(folder)


def _put_in_place(temporary: Path, folder: Path, replace: dict[str, Any] | None) -> None:
    if replace is None:
        if folder.exists():
            try:
                folder.rmdir()  # empty, as was checked
            except OSError as error:
                raise DataError(
                    f"{folder}: cannot be put in place ({error.strerror}): something came there meanwhile. It is not "
                    "touched; look at it, and prepare again, with --overwrite if it is prepared data to be replaced."
                ) from None
        os.rename(temporary, folder)
    else:
        old = folder.with_name(f".{folder.name}.replaced-{secrets.token_hex(4)}")
        if exchange(temporary, folder):  # no moment lacks both
            os.rename(temporary, old)
        else:
            os.rename(folder, old)
            try:
                os.rename(temporary, folder)
            except OSError:
                os.rename(old, folder)
                raise
        sync_folder(folder.parent)
        _remove_own(old, replace)
    sync_folder(folder.parent)


def _own_names(manifest: dict[str, Any]) -> set[str]:
    return {*manifest["files"], MANIFEST, RECIPE, SCHEMA}


def _remove_own(folder: Path, manifest: dict[str, Any]) -> None:
    """Delete what we wrote, and the folder if nothing else is in it. The manifest goes last: it tells what is ours."""
    for name in sorted(_own_names(manifest) - {MANIFEST}):
        (folder / name).unlink(missing_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # a file that came in meanwhile is not ours to delete
        folder.rmdir()


def remove_abandoned(folder: Path) -> None:
    """Remove what killed processes left beside the folder, but not what a living one is building."""
    folder = folder.absolute()
    left = re.compile(rf"({re.escape(f'.{folder.name}.')}(preparing|replaced)(-[0-9a-f]{{8}})?)(\.lock)?")
    found = {match[1]: match[2] for path in folder.parent.iterdir() if (match := left.fullmatch(path.name))}
    for name, what in found.items():
        path = folder.with_name(name)
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            continue
        with contextlib.suppress(OSError, _Held):
            if what == "preparing":
                with _claimed(_lock_of(path), surely=True):
                    shutil.rmtree(path, ignore_errors=True)
            elif any(path.iterdir()):
                with contextlib.suppress(DataError):
                    _remove_own(path, read_manifest(path))
            else:
                path.rmdir()


class _Held(Exception):
    """Another process has the lock."""


@contextlib.contextmanager
def _claimed_beside(folder: Path, lock: Path) -> Iterator[None]:
    """Hold a lock beside a folder that is to be made. DataError where nothing can be written there."""
    with contextlib.ExitStack() as stack:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_claimed(lock))
        except OSError as error:
            if error.errno in _DISK - {errno.EROFS}:
                raise
            raise DataError(
                f"{folder}: cannot be made: nothing can be written to {folder.parent} ({error.strerror}). Choose "
                "another folder with --out."
            ) from None
        yield


@contextlib.contextmanager
def _claimed(path: Path, *, surely: bool = False) -> Iterator[None]:
    """Hold the lock of a file, which has our process number and is deleted in the end. _Held if another has it.

    The system frees it when a process ends in whatever way. On a disk that has no locks, as some network file systems,
    everybody gets it, and with `surely` nobody.
    """
    file = _locked(path, surely=surely)
    try:
        file.truncate(0)
        file.write(f"{os.getpid()}\n".encode("ascii"))
        file.flush()
        yield
    finally:
        if sys.platform == "win32":
            file.close()  # an open file cannot be deleted there
        with contextlib.suppress(OSError):
            path.unlink()
        with contextlib.suppress(OSError):
            file.close()


def _locked(path: Path, *, surely: bool) -> BinaryIO:
    while True:
        file = path.open("a+b")
        try:
            lock_file(file.fileno())
        except (BlockingIOError, PermissionError):
            file.close()
            raise _Held from None
        except OSError:
            if not surely:
                return file
            file.close()
            raise _Held from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # who had it before has deleted it meanwhile


def _lock_of(temporary: Path) -> Path:
    return temporary.with_name(f"{temporary.name}.lock")


def _process_in(claim: Path) -> str:
    """Return the process that holds the lock, in words."""
    with contextlib.suppress(OSError, ValueError):
        return f" (process {int(claim.read_bytes())})"
    return ""
