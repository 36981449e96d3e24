"""Several processes, on one machine or many, that make one folder together: how they find one another, and how one
learns that another is gone.

All they share is a folder of files. Each has one file there that it alone writes, in place, whose content changes
for as long as it lives: so clocks, times of files and locks, which network file systems are not exact about, play no
part. A file that was there before and never changes is of a dead process, and ignored. What the processes do together
is in `blockwise/crew.py`.
"""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from nmt.errors import DataError, MachineError, NmtError
from nmt.recipe.compare import differences

Seen = dict[str, Any]

_SILENCE = 300.0  # seconds without a sign of life at most; network file systems may tell of a change a minute late
_POLL = 0.05  # seconds between two looks
_MOMENT = 2.0  # seconds for rank 0 to say why it ends
_GRACE = 20.0  # seconds for the others to read the last word of rank 0


class Ranks(NamedTuple):
    """Which process this is, from 0, and of how many; and how many of them are on this machine, if that is known."""

    rank: int = 0
    n_rank: int = 1
    n_here: int = 1

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.n_rank}"

    def named(self, numbers: list[int]) -> str:
        """Some of the others, for people."""
        first = ", ".join(map(str, numbers[:9])) + (", ..." if len(numbers) > 9 else "")
        return f"rank{'s' if len(numbers) > 1 else ''} {first} of {self.n_rank}"


