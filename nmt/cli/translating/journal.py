"""The journal of nmt-translate: what the model has answered, on the disk beside the output, until that is whole.

A file of frames, each with its length and checksum, so that a frame that a crash cut off is seen and dropped. The first
says what the answers were made with (`fit`); then comes one for each window of the input, and marks of what is done.
A window names its lines by a digest: the journal is good as far as the input is the same. It holds what the model said
and not what was written, so that a restart writes, counts and warns like a run that nothing stopped.
"""

import json
import os
import struct
import time
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from nmt.errors import NmtError
from nmt.files import lock_file, replacing, sync_folder

FORMAT = 1
_HEAD = struct.Struct("<III")  # bytes that follow it, lines that they answer (0: none), CRC-32 of all that
_SYNC_EVERY = 1.0  # seconds: what a loss of power can cost; a killed process loses less


class Frame(NamedTuple):
    """A piece of a journal that is whole. end: where the next one begins."""

    end: int
    n_line: int
    payload: bytes

    def value(self) -> dict[str, Any]:
        """What was written."""
        found: dict[str, Any] = json.loads(zlib.decompress(self.payload))
        return found


class Known(NamedTuple):
    """What a journal holds. fit: None where the file is no journal."""

    fit: dict[str, Any] | None
    n_line: int
    marks: dict[str, Any]
    end: int  # of what is whole


def frames(file: BinaryIO) -> Iterator[Frame]:
    """The frames of a journal up to the first that is not whole."""
    size = os.fstat(file.fileno()).st_size
    end = 0
    while len(head := file.read(_HEAD.size)) == _HEAD.size:
        n_byte, n_line, checksum = _HEAD.unpack(head)
        if n_byte > size - end - _HEAD.size:  # before that much memory is asked for
            return
        payload = file.read(n_byte)
        if len(payload) < n_byte or not n_byte or checksum != _checksum(n_line, payload):
            return
        end += _HEAD.size + n_byte
        yield Frame(end, n_line, payload)


