"""Safe files: digests, durable writes, locks, JSON read strictly, and pages of HTML that load nothing."""

import base64
import ctypes
import errno
import glob
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from nmt.errors import NmtError, RunError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

# What a system answers that cannot make a folder durable, or let two folders change places.
_CANNOT = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF}


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file, read as a stream."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def refuse_links_out(folder: Path) -> None:
    """Raise NmtError for a file of a run or prepared folder that is a link out of it: whoever made the folder could
    have this user's files read and shown. Called before anything in the folder is read; the folder itself may be
    reached by a link.
    """
    real = os.path.realpath(folder)
    for parent, folders, names in os.walk(real):
        for name in (*folders, *names):
            path = os.path.join(parent, name)
            if os.path.islink(path) and not Path(target := os.path.realpath(path)).is_relative_to(real):
                shown = folder / os.path.relpath(path, real)
                raise NmtError(
                    f"{shown}: is a link to {target}, outside of the folder: it is not read. Put a copy of the file in "
                    "its place."
                )


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error of the system name this file, where it names none: that of a write to a full disk does not."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


def sync_file(path: Path) -> None:
    """Make what is written in a file durable."""
    with path.open("rb+") as file, naming(path):
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the system can: Windows cannot open one, some file systems refuse."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with naming(folder):
            os.fsync(handle)
    except OSError as error:
        if error.errno not in _CANNOT:  # a disk that fails is no peculiarity of the system
            raise
    finally:
        os.close(handle)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which at the end takes the place of the one there: whole and on the disk, or not at all."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with naming(path), temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def remove_leftovers(path: Path) -> None:
    """Delete what killed processes left of `replacing(path)`. Only for who knows that nobody else writes it now."""
    for left in path.absolute().parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}.tmp"):
        left.unlink(missing_ok=True)


def lock_file(handle: int) -> None:
    """Lock an open file or raise OSError. The system frees the lock when the file is closed, or the process ends."""
    if sys.platform == "win32":
        os.lseek(handle, 1 << 30, os.SEEK_SET)  # far from the text, which others want to read
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def write_durably(path: Path, content: bytes) -> None:
    """Write a file that is there whole or not at all, in place of the one there, and on the disk on return."""
    with replacing(path) as file:
        file.write(content)


def exchange(one: Path, other: Path) -> bool:
    """Let two folders change places in one step, so that no moment lacks either. False where the system cannot."""
    if sys.platform == "linux":
        at_here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of renameat2(2)
        name, arguments = "renameat2", (at_here, os.fsencode(one), at_here, os.fsencode(other), swap)
    elif sys.platform == "darwin":
        name, arguments = "renamex_np", (os.fsencode(one), os.fsencode(other), 2)  # RENAME_SWAP
    else:
        return False
    call = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if call is None:
        return False
    if call(*arguments) == 0:
        return True
    if (number := ctypes.get_errno()) in _CANNOT:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


def put_in_place(new: Path, folder: Path) -> None:
    """Give a complete folder its name. What had the name before is there until that moment, and deleted after it."""
    old = folder.with_name(f".{folder.name}.old.tmp")
    if not folder.exists():
        os.replace(new, folder)
    else:
        shutil.rmtree(old, ignore_errors=True)
        if exchange(new, folder):
            os.replace(new, old)
        else:
            os.replace(folder, old)
            try:  # a kill here leaves the one before under the other name
                os.replace(new, folder)
            except OSError:
                os.replace(old, folder)
                raise
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def shipped(name: str) -> Path:
    """The path of a page or recipe that comes with the package, as docs/data.md: in the current folder, in the clone,
    or where pip has put it."""
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    installed = [Path(sysconfig.get_path("data", scheme), "share", "nmt") for scheme in schemes]
    places = (Path(), Path(__file__).resolve().parents[1], *installed)
    return next((found for place in places if (found := place / name).exists()), Path(name))


def with_shipped(text: str) -> str:
    """A text of ours with the paths of the pages that it names.

    What a user has named stays as it is: mostly it begins the text or is followed by a colon.
    """
    pages = r"(?<=[( ])(?:docs/[\w-]+\.md|recipes/README\.md)(?=[).,;\s]|$)"
    return re.sub(pages, lambda found: str(shipped(found[0])), text)


def filled_page(inside: Path, parts: Mapping[str, str]) -> str:
    """An HTML page that loads nothing: `page.html` around what is inside, with `{{name}}` replaced by parts, and by the
    style and the script beside that, which alone its policy lets in. A script may use what `page.js` defines."""
    frame, script = Path(__file__).with_name("page.html"), inside.with_suffix(".js")
    texts = {"style": inside.with_suffix(".css").read_text(encoding="utf-8")}
    if script.exists():
        texts["script"] = "".join(path.read_text(encoding="utf-8") for path in (frame.with_suffix(".js"), script))
    policy = "default-src 'none'; base-uri 'none'; form-action 'none'"
    for name, text in texts.items():
        digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
        policy += f"; {name}-src 'sha256-{digest}'"
    every = {"generator": "nmt", **parts, **texts, "policy": policy}
    page = frame.read_text(encoding="utf-8").replace("{{body}}\n", inside.read_text(encoding="utf-8"))
    # In one pass: a text may say {{style}}.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: every[found[1]], page)


def json_for_html(value: Any) -> str:
    """JSON without a character that HTML or a script could take for its own: all but ASCII is escaped, and < > &."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def parse_json(text: bytes) -> Any:
    """The value of a JSON text of ours. ValueError for what Python lets pass: NaN, 1e999, a key that occurs twice."""
    try:
        return json.loads(
            text.decode("utf-8"), object_pairs_hook=_without_twins, parse_constant=_finite, parse_float=_finite
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is no finite number")
    return value


# Which folders are run folders.


RECIPE = "recipe.yaml"
SEEDS = "seeds.json"  # the summary of runs that differ by their seed
CARD = "README.md"  # the model card in a run and in an export


def is_run(folder: Path) -> bool:
    """Return whether a run was started in this folder."""
    return (folder / RECIPE).is_file()


def runs_of(folder: Path) -> list[Path]:
    """The run folders that a name stands for: itself, or where it is none, those of `nmt-train --seeds` in it."""
    if is_run(folder) or not (folder / SEEDS).is_file():
        return [folder]
    try:
        names = parse_json((folder / SEEDS).read_bytes())["runs"]
        return [folder / name for name in names if re.fullmatch(r"seed-[0-9]+", name)]
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{folder / SEEDS} is damaged ({error}): the same nmt-train --seeds writes it again.") from None


def check_is_run(folder: Path) -> None:
    """Raise RunError where no run was started, NmtError for a file of it that is a link out of the folder."""
    if is_run(folder):
        refuse_links_out(folder)
        return
    if folder.is_file() and is_run(folder.parent):
        raise RunError(f"{folder} is a file: name the run folder that it is in, {folder.parent}")
    raise RunError(
        f"{folder} is not a run folder: there is no {RECIPE} in it. Name the folder that nmt-train wrote, runs/NAME."
    )
