"""The manifest of a prepared data folder: its inputs, settings, and the sizes and hashes of its files.

It is written last. A folder without a manifest, or whose files do not match it, is not used.
"""

import contextlib
import json
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nmt.data.lines import write_lines
from nmt.data.placeholders import held_out_tags, tag_language
from nmt.errors import DataError, is_machine_error
from nmt.files import RECIPE, lock_file, naming, parse_json, refuse_links_out, sha256_of
from nmt.recipe.draft import SCHEMA
from nmt.recipe.options import Recipe
from nmt.recipe.places import MANIFEST
from nmt.recipe.reader import differences

FORMAT = 1
# Hashing is bound by the disk: of larger files only the size, the structure and the range of ids are checked.
HASHED_BYTES = 1 << 30

_MADE_BY = "nmt-preprocess"
_KEYS = {"made_by", "format", "inputs", "settings", "n_pair", "corpora", "n_vocab", "ids", "subwords_sha256"}
_KEYS |= {"tokenizers", "nmt", "files"}


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """The options that decide the content of the folder, and no others: equal settings mean equal data."""
    data = recipe.data.model_dump(
        mode="json", exclude={"train", "temperature", "valid", "test", "out", "alarms", "workers"}
    )
    training = [list(recipe.data.tags_of(corpus)) for corpus in recipe.data.train]
    held_out = {split: [list(tags)] for split, tags in held_out_tags(recipe.data).items()}
    data["tags"] = {"train": training, **held_out} if any(training) else {}
    for n, corpus in enumerate(recipe.data.train):
        filters = recipe.data.filters_of(n).model_dump(mode="json")
        options = {name: value for name, value in filters.items() if value != getattr(recipe.data, name)}
        options |= {name: value for name in ("min_score", "best_share") if (value := getattr(corpus, name)) is not None}
        if corpus.src_lang not in (None, recipe.data.src_lang):
            options["src_lang"] = corpus.src_lang
        if corpus.trg_lang not in (None, recipe.data.trg_lang) and not any(map(tag_language, training[n])):
            options["trg_lang"] = corpus.trg_lang  # else its tag has the language
        if corpus.drop_flagged or corpus.translated_by:
            options["drop_flagged"] = True
        data |= {f"train.{n}.{name}": value for name, value in options.items()}
    return {"data": data, "subwords": recipe.subwords.model_dump(mode="json")}


def changed_settings(stored: dict[str, Any], current: dict[str, Any]) -> list[str]:
    """Differences of two results of `settings_of`, as `data.max_len: 256 in the folder, 100 in the recipe`.

    An option that the folder of an earlier version lacks counts as its default, which does what that version did.
    """
    defaults = settings_of(Recipe(name="plain"))
    changed = differences({name: {**defaults[name], **stored.get(name, {})} for name in defaults}, current)
    return [f"{name}: {a!r} in the folder, {b!r} in the recipe" for name, (a, b) in changed.items()]