def known(path: Path) -> Known | None:
    """What lies there, or None if nothing does."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    with file:
        return _known(file)


def _known(file: BinaryIO) -> Known:
    """fit, n_line and end of what is whole, and the marks behind the last window."""
    fit: dict[str, Any] | None = None
    marks: dict[str, Any] = {}
    n_line = end = 0
    for frame in frames(file):
        if frame.n_line:
            n_line += frame.n_line
            marks = {}
        elif fit is None:
            head = frame.value()
            if head.get("format") != FORMAT:
                break
            fit = head["fit"]
        else:
            marks.update(frame.value())
        end = frame.end
    return Known(fit, n_line, marks, end)


class OtherInput(NmtError):
    """A journal tells of other lines than those that are there now."""


class Replay:
    """The answers of a journal, window by window, up to the byte `end`."""

    def __init__(self, path: Path, end: int) -> None:
        self.path, self._end = path, end
        self.taken = 0  # bytes up to the end of the last window that was taken
        self.n_line = 0  # lines of those windows
        self._windows = self._read()

    def take(self, digest: str) -> list[str] | None:
        """The answers to the next window, whose lines have this digest; None at the end. Raises OtherInput."""
        frame = next(self._windows, None)
        if frame is None:
            return None
        window = frame.value()
        if window["lines"] != digest:
            raise OtherInput(f"{self.path}: after line {self.n_line:,} of what it answers, the input is another one")
        self.taken, self.n_line = frame.end, self.n_line + frame.n_line
        answers: list[str] = window["answers"]
        return answers

    def close(self) -> None:
        """Let go of the file."""
        self._windows.close()

    def _read(self) -> Generator[Frame, None, None]:
        with self.path.open("rb") as file:
            for frame in frames(file):
                if frame.end > self._end:
                    return
                if frame.n_line:
                    yield frame
                elif not self.n_line:
                    self.taken = frame.end  # the head


class Journal:
    """The journal that this process writes, and what an earlier process had written in it. A context manager.

    fit: what answers depend on beside the lines, in values that JSON gives back. say: told what becomes of what was
    there.
    """

    def __init__(self, path: Path, fit: dict[str, Any], say: Callable[[str], object]) -> None:
        self.path, self._say = path, say
        head = _frame(0, {"format": FORMAT, "fit": fit})
        self._file = _opened(path)
        try:
            found = _known(self._file)
            if found.fit != fit:
                self._file.seek(0)
                if not head.startswith(self._file.read(len(head) + 1)):  # else ours, and cut off as it began
                    self._set_aside(0, _why(found.fit, fit))
                self._file.truncate(0)
                self._write(head)
                sync_folder(path.absolute().parent)
                found = Known(fit, 0, {}, len(head))
            self._file.truncate(found.end)
        except BaseException:
            self._file.close()
            raise
        self.n_line, self.marks = found.n_line, found.marks
        self._synced = time.monotonic()
        self._replay = Replay(path, found.end) if found.n_line else None

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        if self._replay:
            self._replay.close()
        if not self.n_line and not self.marks:  # nothing that anybody would miss
            self.path.unlink(missing_ok=True)
        self._file.close()

    def take(self, digest: str) -> list[str] | None:
        """The answers to the next window, if an earlier process found them: then they need no model.

        What does not belong to these lines is not used; nor what is left when the input has ended, a digest of "".
        """
        if not self._replay:
            return None
        try:
            answers = self._replay.take(digest)
        except OtherInput:
            answers = None
            self._replay.close()
            n_line = self._replay.n_line
            why = f"after line {n_line:,} the input is another one" if n_line else "it was made of another input"
            self._set_aside(self._replay.taken, why)
            self.n_line, self.marks = self._replay.n_line, {}
        if answers is None:
            self._replay = None
        return answers

    def add(self, digest: str, n_line: int, answers: list[str]) -> None:
        """Keep the answers to the next window."""
        self._write(_frame(n_line, {"lines": digest, "answers": answers}))
        self.n_line += n_line
        self.marks = {}
        if time.monotonic() - self._synced > _SYNC_EVERY:
            self._sync()

    def mark(self, name: str, value: Any) -> None:
        """Keep, for sure, that something is done. It holds until a window is added."""
        self._write(_frame(0, {name: value}))
        self.marks[name] = value
        self._sync()

    def _write(self, frame: bytes) -> None:
        left = memoryview(frame)
        with self._named():
            self._file.seek(0, os.SEEK_END)
            while left:
                left = left[self._file.write(left) :]

    def _sync(self) -> None:
        with self._named():
            os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """What the system says of the file has its name, which a descriptor does not have."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None

    def _set_aside(self, n_byte: int, why: str) -> None:
        """Go on with the first n_byte of what is there. All of it stays beside, for it may have cost hours."""
        names = chain([".unused"], (f".unused-{n}" for n in count(2)))
        beside = next(one for name in names if not (one := self.path.with_name(f"{self.path.name}{name}")).exists())
        self._say(f"{self.path}: {why}, so it is not used {'further' if n_byte else 'here'}; kept as {beside.name}")
        self._file.close()
        os.replace(self.path, beside)
        if n_byte:
            with beside.open("rb") as old, replacing(self.path) as new:
                while n_byte and (chunk := old.read(min(n_byte, 1 << 20))):
                    new.write(chunk)
                    n_byte -= len(chunk)
        self._file = _opened(self.path)


def open_locked(path: Path) -> BinaryIO | None:
    """The file, made if it is not there, for this process alone; None if another has it. Closing it frees it.

    Unbuffered: a write that failed is not tried again.
    """
    while True:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666), "r+b", buffering=0)
        try:
            lock_file(file.fileno())
            # The process that held it may have finished, and removed what we opened.
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        except (BlockingIOError, PermissionError):  # the latter is what Windows says
            file.close()
            return None
        except BaseException:
            file.close()
            raise
        file.close()


def _opened(path: Path) -> BinaryIO:
    if (file := open_locked(path)) is None:
        raise NmtError(f"{path}: in use: another process writes the same output. Wait for it, or name another file.")
    return file


def _frame(n_line: int, value: dict[str, Any]) -> bytes:
    payload = zlib.compress(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"), 1)
    return _HEAD.pack(len(payload), n_line, _checksum(n_line, payload)) + payload


def _checksum(n_line: int, payload: bytes) -> int:
    return zlib.crc32(payload, n_line)


def _why(there: dict[str, Any] | None, now: dict[str, Any]) -> str:
    """Why a journal does not fit."""
    if there is None:
        return "it is no journal that this nmt can read"
    other = [name for name in {**there, **now} if there.get(name) != now.get(name)]
    return f"it was made with another {', '.join(other)}"
