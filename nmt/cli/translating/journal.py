"""Journal of nmt-translate: results of the model, on disk beside the output until that is whole; ranks share an output.

A journal is a file of frames, each with its length and checksum: a frame that a crash cut off is dropped. The first
holds the settings that results depend on (`fit`); then comes one for each window of the input, and marks of what is
done. A window is known by a digest of its lines: the journal is good as far as the input is the same. It holds results
rather than output lines, so that a restart writes, counts and warns like a run that nothing stopped.
"""

import json
import os
import struct
import time
import zlib
from argparse import Namespace
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from nmt.cli.translating.workers import LineResult
from nmt.errors import DataError, NmtError
from nmt.files import lock_file, replacing, sync_folder
from nmt.processes import place_of

FORMAT = 2
_HEAD = struct.Struct("<III")  # bytes that follow it, lines that they answer (0: none), CRC-32 of all that
_SYNC_EVERY = 1.0  # seconds: what a loss of power can cost; a killed process loses less


class Frame(NamedTuple):
    """An intact piece of a journal. end: where the next one begins."""

    end: int
    n_line: int
    payload: bytes

    def value(self) -> dict[str, Any]:
        """Decode the payload."""
        found: dict[str, Any] = json.loads(zlib.decompress(self.payload))
        return found


class Known(NamedTuple):
    """Content of a journal, up to `end`. fit: None where the file is no journal; marks: those after the last window."""

    fit: dict[str, Any] | None
    n_line: int
    marks: dict[str, Any]
    end: int


def frames(file: BinaryIO) -> Iterator[Frame]:
    """Read the frames of a journal up to the first that is not intact."""
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
    """Read the journal at a path; None if there is none."""
    try:
        with path.open("rb") as file:
            return _known(file)
    except FileNotFoundError:
        return None


def _known(file: BinaryIO) -> Known:
    found = Known(None, 0, {}, 0)
    for frame in frames(file):
        if frame.n_line:
            found = Known(found.fit, found.n_line + frame.n_line, {}, frame.end)
        elif found.fit is not None:
            found = found._replace(marks={**found.marks, **frame.value()}, end=frame.end)
        elif (head := frame.value()).get("format") == FORMAT:
            found = found._replace(fit=head["fit"], end=frame.end)
        else:
            break
    return found


class Results(Protocol):
    """Results of earlier processes, window by window."""

    def take(self, digest: str) -> list[LineResult] | None:
        """Return the results of the next window, None if they are not known. digest: that of its lines."""

    def add(self, digest: str, results: Sequence[LineResult]) -> None:
        """Keep the results of the next window."""


class OtherInput(NmtError):
    """Raised when a journal belongs to other lines than those that are there now."""