def write_manifest(folder: Path, content: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Write the manifest of a folder that is otherwise complete. names: the files that it lists."""
    files = {name: {"size": (folder / name).stat().st_size, "sha256": sha256_of(folder / name)} for name in names}
    manifest = {"made_by": _MADE_BY, "format": FORMAT, **content, "files": files}
    assert set(manifest) == _KEYS, set(manifest) ^ _KEYS
    write_lines(folder / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False).split("\n"))
    return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a prepared folder. Raises DataError if it is missing, damaged or not one of nmt-preprocess."""
    path = folder / MANIFEST
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder of prepared data. Name one that nmt-preprocess wrote.")
    if not path.is_file():
        raise _unusable(folder, f"not a folder of prepared data, or an incomplete one: no {MANIFEST}")
    refuse_links_out(folder)
    try:
        manifest: dict[str, Any] = parse_json(path.read_bytes())
    except ValueError as error:
        raise _unusable(path, f"damaged ({error})") from None
    try:
        if manifest["made_by"] == _MADE_BY and manifest["format"] != FORMAT:
            raise _unusable(path, f"format {manifest['format']!r}; this version of nmt reads {FORMAT}")
        n_pairs, files = [corpus["n_pair"] for corpus in manifest["corpora"]], manifest["files"].values()
        is_valid = (
            (manifest["made_by"], set(manifest)) == (_MADE_BY, _KEYS)
            and all(type(n) is int and n >= 0 for n in (*n_pairs, *(file["size"] for file in files)))
            and sum(n_pairs) == manifest["n_pair"]["train"]
            and all(isinstance(file["sha256"], str) for file in files)
        )
    except (AttributeError, KeyError, TypeError):
        is_valid = False
    if not is_valid:
        raise _unusable(path, f"damaged, or not a manifest of {_MADE_BY}: entries are missing or of the wrong kind")
    return manifest


def prepare_again(folder: Path) -> str:
    """Return advice on making an unusable folder again, for the end of a message."""
    recipe = folder / RECIPE
    command = ["nmt-preprocess", str(recipe), "--overwrite"] if recipe.is_file() else ["nmt-preprocess", "RECIPE"]
    return f"Prepare the data again: {shlex.join(command)}"


def _unusable(path: Path, reason: str) -> DataError:
    return DataError(f"{path}: {reason}. {prepare_again(path if path.is_dir() else path.parent)}")


def verify_files(folder: Path, manifest: dict[str, Any]) -> None:
    """Compare every file with the manifest. The size comes first, so that no shorter file is mapped into memory."""
    for name, expected in manifest["files"].items():
        path = folder / name
        if path.is_symlink() or not path.is_file():
            raise _unusable(path, "missing, or not a regular file")
        size = path.stat().st_size
        if size != expected["size"] or (size <= HASHED_BYTES and sha256_of(path) != expected["sha256"]):
            raise _unusable(path, "damaged or changed (its size or SHA-256 differs from the manifest)")


# Atomic creation of a folder.
def refuse_foreign_files(folder: Path) -> dict[str, Any] | None:
    """The manifest of the prepared data in the folder, or None if the folder is empty or missing.

    Raises DataError for any other content: only files that nmt-preprocess wrote are ever deleted, so a folder with
    others can be neither filled nor replaced.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise DataError(f"{folder}: is a file or a link; expected a folder. Choose another one with data.out.")
    if not folder.exists() or not any(folder.iterdir()):
        return None
    if not (folder / MANIFEST).exists():
        raise DataError(
            f"{folder}: holds files but no prepared data ({MANIFEST} is missing), so it is left as it is. Empty it, "
            "or choose another folder with data.out."
        )
    try:
        manifest = read_manifest(folder)
    except DataError as error:
        raise DataError(f"{error} Unknown content is not deleted: remove {folder} yourself first.") from None
    foreign = {path.name for path in folder.iterdir()} - {*manifest["files"], MANIFEST, RECIPE, SCHEMA}
    if foreign:
        raise DataError(
            f"{folder}: holds files that nmt-preprocess did not write: {', '.join(sorted(foreign)[:5])}. Move them, "
            "or choose another folder with data.out."
        )
    return manifest


@contextlib.contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """Context manager: an empty folder `.NAME.preparing` next to another one, removed at the end.

    Leftovers of a killed process are removed first. Raises DataError if another process is writing the folder, or if
    its parent is not writable.
    """
    folder = folder.absolute()
    temporary = folder.with_name(f".{folder.name}.preparing")
    lock = temporary.with_name(f"{temporary.name}.lock")
    with contextlib.ExitStack() as stack:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(lock.open("a+b", buffering=0))
            try:
                has_locks = lock_file(file.fileno())
                is_same = os.path.samestat(os.fstat(file.fileno()), lock.stat())
                is_held = not is_same if has_locks else temporary.exists()
            except (BlockingIOError, FileNotFoundError):  # the latter: its holder just removed the file
                is_held = True
            if is_held:
                file.seek(0)
                raise DataError(
                    f"{folder}: another nmt-preprocess is writing it (process {file.read().decode().strip()}). Wait "
                    f"for it, or choose another folder with data.out. If that process has ended, remove {temporary}."
                )
            stack.callback(lock.unlink, missing_ok=True)
            file.truncate(0)
            file.write(f"{os.getpid()}\n".encode())
        except OSError as error:
            if is_machine_error(error):
                raise
            raise DataError(
                f"{folder}: cannot be created: {folder.parent} is not writable ({error.strerror}). Choose another "
                "folder with --data.out."
            ) from None
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        with naming(folder):
            yield temporary