class Meeting:
    """The processes of one command. A context manager; whoever leaves it by an error tells the others why."""

    def __init__(self, folder: Path, ranks: Ranks, same: dict[str, Any], patience: float) -> None:
        """folder: what is made together. same: what has to be the same for all. patience: in seconds, how long to wait
        for one that does not come; for a sign of life not longer than _SILENCE.
        """
        self.ranks, self.patience = ranks, patience
        self._silence = min(patience, _SILENCE)
        self._place = folder.absolute().with_name(f".{folder.absolute().name}.ranks")
        self._name = f"{ranks.rank}-of-{ranks.n_rank}.{secrets.token_hex(8)}"
        self._said: Seen = {"host": socket.gethostname(), "pid": os.getpid(), "same": same, "with": None, "beat": 0}
        self._lock, self._end = threading.Lock(), threading.Event()
        self._pulse = threading.Thread(target=self._beat, daemon=True)
        self._old: dict[str, Seen | None] = {}  # what lay there before
        self._with: dict[int, str] = {}  # the file of each rank that this one works with
        self._heard: dict[int, tuple[int, float]] = {}  # the last beat of each, and when it was new
        self._met_anybody = False

    def __enter__(self) -> "Meeting":
        self._place.mkdir(parents=True, exist_ok=True)
        self._old = {name: self._read(name) for name in self._names()}
        self.say()
        self._pulse.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        with contextlib.suppress(OSError):
            if error is not None:
                self.say(error=_why(error))
            elif self.ranks.rank == 0:
                self.say(end=True)
            if self.ranks.rank == 0:
                self._wait_for_leave()
        self._end.set()
        self._pulse.join()
        with contextlib.suppress(OSError):
            if self.ranks.rank == 0:
                for name in (*self._with.values(), *(old for old in self._old if self._read(old) == self._old[old])):
                    (self._place / name).unlink(missing_ok=True)
            # What an error was may still be read by others, if there are any.
            was_read = self.ranks.rank == 0 and self._with
            if was_read or error is None or not self._met_anybody:
                (self._place / self._name).unlink(missing_ok=True)
            self._place.rmdir()

    def say(self, **facts: Any) -> None:
        """Tell the others something, beside what was said before."""
        with self._lock:
            self._said = {**self._said, **facts, "beat": self._said["beat"] + 1}
            text = json.dumps(self._said).encode("utf-8")
            path = self._place / self._name
            if self._said["beat"] == 1:
                path.touch()
            with path.open("r+b") as file:
                file.write(b"%08x" % zlib.crc32(text) + text)
                file.truncate()

    def gather(self) -> None:
        """Rank 0 waits for all others. Those that do not fit are refused."""
        waiting = _Waiting(self.patience)
        while True:
            there: dict[int, list[str]] = {}
            for name, seen in self._alive().items():
                if seen["with"] in (None, self._name):
                    self._must_fit(name, seen)
                    there.setdefault(_rank_of(name), []).append(name)
            self._refuse_twins(there)
            missing = [rank for rank in range(1, self.ranks.n_rank) if rank not in there]
            if not missing:
                break
            if waiting.is_over():
                self._nobody_came(missing)
        self._with = {rank: name for rank, (name,) in there.items()}
        self.say(members=sorted(self._with.values()))

    def join(self) -> None:
        """Any other rank waits for rank 0, and with it for the others as long as it lives."""
        waiting, beat = _Waiting(self.patience), None
        while not self._with:
            there: dict[int, list[str]] = {}
            for name, seen in self._alive().items():
                if seen["with"] is None:
                    self._must_fit(name, seen)
                    there.setdefault(_rank_of(name), []).append(name)
                if _rank_of(name) == 0 and seen["beat"] != beat:
                    waiting, beat = _Waiting(self.patience), seen["beat"]
                if _rank_of(name) == 0 and (members := seen.get("members")) is not None:
                    if self._name not in members:
                        raise NmtError(
                            f"{self.ranks}: {_who(seen)} works with another {self.ranks} on {self._made}. This one is "
                            "one too many: was the command started twice?"
                        )
                    self._with = {0: name}
                    self.say(**{"with": name})
            self._refuse_twins(there)
            if not self._with and waiting.is_over():
                self._nobody_came([0])

    def wait(self, rank: int, for_what: str, until: Callable[[Seen], bool]) -> Seen:
        """Wait until a rank says something. for_what: what this one waits for, for people."""
        return next(self.wait_for([rank], for_what, until))

    def wait_for(self, ranks: Iterable[int], for_what: str, until: Callable[[Seen], bool]) -> Iterator[Seen]:
        """Wait until each of some ranks says something; all are listened to meanwhile."""
        left = list(ranks)
        for rank in left:
            self._heard.pop(rank, None)  # whoever was not listened to may have been silent
        while left:
            for rank in tuple(left):
                if until(seen := self.hear(rank, for_what)):
                    left.remove(rank)
                    yield seen
            time.sleep(_POLL if left else 0)

    def hear(self, rank: int, for_what: str) -> Seen:
        """What a rank says now. A MachineError if it has ended or was silent for too long."""
        seen = self._read(self._with[rank]) or {}
        if "error" in seen:
            raise MachineError(
                f"{self.ranks} waited for {for_what} of rank {rank} ({_who(seen)}), which ended: {seen['error']}"
            )
        beat, since = self._heard.get(rank, (-1, 0.0))
        if seen and seen["beat"] != beat:
            self._heard[rank] = seen["beat"], time.monotonic()
        elif beat < 0:
            self._heard[rank] = 0, time.monotonic()
        elif time.monotonic() - since > self._silence:
            who = _who(seen) if seen else "its file is gone"
            raise MachineError(
                f"{self.ranks} waited for {for_what} of rank {rank} ({who}), which has given no sign of life for "
                f"{self._silence:g} s. Was it killed? Start all ranks again."
            )
        return seen

    def ask_why(self, rank: int, for_what: str) -> None:
        """Raise what `hear` raises if a rank has ended, or ends in a moment."""
        until = time.monotonic() + min(_MOMENT, self._silence)
        while time.monotonic() < until:
            self.hear(rank, for_what)
            time.sleep(_POLL)

    @property
    def _made(self) -> str:
        return str(self._place.with_name(self._place.name[1:].removesuffix(".ranks")))

    def _names(self) -> list[str]:
        return [path.name for path in self._place.iterdir() if path.name != self._name and "-of-" in path.name]

    def _read(self, name: str) -> Seen | None:
        """What a file says; None while it is written, or if it is gone."""
        try:
            text = (self._place / name).read_bytes()
        except OSError:
            return None
        if text[:8] != b"%08x" % zlib.crc32(text[8:]):
            return None
        seen: Seen = json.loads(text[8:])
        return seen

    def _alive(self) -> dict[str, Seen]:
        """What others say of whom there has been a sign of life."""
        found = {name: self._read(name) for name in self._names()}
        alive = {name: seen for name, seen in found.items() if seen is not None and seen != self._old.get(name)}
        self._met_anybody = self._met_anybody or bool(alive)
        return alive

    def _must_fit(self, name: str, seen: Seen) -> None:
        who = f"rank {_rank_of(name)} ({_who(seen)})"
        if "error" in seen:
            raise MachineError(f"{self.ranks}: {who} ended: {seen['error']}")
        if (n_rank := int(name.split(".")[0].split("-of-")[1])) != self.ranks.n_rank:
            raise NmtError(
                f"{self.ranks}: {who} is one of {n_rank} that make {self._made}, too. Two commands cannot make it at "
                "once: wait for the other one, or choose another folder with data.out."
            )
        if changed := differences(seen["same"], self._said["same"]):
            told = "; ".join(f"{name}: {there} there, {here} here" for name, (there, here) in changed.items())
            raise DataError(f"{self.ranks}: {who} was started otherwise: {told}. All ranks need the same.")

    def _refuse_twins(self, there: dict[int, list[str]]) -> None:
        if self.ranks.rank in there or (twice := [rank for rank, names in there.items() if len(names) > 1]):
            number = self.ranks.rank if self.ranks.rank in there else twice[0]
            seen = self._read(there[number][-1]) or {}
            raise NmtError(
                f"{self.ranks}: rank {number} was started twice for {self._made}, the other time as {_who(seen)}. "
                "Start each rank once."
            )

    def _nobody_came(self, missing: list[int]) -> None:
        ended = {
            _rank_of(name): seen["error"] for name in self._names() if (seen := self._read(name) or {}).get("error")
        }
        why = "".join(f" The last rank {rank} that was there ended: {ended[rank]}" for rank in missing if rank in ended)
        raise MachineError(
            f"{self.ranks} waited {self.patience:g} s for {self.ranks.named(missing)}, which did not come to "
            f"{self._place}. All ranks must run at the same time and see this folder; --rank-timeout says how long to "
            f"wait, and --ranks 1 prepares without others.{why}"
        )

    def _beat(self) -> None:
        while not self._end.wait(min(1.0, self._silence / 10)):
            with contextlib.suppress(OSError):  # whoever cannot write is silent, and the others will notice
                self.say()

    def _wait_for_leave(self) -> None:
        until = time.monotonic() + min(_GRACE, self._silence)
        while time.monotonic() < until and any(map(self._is_there, self._with.values())):
            time.sleep(_POLL)

    def _is_there(self, name: str) -> bool:
        return (self._place / name).exists() and "error" not in (self._read(name) or {})


class _Waiting:
    def __init__(self, patience: float) -> None:
        self._until = time.monotonic() + patience

    def is_over(self) -> bool:
        """Whether the time is over; until then, a moment of it passes."""
        time.sleep(_POLL)
        return time.monotonic() > self._until


def _why(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"exit code {error.code}, as after a signal"
    return str(error).split("\n")[0] or type(error).__name__


def _rank_of(name: str) -> int:
    return int(name.partition("-")[0])


def _who(seen: Seen) -> str:
    return f"process {seen['pid']} on {seen['host']}" if "pid" in seen else "of which nothing is known"
