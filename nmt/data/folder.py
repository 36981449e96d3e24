"""A folder that appears whole or not at all: built under another name beside its place, renamed when complete.

What a killed process leaves is a hidden sibling that no command accepts; the next one that succeeds removes it.
"""

import contextlib
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from nmt.data.manifest import MANIFEST, RECIPE, read_manifest
from nmt.errors import DataError
from nmt.files import sync_file, sync_folder

if sys.platform != "win32":
    import fcntl

_LOCK = ".lock"


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
    temporary = _new_sibling(folder.absolute())
    try:
        with open(temporary / _LOCK, "wb") as lock:
            # Nobody else can hold it; some network file systems know no locks, and there nothing is removed by others.
            with contextlib.suppress(OSError):
                _lock(lock)
            yield temporary
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
        (temporary / _LOCK).unlink()
        sync_folder(temporary)
        _put_in_place(temporary, folder, replace)
    _remove_leftovers(folder)


def _new_sibling(folder: Path) -> Path:
    """A hidden folder that `_remove_leftovers` removes if nobody else does."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.preparing-{secrets.token_hex(4)}")
    temporary.mkdir()
    return temporary


def _put_in_place(temporary: Path, folder: Path, replace: dict[str, Any] | None) -> None:
    if replace is None:
        if folder.exists():
            folder.rmdir()  # empty, as was checked; if it no longer is, this fails and nothing is lost
        os.rename(temporary, folder)
    else:
        old = folder.with_name(f".{folder.name}.replaced-{secrets.token_hex(4)}")
        os.rename(folder, old)
        try:
            os.rename(temporary, folder)
        except OSError:
            os.rename(old, folder)
            raise
        sync_folder(folder.parent)
        for name in _own_names(replace):
            (old / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a file that came in meanwhile is not ours to delete
            old.rmdir()
    sync_folder(folder.parent)


def _own_names(manifest: dict[str, Any]) -> set[str]:
    return {*manifest["files"], MANIFEST, RECIPE}


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left beside the folder, but not what a living one is building."""
    for path in folder.parent.glob(f".{folder.name}.preparing-*"):
        if path.is_symlink() or not path.is_dir():
            continue
        try:
            with open(path / _LOCK, "rb+") as lock:
                _lock(lock)
            (path / _LOCK).unlink()  # Windows has no flock, but refuses this while the other process is there
        except FileNotFoundError:
            # Complete but for its renaming, which takes an instant: only an old one was left by a killed process.
            if time.time() - path.stat().st_mtime < 60:
                continue
        except OSError:
            continue
        shutil.rmtree(path, ignore_errors=True)
    for path in folder.parent.glob(f".{folder.name}.replaced-*"):
        with contextlib.suppress(DataError, OSError):
            for name in _own_names(read_manifest(path)):
                (path / name).unlink(missing_ok=True)
            path.rmdir()


def _lock(file: BinaryIO) -> None:
    """Hold the file until it is closed; OSError if another process does."""
    if sys.platform != "win32":
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
