"""Journal of nmt-translate: a record of each line, on disk beside the output until that is whole.

The first line of the file has the settings that records depend on, each other one the records of a window of the input
and a hash of its lines, all in JSON behind a checksum. What a crash cut off is dropped.
"""

import json
import os
import shutil
import time
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nmt.cli.translating.output import Record
from nmt.errors import NmtError
from nmt.files import lock_file, naming, sync_folder

FORMAT = 3
_SYNC_EVERY = 1.0  # seconds: what a loss of power can cost; a killed process loses less
_COMPLETE = {"complete": True}  # the last line, where the output is written and about to get its name


def _line(value: dict[str, Any]) -> bytes:
    text = json.dumps(value).encode("ascii")
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _read(path: Path) -> Generator[tuple[int, dict[str, Any]], None, None]:
    """Read the lines of a journal up to the first that is not intact, each with its end in bytes."""
    end = 0
    with path.open("rb") as file:
        for line in file:
            text = line[9:-1]
            if line != b"%08x %s\n" % (zlib.crc32(text), text):
                return
            end += len(line)
            yield end, json.loads(text)


def is_complete(path: Path) -> bool:
    """Return True for the journal of a process that had written its output when it was killed."""
    last = deque(_read(path), maxlen=1) if path.is_file() else ()
    return any(value == _COMPLETE for _, value in last)


class Journal:
    """Journal that this process writes, with what an earlier process had written in it. A context manager.

    settings: what records depend on beside the lines, in values that JSON gives back. say: called with messages.
    """

    def __init__(self, path: Path, settings: dict[str, Any], say: Callable[[str], object]) -> None:
        self.path, self._say = path, say
        self._file = path.open("a+b", buffering=0)  # unbuffered: a write that failed is not tried again
        try:
            try:
                lock_file(self._file.fileno())
            except (BlockingIOError, PermissionError):  # the latter is what Windows says
                raise NmtError(
                    f"{path}: in use: another process writes the same output. Wait for it, or name another file."
                ) from None
            head = {"format": FORMAT, "settings": settings}
            self.n_line, self._end, there = 0, 0, dict[str, Any]()
            for self._end, value in _read(path):
                there = there or value
                self.n_line += len(value.get("records", ()))
            if there == head:
                self._file.truncate(self._end)
            else:
                # Nothing is lost where a process was killed in the first line.
                self._file.seek(0)
                if not _line(head).startswith(self._file.read(len(_line(head)) + 1)):
                    before = there.get("settings", {})
                    other = [name for name in {**before, **settings} if before.get(name) != settings.get(name)]
                    is_ours = there.get("format") == FORMAT
                    self._set_aside(
                        0, f"made with another {', '.join(other)}" if is_ours else "no journal that this nmt can read"
                    )
                self._file.truncate(0)
                self.n_line = 0
                self._write(head)
                sync_folder(path.absolute().parent)
        except BaseException:
            self._file.close()
            raise
        self._synced = time.monotonic()
        self._known = _read(path)
        self._end, _ = next(self._known)  # of what was taken
        self._n_taken = 0

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self._known.close()
        self._file.close()
        if not self.n_line:
            self.path.unlink(missing_ok=True)

    def take(self, digest: str) -> list[Record] | None:
        """Return the records of the next window, with this hash of its lines, if an earlier process made them.

        Where the input is another one, the rest is not used; "" stands for the end of the input.
        """
        if self._n_taken == self.n_line:
            return None
        end, window = next(found for found in self._known if "records" in found[1])
        if window["lines"] != digest:
            n_line = self._n_taken
            where = f"after line {n_line:,} the input is another one" if n_line else "made of another input"
            self._set_aside(self._end, where)
            self.n_line = n_line
            return None
        self._end, self._n_taken = end, self._n_taken + len(window["records"])
        return [Record(**one) for one in window["records"]]

    def add(self, digest: str, records: Iterable[Record]) -> None:
        """Keep the records of the next window."""
        window = {"lines": digest, "records": [asdict(one) for one in records]}
        self._write(window)
        self.n_line += len(window["records"])
        self._n_taken = self.n_line
        if time.monotonic() - self._synced > _SYNC_EVERY:
            self._sync()

    def complete(self) -> None:
        """Keep durably that the output is written and about to get its name."""
        self._write(_COMPLETE)
        self._sync()

    def _write(self, value: dict[str, Any]) -> None:
        left = memoryview(_line(value))
        with naming(self.path):
            while left:
                left = left[self._file.write(left) :]

    def _sync(self) -> None:
        with naming(self.path):
            os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def _set_aside(self, n_byte: int, why: str) -> None:
        """Continue with the first n_byte; all of it is kept under another name, for it may have cost hours."""
        beside = self.path.with_name(f"{self.path.name}.unused")
        shutil.copyfile(self.path, beside)
        self._file.truncate(n_byte)
        self._say(f"{self.path}: {why}, so it is not used {'further' if n_byte else 'here'}; kept as {beside.name}")