class Replay:
    """Results in a journal, window by window, up to the byte `end`."""

    def __init__(self, path: Path, end: int) -> None:
        self.path, self._end = path, end
        self.taken = 0  # bytes up to the end of the last window that was taken
        self.n_line = 0  # lines of those windows
        self._windows = self._read()

    def take(self, digest: str) -> list[LineResult] | None:
        """Return the results of the next window, whose lines have this digest; None at the end. Raises OtherInput."""
        frame = next(self._windows, None)
        if frame is None:
            return None
        window = frame.value()
        if window["lines"] != digest:
            raise OtherInput(f"{self.path}: after line {self.n_line:,} of what it answers, the input is another one")
        self.taken, self.n_line = frame.end, self.n_line + frame.n_line
        return list(map(LineResult.of_json, window["results"]))

    def close(self) -> None:
        """Close the file."""
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
    """Journal that this process writes, with what an earlier process had written in it. A context manager.

    fit: the settings that results depend on, in values that JSON gives back. say: called with messages.
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
        if not self.n_line and not self.marks:  # nothing worth keeping
            self.path.unlink(missing_ok=True)
        self._file.close()

    def take(self, digest: str) -> list[LineResult] | None:
        """Return the results of the next window if an earlier process found them.

        Those of other lines are not used; nor those left when the input has ended, a digest of "".
        """
        if not self._replay:
            return None
        try:
            results = self._replay.take(digest)
        except OtherInput:
            results = None
            self._replay.close()
            n_line = self._replay.n_line
            why = f"after line {n_line:,} the input is another one" if n_line else "it was made of another input"
            self._set_aside(self._replay.taken, why)
            self.n_line, self.marks = self._replay.n_line, {}
        if results is None:
            self._replay = None
        return results

    def add(self, digest: str, results: Sequence[LineResult]) -> None:
        """Keep the results of the next window."""
        self._write(_frame(len(results), {"lines": digest, "results": [one.as_json() for one in results]}))
        self.n_line += len(results)
        self.marks = {}
        if time.monotonic() - self._synced > _SYNC_EVERY:
            self._sync()

    def mark(self, name: str, value: Any) -> None:
        """Keep durably that something is done. It holds until a window is added."""
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
        """Context manager: name the file in errors of the system, which a descriptor does not have."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None

    def _set_aside(self, n_byte: int, why: str) -> None:
        """Continue with the first n_byte; all of it is kept under another name, for it may have cost hours."""
        names = (f"{self.path.name}.unused{f'-{n}' if n > 1 else ''}" for n in count(1))
        beside = next(one for name in names if not (one := self.path.with_name(name)).exists())
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
    """Open a file, made if it is not there, for this process alone; None if another has it. Closing it frees it.

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
    if there is None:
        return "it is no journal that this nmt can read"
    other = [name for name in {**there, **now} if there.get(name) != now.get(name)]
    return f"it was made with another {', '.join(other)}"


# Ranks: several processes that share one input and one output.


SHARE = "share"  # the mark of a rank that has answered all its windows


class Ranks(NamedTuple):
    """The rank of this process, from 0, and how many there are."""

    rank: int = 0
    n_rank: int = 1

    def has(self, number: int) -> bool:
        """Return whether a window, by its number from 0, is for this rank. In turns, as lengths come in stretches."""
        return number % self.n_rank == self.rank

    def n_line(self, n_line: int, window: int) -> int:
        """Count those of n_line lines that are for this rank."""
        return sum(min(window, n_line - start) for start in range(self.rank * window, n_line, self.n_rank * window))

    def journals(self, output: Path) -> list[Path]:
        """List the journals of all ranks, by rank."""
        names = [f"-{rank}-of-{self.n_rank}" for rank in range(self.n_rank)] if self.n_rank > 1 else [""]
        return [output.with_name(f"{output.name}.journal{name}") for name in names]


def ranks_of(args: Namespace, environment: Mapping[str, str] = os.environ) -> Ranks:
    """Read the rank from --rank and --ranks, or else from torchrun, which also says which GPU is ours.

    Raises NmtError if they do not fit together, or there are several ranks and no files to share.
    """
    if args.ranks is not None:
        if args.rank is None and args.ranks > 1:
            raise NmtError(f"--ranks {args.ranks} needs --rank, a number from 0 to {args.ranks - 1}.")
        if (args.rank or 0) >= args.ranks:
            raise NmtError(f"--rank {args.rank}: with --ranks {args.ranks} ranks go from 0 to {args.ranks - 1}.")
        ranks = Ranks(args.rank or 0, args.ranks)
    elif args.rank is not None:
        raise NmtError("--rank needs --ranks, the number of all.")
    else:
        ranks = Ranks(*place_of(environment)[:2])
        if ranks.n_rank > 1 and args.device in ("auto", "cuda"):
            import torch

            if args.device == "cuda" or torch.cuda.is_available():
                args.device = f"cuda:{int(environment.get('LOCAL_RANK', '0'))}"
    if ranks.n_rank > 1 and not (args.input and args.output):
        told = "torchrun" if args.ranks is None else "--ranks"
        raise NmtError(
            f"rank {ranks.rank} of {ranks.n_rank}, as {told} says: ranks share a file, so name it with --input and "
            "--output. To translate all of it here: --ranks 1."
        )
    return ranks


class JoinedJournals:
    """Results of all ranks, in the order of the windows."""

    def __init__(self, paths: Sequence[Path], ends: Sequence[int]) -> None:
        self._replays = [Replay(path, end) for path, end in zip(paths, ends, strict=True)]
        self._number = 0

    def take(self, digest: str) -> list[LineResult] | None:
        """Return the results of the next window. Raises DataError if they are those of another input."""
        replay = self._replays[self._number % len(self._replays)]
        self._number += 1
        try:
            results = replay.take(digest)
        except OtherInput:
            results = None
        if results is None and digest:
            raise DataError(
                f"{replay.path} answers another input than the one that is there now. Delete it, and let its rank "
                "begin anew."
            )
        return results

    def add(self, digest: str, results: Sequence[LineResult]) -> None:
        """Refuse: every window is there."""
        raise AssertionError("everything is there")

    def close(self) -> None:
        """Close the files."""
        for replay in self._replays:
            replay.close()


def joined(paths: Sequence[Path], fit: dict[str, Any], say: Callable[[str], object]) -> JoinedJournals | None:
    """Open the journals of all ranks if all have finished; else None, and `say` is told who has not.

    Raises NmtError if one of them was made with another model or other options.
    """
    found = [known(path) for path in paths]
    for path, one in zip(paths, found, strict=True):
        if one is not None and SHARE in one.marks and one.fit != fit:
            raise NmtError(f"{path} was made with another model or other options. Delete it, and start its rank anew.")
    ends = [one.end for one in found if one is not None and SHARE in one.marks]
    if len(ends) == len(paths):
        return JoinedJournals(paths, ends)
    missing = [str(rank) for rank, one in enumerate(found) if one is None or SHARE not in one.marks]
    who = ", ".join(missing[:9]) + (", …" if len(missing) > 9 else "")
    say(f"this share is done; not yet that of rank {who} of {len(paths)}. The last one joins them")
    return None


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Context manager: a lock file. Other processes wait, and take over if this one dies."""
    while (file := open_locked(path)) is None:
        time.sleep(0.1)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # a process that waits for it opens the next one
        file.close()
