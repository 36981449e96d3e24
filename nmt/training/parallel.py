"""Who computes what when several processes train one model. One process is the case of world size 1.

`torchrun` starts the processes and sets the environment; nothing here knows how. How a model lies on the devices is
in `ranks/sharding.py`, who is still alive in `ranks/watch.py`.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nmt.errors import MachineError, NmtError, RunError
from nmt.torchrun import ADDRESS, place_of
from nmt.training.compiler import import_compiler
from nmt.training.ranks import sharding, watch
from nmt.training.ranks.roll_call import Card, Store, meet
from nmt.training.ranks.sharding import Parallel
from nmt.training.ranks.watch import Watch

T = TypeVar("T")
# Nobody waits for this one: `Watch` knows better who is late. It is finite because torch wants a number.
_FOR_EVER = timedelta(days=30)


@dataclass(frozen=True)
class Ranks:
    """This process (rank) among all (world_size). watch: who is alive, where there is more than one."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    cards: list[Card] = field(default_factory=list)
    watch: Watch | None = None
    store: Store | None = None

    @property
    def is_main(self) -> bool:
        """Whether this process writes and talks."""
        return self.rank == 0

    def share(self, batches: list[T]) -> list[tuple[T, bool]]:
        """This rank's batches of an update, and whether each counts.

        Batch i goes to rank i mod world_size. Every rank gets equally many, since gradients are exchanged after the
        last: where batches run out a rank repeats one that does not count.
        """
        n_turn = -(-len(batches) // self.world_size)
        mine = [turn * self.world_size + self.rank for turn in range(n_turn)]
        return [(batches[i], True) if i < len(batches) else (batches[0], False) for i in mine]

    def add_up(self, numbers: Tensor) -> Tensor:
        """Add up a tensor over all ranks, where it is; a GPU does so while this process goes on."""
        if self.world_size > 1:
            self._next_turn()
            dist.all_reduce(numbers)
        return numbers

    def sum(self, *values: float) -> list[float]:
        """Add up numbers over all ranks."""
        if self.world_size == 1:
            return list(values)
        total = self.add_up(torch.tensor(values, dtype=torch.float64, device=_meeting_place()))
        return [float(v) for v in total.tolist()]

    def any(self, value: bool) -> bool:
        """Whether it is true on any rank: so that all ranks stop at the same update."""
        return self.sum(float(value))[0] > 0

    def tell(self, *values: float) -> list[float]:
        """What rank 0 says, on every rank; the others wait for it."""
        return self.sum(*(values if self.is_main else (0.0,) * len(values)))

    def least(self, value: float) -> float:
        """The smallest of the ranks' numbers."""
        return min(self.sum(*(value if rank == self.rank else 0.0 for rank in range(self.world_size))))

    def distribute(self, module: nn.Module, device: torch.device, parallel: Parallel) -> nn.Module:
        """The module whose backward pass averages gradients over the ranks."""
        return module if self.world_size == 1 else sharding.distribute(module, device, parallel)

    def exchange(self, module: nn.Module, *, now: bool) -> AbstractContextManager[None]:
        """The context of a backward pass: gradients are exchanged in the last one of an update only."""
        if self.world_size == 1:
            return nullcontext()
        self._next_turn()
        return sharding.exchange(module, now=now)

    def odd_ones(self, number: int) -> list[str]:
        """Ranks whose number is not that of most."""
        if self.world_size == 1:
            return []
        numbers = torch.zeros(self.world_size, dtype=torch.int64, device=_meeting_place())
        numbers[self.rank] = number
        found = self.add_up(numbers).tolist()
        usual = Counter(found).most_common(1)[0][0]
        return [str(self.cards[rank]) for rank, number in enumerate(found) if number != usual]

    @contextmanager
    def others_wait(self) -> Iterator[None]:
        """What rank 0 does in here the others wait for at the end, however long it takes, unless it dies."""
        if self.watch is None or self.store is None:
            yield
            return
        self._next_turn()
        self.watch.n_wait += 1
        key = f"wait/{self.watch.n_wait}"
        self.watch.alone = self.is_main
        yield
        self.watch.alone = False
        if self.is_main:
            self.store.set(key, "over")
        else:
            pause = 0.01
            while not self.store.check([key]):
                self.watch.check()
                time.sleep(pause)
                pause = min(0.2, 1.2 * pause)

    def _next_turn(self) -> None:
        if self.watch is not None:
            self.watch.turn += 1

    @contextmanager
    def together(self) -> Iterator[None]:
        """The life of the group. An error inside reaches all ranks; a rank that died is named by a MachineError."""
        if self.watch is None:
            yield
            return
        try:
            yield
        except BaseException as error:
            if _is_broken_connection(error):
                self.watch.find_out()
            self.watch.fail(_in_short(error), _exit_code(error))
            raise
        self.watch.leave()
        dist.destroy_process_group()


def join(
    device: torch.device, timeout: float, wants_stop: Callable[[], bool] = lambda: False
) -> tuple[Ranks, torch.device]:
    """Join the group that torchrun describes in the environment; alone without one. Returns this rank's device.

    timeout: seconds. Raises MachineError naming the ranks that do not come, and Stopped when wants_stop says so
    meanwhile, and NmtError for an environment that torchrun would not leave.
    """
    rank, world_size, local_rank = place_of(needed=ADDRESS)
    if world_size == 1:
        return Ranks(), device
    import_compiler()  # as ddp and fsdp would later, when others wait for this rank
    if device.type == "cuda":
        if local_rank >= (n_gpu := torch.cuda.device_count()):
            raise MachineError(
                f"rank {rank} is process {local_rank + 1} on this machine, which has {n_gpu} GPUs, and each process "
                f"needs one of its own: start torchrun with --nproc-per-node {n_gpu}."
            )
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    try:
        # The store is torchrun's, so this waits for no other rank, and a signal is heeded in `meet`.
        store, _, _ = next(cast(Any, dist).rendezvous("env://", timeout=timedelta(seconds=timeout)))
        store, cards = meet(store, rank, world_size, timeout, partial(watch.prepare, world_size=world_size), wants_stop)
    except dist.DistError as error:
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise MachineError(
            f"rank {rank} did not meet the others at {where} within {timeout:g} s (train.timeout): {_in_short(error)}"
        ) from error
    eye = Watch(store, rank, cards, timeout)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=cast(Any, store), rank=rank, world_size=world_size, timeout=_FOR_EVER)
    return Ranks(rank, world_size, local_rank, cards, eye, store), device


def refuse_many(flag: str) -> None:
    """Raise where torchrun started several processes for what one of them does."""
    if place_of().world_size > 1:
        raise RunError(f"{flag} is for one process: start it without torchrun.")


def _in_short(error: BaseException) -> str:
    """The first line of an error. Only those of our own say enough without their type: a KeyError is but its key."""
    line = str(error).split("\n")[0]
    return line if isinstance(error, NmtError) else f"{type(error).__name__}: {line}".removesuffix(": ")


def _exit_code(error: BaseException) -> int:
    """What a process ends with that an error ends."""
    return error.exit_code if isinstance(error, NmtError) else MachineError.exit_code


def _meeting_place() -> str:
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def _is_broken_connection(error: BaseException) -> bool:
    """Whether a collective failed because of another rank. Gloo says so in words only."""
    if isinstance(error, dist.DistError):
        return True
    words = str(error).lower()
    return isinstance(error, RuntimeError) and ("gloo" in words or "connection" in words or "nccl" in words)
