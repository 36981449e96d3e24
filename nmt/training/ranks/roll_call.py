"""Who takes part: the processes of a run find out about each other before they compute anything together."""

import hashlib
import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol, cast

import torch.distributed as dist

from nmt.errors import MachineError

_PAUSE = 0.05  # seconds between two looks


class Stopped(Exception):
    """Somebody wants to stop before there is anything to save."""


class Store(Protocol):
    """What is needed of torch's stores, which have no type hints: keys and values that all processes see."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def multi_get(self, keys: list[str], /) -> list[bytes]: ...

    def check(self, keys: list[str], /) -> bool: ...


@dataclass(frozen=True)
class Card:
    """A process of the run. parent: the process that started it. nonce: tells it from an earlier one of its rank."""

    rank: int
    host: str
    process: int
    parent: int
    nonce: str

    @classmethod
    def mine(cls, rank: int) -> "Card":
        return cls(rank, socket.gethostname(), os.getpid(), os.getppid(), secrets.token_hex(8))

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.process} on {self.host})"


def meet(
    store: Store,
    rank: int,
    world_size: int,
    timeout: float,
    prepare: Callable[[Store], None],
    wants_stop: Callable[[], bool] = lambda: False,
) -> tuple[Store, list[Card]]:
    """Wait for all ranks. Returns a store that only these processes use, and the card of each.

    After a restart torchrun's store still holds the keys of the dead, so that nobody could tell an old address from a
    new one. Here rank 0 writes down the cards that it finds, each rank confirms the list that has its own, and the
    list that all have confirmed names the store. `prepare` is what rank 0 does to that store before anybody else
    sees it. Raises MachineError naming the ranks that have not come, and Stopped when wants_stop says so meanwhile.
    """
    mine = Card.mine(rank)
    store.set(f"card/{rank}", json.dumps(asdict(mine)))
    # Rank 0 knows best who is missing, so it speaks first.
    deadline = time.monotonic() + timeout + (0.0 if rank == 0 else 5.0)
    while True:
        if rank == 0:
            _write_down(store, world_size)
        roster, name = _read(store, "roster") or "[]", ""
        cards = [Card(**card) for card in json.loads(roster)]
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
                raise Stopped
        # Who has confirmed waits for the word of rank 0: the others may be told to begin at this very moment.
        if (rank == 0 or not name) and wants_stop():
            if name:
                store.set("agreed", f"stopped/{name}")
            raise Stopped
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
