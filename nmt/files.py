"""Safe files: digests, durable writes, locks, strict JSON, and self-contained HTML pages."""

import base64
import errno
import fcntl
import glob
import hashlib
import html
import json
import math
import os
import re
import secrets
import shutil
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from nmt.errors import NmtError, RunError

# Errors of file systems that cannot sync a folder, or lock a file.
_UNSUPPORTED = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF, errno.ENOLCK}


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file, read as a stream."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def refuse_links_out(folder: Path) -> None:
    """Raise NmtError if a run or prepared folder contains a link that leads out of it. Through such a link, a foreign
    folder could read and show files of this user. Call it before reading anything in the folder. The folder itself may
    be a link."""
    real = os.path.realpath(folder)
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = os.path.join(parent, name)
            if os.path.islink(path) and not Path(target := os.path.realpath(path)).is_relative_to(real):
                raise NmtError(
                    f"{path}: is a link to {target}, outside of the folder, so it is not read. Replace it by a copy of "
                    "the file."
                )


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Context manager: add the file name to an OSError without one, such as that of a write to a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk, if its file system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with naming(folder):
            os.fsync(handle)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:  # such as the failure of a disk
            raise
    finally:
        os.close(handle)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Context manager: a file to write, which at the end is synced and atomically replaces the one at this path."""
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
    """Delete files that killed processes left of `replacing(path)`. No other process may be writing this path."""
    for temporary in path.absolute().parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}.tmp"):
        temporary.unlink(missing_ok=True)


def lock_file(handle: int) -> bool:
    """Lock an open file. The system releases the lock when the file is closed or the process ends.

    Returns False on a disk without locks. Raises BlockingIOError if another process holds the lock.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return False
    return True


def write_durably(path: Path, content: bytes) -> None:
    """Write or replace a file atomically. It is on the disk on return."""
    with replacing(path) as file:
        file.write(content)


def put_in_place(new: Path, folder: Path) -> None:
    """Sync a complete folder and rename it to its final name. An existing folder of this name stays until then and is
    deleted afterwards. A kill between the two renames leaves it under a hidden name."""
    for path in filter(Path.is_file, sorted(new.rglob("*"))):
        with path.open("rb+") as file, naming(path):
            os.fsync(file.fileno())
    sync_folder(new)
    old = folder.with_name(f".{folder.name}.old.tmp")
    if is_replaced := folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.replace(folder, old)
    try:
        os.replace(new, folder)
    except BaseException:
        if is_replaced and not folder.exists():
            os.replace(old, folder)
        raise
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def shipped(name: str) -> Path:
    """The path of a page or recipe that is part of the package, such as docs/data.md: in the current folder, in the
    clone, or where pip installed it."""
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    installed = [Path(sysconfig.get_path("data", scheme), "share", "nmt") for scheme in schemes]
    folders = (Path(), Path(__file__).resolve().parents[1], *installed)
    return next((path for folder in folders if (path := folder / name).exists()), Path(name))


def with_shipped(text: str) -> str:
    """Replace the names of our pages in a message by their paths.

    Paths that a user gave stay as they are: usually they start the text or are followed by a colon.
    """
    pages = r"(?<=[( ])(?:docs/[\w-]+\.md|recipes/README\.md)(?=[).,;\s]|$)"
    return re.sub(pages, lambda match: str(shipped(match[0])), text)


def filled_page(inside: Path, parts: Mapping[str, str]) -> str:
    """A self-contained HTML page: `page.html` around the file `inside`, with each `{{name}}` replaced by its part. The
    .css and .js files next to `inside` are embedded after `page.css` and `page.js`, and the page's policy allows no
    others."""
    frame, texts = Path(__file__).with_name("page.html"), dict[str, str]()
    policy = "default-src 'none'; base-uri 'none'; form-action 'none'"
    for name, suffix in (("style", ".css"), ("script", ".js")):
        if inside.with_suffix(suffix).exists():
            texts[name] = "".join(path.with_suffix(suffix).read_text(encoding="utf-8") for path in (frame, inside))
            digest = base64.b64encode(hashlib.sha256(texts[name].encode("utf-8")).digest()).decode("ascii")
            policy += f"; {name}-src 'sha256-{digest}'"
    value_of = {"generator": "nmt", **parts, **texts, "policy": policy}
    page = frame.read_text(encoding="utf-8").replace("{{body}}\n", inside.read_text(encoding="utf-8"))
    return filled(page, value_of)


def filled(text: str, parts: Mapping[str, str]) -> str:
    """Replace each `{{name}}` in a text by its part, in one pass: a part may itself contain {{name}}."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], text)


def script_page(inside: Path, title: str, value: Any) -> str:
    """A page of `filled_page` with a value for its script, as JSON without < > & and non-ASCII characters."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    data = re.sub("[<>&]", lambda match: f"\\u{ord(match[0]):04x}", text)
    return filled_page(inside, {"title": html.escape(title), "data": data})


def parse_json(text: bytes) -> Any:
    """Parse JSON strictly. Raises ValueError also for values that Python accepts: NaN, 1e999, duplicate keys."""
    try:
        return json.loads(
            text.decode("utf-8"), object_pairs_hook=_unique_keys, parse_constant=_finite, parse_float=_finite
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value_of = dict(pairs)
    if len(value_of) != len(pairs):
        raise ValueError("a key occurs twice")
    return value_of


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is no finite number")
    return value


# Run folders.

RECIPE = "recipe.yaml"
SEEDS = "seeds.json"  # the summary of runs that differ only in their seed
CARD = "README.md"  # the model card in a run and in an export


def is_run(folder: Path) -> bool:
    """Return whether a run was started in this folder."""
    return (folder / RECIPE).is_file()


def seed_runs(folder: Path) -> list[Path]:
    """The runs of `nmt-train --seeds` in a folder, ordered by seed."""
    runs = (path for path in folder.glob("seed-*") if path.name.removeprefix("seed-").isdecimal())
    return sorted(runs, key=lambda path: int(path.name.removeprefix("seed-")))


def runs_of(folder: Path) -> list[Path]:
    """The run folders that a folder stands for: itself, or the trained runs of `nmt-train --seeds` in it."""
    if is_run(folder) or not (folder / SEEDS).is_file():
        return [folder]
    return [run for run in seed_runs(folder) if (run / "model").is_dir()] or [folder]


def check_is_run(folder: Path) -> None:
    """Raise RunError if no run was started in a folder, NmtError if it contains a link that leads out of it."""
    if is_run(folder):
        refuse_links_out(folder)
    elif folder.is_file() and is_run(folder.parent):
        raise RunError(f"{folder} is a file: name the run folder that it is in, {folder.parent}.")
    elif (folder / SEEDS).is_file():
        raise RunError(f"{folder} has a run for each seed: name one of them, {folder}/seed-N.")
    else:
        raise RunError(
            f"{folder} is not a run folder: there is no {RECIPE} in it. Name one that nmt-train wrote, runs/NAME."
        )
