"""Heartbeat: abort all ranks, naming the one to blame, when a rank stops reporting.

A collective waits for ever for a rank that died or froze. So a thread of every process writes a beat into the store
through which the ranks met; rank 0 looks at everybody's, the others at that of rank 0. Whoever misses one publishes a
verdict, and all end by it. Time is counted in one's own beats: a machine that was suspended accuses nobody.
"""

import contextlib
import hashlib
import json
import math
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch.distributed as dist

from nmt.errors import MachineError, NmtError

# Who takes part.


_PAUSE = 0.05  # seconds between two looks


class StoppedEarly(Exception):
    """Somebody wants to stop before there is anything to save."""


class Store(Protocol):
    """Interface of torch's stores, which have no type hints: keys and values that all processes see."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def multi_get(self, keys: list[str], /) -> list[bytes]: ...

    def check(self, keys: list[str], /) -> bool: ...


@dataclass(frozen=True)
class RankInfo:
    """A process of the run. parent: the process that started it. nonce: tells it from an earlier one of its rank."""

    rank: int
    host: str
    process: int
    parent: int
    nonce: str

    @classmethod
    def mine(cls, rank: int) -> "RankInfo":
        return cls(rank, socket.gethostname(), os.getpid(), os.getppid(), secrets.token_hex(8))

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.process} on {self.host})"


def rendezvous(
    store: Store,
    rank: int,
    world_size: int,
    timeout: float,
    prepare: Callable[[Store], None],
    wants_stop: Callable[[], bool] = lambda: False,
) -> tuple[Store, list[RankInfo]]:
    """Wait for all ranks. Returns a store that only these processes use, and the card of each.

    After a restart torchrun's store still holds the keys of the dead, so that nobody could tell an old address from a
    new one. Here rank 0 writes down the cards that it finds, each rank confirms the list that has its own, and the
    list that all have confirmed names the store. `prepare` is what rank 0 does to that store before anybody else
    sees it. Raises MachineError naming the ranks that have not come, and Stopped when wants_stop says so meanwhile.
    """
    mine = RankInfo.mine(rank)
    store.set(f"card/{rank}", json.dumps(asdict(mine)))
    # Rank 0 knows best who is missing, so it speaks first.
    deadline = time.monotonic() + timeout + (0.0 if rank == 0 else 5.0)
    while True:
        if rank == 0:
            _write_down(store, world_size)
        roster, name = _read(store, "roster") or "[]", ""
        cards = [RankInfo(**card) for card in json.loads(roster)]
        if len(cards) == world_size and cards[rank] == mine:
            name = hashlib.sha256(roster.encode()).hexdigest()[:16]
            fresh: Store = cast(Any, dist).PrefixStore(f"nmt/{name}", store)
            store.set(f"confirmed/{rank}", name)
            if rank == 0 and not _missing(store, "confirmed", world_size, name):
                prepare(fresh)
                store.set("agreed", name)
            if (agreed := _read(store, "agreed")) == name:
                return fresh, cards
            if agreed == f"stopped/{name}":
                raise StoppedEarly
        # Who has confirmed waits for the word of rank 0: the others may be told to begin at this very moment.
        if (rank == 0 or not name) and wants_stop():
            if name:
                store.set("agreed", f"stopped/{name}")
            raise StoppedEarly
        if time.monotonic() > deadline:
            absent = _missing(store, "card", world_size) or _missing(store, "confirmed", world_size)
            who = ", ".join(map(str, absent)) or "a rank"
            raise MachineError(
                f"rank {rank} has waited {timeout:g} s (train.timeout) for the other processes of {world_size}: rank "
                f"{who} has not come. Look at what it printed, and whether its machine reaches "
                f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}."
            )
        time.sleep(_PAUSE)


def _write_down(store: Store, world_size: int) -> None:
    if _missing(store, "card", world_size):
        return
    cards = [json.loads(store.get(f"card/{rank}")) for rank in range(world_size)]
    if (roster := json.dumps(cards)) != _read(store, "roster"):
        store.set("roster", roster)


def _missing(store: Store, kind: str, world_size: int, value: str | None = None) -> list[int]:
    """Ranks that have not written their key of a kind, or not this value."""
    keys = {rank: f"{kind}/{rank}" for rank in range(world_size)}
    if value is None and store.check(list(keys.values())):
        return []
    found = {rank: _read(store, key) for rank, key in keys.items()}
    return [rank for rank, text in found.items() if text is None or (value is not None and text != value)]


def _read(store: Store, key: str) -> str | None:
    return store.get(key).decode() if store.check([key]) else None


_LONGEST_INTERVAL = 1.0  # seconds between two beats
_HURRY = 5  # beats to wait for when a connection has broken already, so that somebody must be gone


@dataclass(frozen=True)
class _Beat:
    """Heartbeat of a rank. turn: count of its collectives. left: 'done', or the error that it ended with.

    code: the exit code of that error.
    """

    number: int = 0
    turn: int = 0
    alone: bool = False
    broken: bool = False
    left: str = ""
    code: int = 0

    def __str__(self) -> str:
        return json.dumps([self.number, self.turn, self.alone, self.broken, self.left, self.code])


@dataclass(frozen=True)
class _Verdict:
    """Decision to abort: ranks to blame, and why. ends: whether they exit themselves. code: exit code of the others."""

    blamed: tuple[int, ...]
    why: str
    ends: bool = False
    code: int = MachineError.exit_code

    def __str__(self) -> str:
        return json.dumps([self.blamed, self.why, self.ends, self.code])


def prepare(store: Store, world_size: int) -> None:
    """Write what every rank may read before it was written by whom it is about."""
    store.set("verdict", "")
    for rank in range(world_size):
        store.set(f"pulse/{rank}", str(_Beat()))


class Heartbeat:
    """This rank's pulse, and its eye on the others.

    turn: grows where this rank's work goes on. n_wait: how often the others waited for rank 0. alone: whether this rank
    does what they wait for, however long it takes.
    """

    def __init__(self, store: Store, rank: int, cards: list[RankInfo], timeout: float) -> None:
        self.rank, self.cards, self.timeout = rank, cards, timeout
        self.turn, self.n_wait, self.alone = 0, 0, False
        self._broken, self._left, self._code = False, "", 0  # as in `_Beat`
        self._verdict: _Verdict | None = None
        self._taken = False  # whether the main thread ends this process, so that no other has to
        # A connection of its own: the main thread may be waiting on the other one.
        self._store = cast(Any, store).clone()
        self._interval = min(_LONGEST_INTERVAL, timeout / 10)
        self._patience = math.ceil(timeout / self._interval)
        watched = range(len(cards)) if rank == 0 else range(1)
        self._beats, self._silent = dict.fromkeys(watched, _Beat()), dict.fromkeys(watched, 0)
        # Beats made; for how many intervals no turn has changed, a connection was seen broken, the store was silent.
        self._number = self._n_alike = self._n_broken = self._n_unheard = 0
        self._lost = False  # whether the store is out of reach
        self._over, self._hurry_up = threading.Event(), threading.Event()
        for body in (self._pulse, self._end_when_decided):
            threading.Thread(target=body, daemon=True, name=body.__name__.strip("_")).start()

    # -- for the main thread ---------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Say that this rank is done, and stop. Rank 0 goes last: the store may end with its process."""
        self._say_last("done")
        while self.rank == 0 and self._waits_for_others() and self._verdict is None:
            time.sleep(0.01)
        self._over.set()

    def _waits_for_others(self) -> bool:
        return not self._lost and any(beat.left != "done" for beat in self._beats.values())

    def fail(self, why: str, code: int) -> None:
        """Say that this rank ends with an error and its exit code, so that nobody waits for it."""
        self._taken, self._code = True, code
        self._say_last(why)
        self._let_others_read()

    def check(self) -> None:
        """Raise NmtError if somebody is missing, with the exit code of who stopped with an error."""
        if self._verdict is not None:
            raise self._error(self._verdict)

    def raise_verdict(self) -> None:
        """Raise NmtError about who is missing, after a collective has failed."""
        self._broken = True
        while True:
            self.check()
            time.sleep(self._interval / 10)

    def _say_last(self, text: str) -> None:
        self._left = text
        said, deadline = self._number + 1, time.monotonic() + 3 * self._interval
        while self._number <= said and not self._lost and time.monotonic() < deadline:
            self._hurry_up.set()
            time.sleep(0.01)

    def _error(self, verdict: _Verdict) -> Exception:
        self._taken = True
        self._prepare_to_end(verdict)
        self._let_others_read()
        # One rank speaks; the others would only say the same.
        if not self._speaks(verdict):
            return cast(Exception, SystemExit(verdict.code))
        return (NmtError if verdict.code == NmtError.exit_code else MachineError)(verdict.why)

    def _let_others_read(self) -> None:
        if self.rank == 0:
            time.sleep(3 * self._interval)  # the store may end with this process

    # -- for the threads -------------------------------------------------------------------------------------------

    def _pulse(self) -> None:
        keys = ["verdict", *(f"pulse/{rank}" for rank in self._beats)]
        while not self._over.is_set():
            beat = _Beat(self._number, self.turn, self.alone, self._broken, self._left, self._code)
            try:
                self._store.set(f"pulse/{self.rank}", str(beat))
                verdict, *heard = (text.decode() for text in self._store.multi_get(keys))
                if not verdict:
                    self._hear([_Beat(*json.loads(text)) for text in heard])
                    if mine := self._judge():
                        verdict = str(mine)
                        self._store.set("verdict", verdict)
            except (RuntimeError, ValueError):
                self._lost = True  # the other thread waits a little: at the end of a run rank 0 may leave first
                return
            self._number, self._n_unheard = self._number + 1, 0
            if verdict and self._verdict is None:
                blamed, *rest = json.loads(verdict)
                self._verdict = _Verdict(tuple(blamed), *rest)
            self._hurry_up.wait(self._interval)
            self._hurry_up.clear()

    def _hear(self, heard: list[_Beat]) -> None:
        """Take in one beat of each rank that is watched."""
        beats = dict(zip(self._beats, heard, strict=True))
        moved = any(beat.turn != self._beats[rank].turn for rank, beat in beats.items())
        self._n_alike = 0 if moved or any(beat.alone for beat in beats.values()) else self._n_alike + 1
        self._n_broken = self._n_broken + 1 if any(beat.broken for beat in beats.values()) or self._broken else 0
        for rank, beat in beats.items():
            self._silent[rank] = 0 if beat.number != self._beats[rank].number else self._silent[rank] + 1
        self._beats = beats

    def _judge(self) -> _Verdict | None:
        """Return the verdict that the beats so far call for, if any."""
        beats = self._beats
        for rank, beat in beats.items():
            if beat.left not in ("", "done"):
                why = f"{self.cards[rank]} stopped with an error: {beat.left}"
                return _Verdict((rank,), why, ends=True, code=beat.code)
        there = [rank for rank, beat in beats.items() if beat.left != "done" and rank != self.rank]
        patience = min(_HURRY, self._patience) if self._n_broken else self._patience
        longest = max(there, key=lambda rank: self._silent[rank], default=None)
        if longest is not None and self._silent[longest] >= patience:
            since = f"for {self._silent[longest] * self._interval:.3g} s"
            how = "and its connection broke" if self._n_broken else "(train.timeout)"
            return _Verdict(
                (longest,),
                f"{self.cards[longest]} is dead or frozen: nothing was heard of it {since} {how}. What it printed "
                "last, or the system log of its machine (memory, GPU), may say why. The same command goes on from the "
                "last checkpoint.",
            )
        if self._n_broken > 3 * _HURRY:
            return _Verdict(
                (), "the connection between the ranks broke, though every rank is alive: look at the network."
            )
        if self.rank == 0 and self._n_alike >= self._patience and any(beat.turn for beat in beats.values()):
            return self._stalled(beats)
        return None

    def _stalled(self, beats: dict[int, _Beat]) -> _Verdict:
        least = min(beat.turn for beat in beats.values())
        behind = tuple(rank for rank, beat in beats.items() if beat.turn == least)
        if len(behind) == len(beats):
            behind = ()
        who = ", ".join(str(self.cards[rank]) for rank in behind) or "every rank"
        return _Verdict(
            behind,
            f"{who} has been stuck for {self.timeout:g} s (train.timeout), alive but without getting on: a device, a "
            "disk or the network hangs. If one batch can really take as long, raise train.timeout. The same command "
            "goes on from the last checkpoint.",
        )

    def _end_when_decided(self) -> None:
        while not self._over.wait(self._interval):
            self._n_unheard += 1
            if self._verdict is None and self._n_unheard >= (
                min(_HURRY, self._patience) if self._lost else self._patience
            ):
                self._verdict = self._without_store()
            if self._verdict is None:
                continue
            self._over.wait(2 * self._interval)  # the others read it meanwhile, and the main thread may find it itself
            if self._over.is_set() or self._taken:
                return
            # The main thread is inside a collective that nobody will ever answer, so it cannot raise anything.
            self._prepare_to_end(self._verdict)
            if self._speaks(self._verdict):
                print(f"nmt-train: error: {self._verdict.why}", file=sys.stderr, flush=True)
            os._exit(self._verdict.code)

    def _without_store(self) -> _Verdict:
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True):
            return _Verdict((), f"torchrun at {where}, which holds the ranks together, is dead or frozen.")
        return _Verdict((0,), f"{self.cards[0]} is dead or frozen: it holds the ranks together at {where}.")

    def _speaks(self, verdict: _Verdict) -> bool:
        return self.rank == next(rank for rank in range(len(self.cards) + 1) if rank not in verdict.blamed)

    def _prepare_to_end(self, verdict: _Verdict) -> None:
        """Kill whoever is blamed and does not end by itself, if it is a brother: torchrun would wait 30 s for it.

        Who stopped with an error has yet to say more of it than what the others were told.
        """
        mine = self.cards[self.rank]
        for rank in () if self._lost or verdict.ends else verdict.blamed:
            card = self.cards[rank]
            if rank != self.rank and card.host == mine.host and _parent_of(card.process) == mine.parent == card.parent:
                with contextlib.suppress(OSError):
                    os.kill(card.process, signal.SIGKILL)


def _parent_of(process: int) -> int | None:
    """The parent of a process, where the system tells it (Linux)."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return int(fields[1])
    except (OSError, ValueError, IndexError):
        return None
