"""A folder that appears whole or not at all: built under another name beside its place, renamed when complete.

What a killed process leaves is a hidden sibling that no command accepts; the next one that succeeds removes it.
"""

import contextlib
import errno
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from nmt.data.stored.manifest import RECIPE, read_manifest
from nmt.errors import DataError, MachineError
from nmt.files import exchange, lock_file, sync_file, sync_folder
from nmt.recipe.draft import SCHEMA
from nmt.recipe.places import MANIFEST

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
    """Whose lock it is, in words."""
    with contextlib.suppress(OSError, ValueError):
        return f" (process {int(claim.read_bytes())})"
    return ""
