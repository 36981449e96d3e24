"""Who computes what when several processes train one model. One process is the case of world size 1.

`torchrun` starts the processes and sets the environment; nothing here knows how.
"""

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nmt.errors import RunError

T = TypeVar("T")
# Long enough for a validation on rank 0, short enough that a dead rank does not hold the others for hours.
_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True)
class Ranks:
    """This process (rank) among all (world_size)."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

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
            dist.all_reduce(numbers)
        return numbers

    def sum(self, *values: float) -> list[float]:
        """Add up numbers over all ranks."""
        if self.world_size == 1:
            return list(values)
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        total = self.add_up(torch.tensor(values, dtype=torch.float64, device=device))
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

    def wrap(self, module: nn.Module, device: torch.device) -> nn.Module:
        """The module whose backward pass averages gradients over the ranks."""
        if self.world_size == 1:
            return module
        ids = [device.index] if device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(module, device_ids=ids, gradient_as_bucket_view=True)

    def exchange(self, module: nn.Module, *, now: bool) -> AbstractContextManager[object]:
        """The context of a backward pass: gradients are exchanged in the last one of an update only."""
        if now or self.world_size == 1:
            return nullcontext()
        assert isinstance(module, nn.parallel.DistributedDataParallel)
        context: AbstractContextManager[object] = module.no_sync()
        return context

    def leave(self) -> None:
        """Close the group. Only after success: after an error the others must not be waited for."""
        if self.world_size > 1:
            dist.destroy_process_group()


def join(device: torch.device) -> tuple[Ranks, torch.device]:
    """Join the group that torchrun describes in the environment; alone without one. Returns this rank's device."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        return Ranks(), device
    ranks = Ranks(int(os.environ["RANK"]), world_size, int(os.environ.get("LOCAL_RANK", "0")))
    if device.type == "cuda":
        device = torch.device("cuda", ranks.local_rank)
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=_TIMEOUT)
    return ranks, device


def refuse_many(flag: str) -> None:
    """Raise where torchrun started several processes for what one of them does."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RunError(f"{flag} is for one process: start it without torchrun.")


def same_everywhere(ranks: Ranks, tensors: list[Tensor]) -> bool:
    """Whether the ranks hold the same numbers, by the sum and the sum of squares of all of them."""
    if ranks.world_size == 1:
        return True
    mine = [float(sum(t.double().sum() for t in tensors)), float(sum(t.double().square().sum() for t in tensors))]
    return not ranks.any(ranks.tell(*mine) != mine)
