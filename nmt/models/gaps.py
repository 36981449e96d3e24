"""Entries of a batch that leave while others stay: these keep their places, and close the gaps from behind."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from nmt.device import send


class Gaps(NamedTuple):
    """The first n places stay, and what lies at source, (M,), comes to lie at target, (M,): so no more is copied than
    leaves."""

    source: Tensor
    target: Tensor
    n: int

    @classmethod
    def of(cls, which: Tensor, device: torch.device) -> "Gaps":
        """which: (n,) the entries that stay, in their new order; it may be on the host."""
        here = which.cpu()
        target = (here != torch.arange(len(here))).nonzero().squeeze(1)
        source, target = send(torch.stack([here[target], target]), device)
        return cls(source, target, len(here))

    def close(self, value: Tensor, dim: int = 0) -> Tensor:
        """A tensor of all entries, which is changed: those that stay, in the same memory."""
        if len(self.target):
            wide = _in_large_numbers(value, dim)
            wide.index_copy_(dim, self.target, wide.index_select(dim, self.source))
        return value.narrow(dim, 0, self.n)

    def close_all(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`close` for tensors by name, of which some may be one and the same."""
        closed: dict[tuple[object, ...], Tensor] = {}
        for value in values.values():
            if (key := _identity(value)) not in closed:
                closed[key] = self.close(value)
        return {name: closed[_identity(value)] for name, value in values.items()}


def _in_large_numbers(value: Tensor, dim: int) -> Tensor:
    """The same memory as numbers of 8 bytes, if it can be seen so: a GPU moves them one by one."""
    n_share = 8 // value.itemsize
    if value.dim() <= dim + 1 or value.is_complex() or value.stride(-1) != 1:
        return value
    if any(n % n_share for n in (value.size(-1), value.storage_offset(), *value.stride()[:-1])):
        return value
    return value.view(torch.int64)


def _identity(value: Tensor) -> tuple[object, ...]:
    """What two tensors have in common that are the same numbers in the same memory."""
    return value.data_ptr(), value.shape, value.stride(), value.dtype


def closing(done: Tensor, n: int | None = None) -> Tensor:
    """Which entries of a batch stay so that few are moved: (B,) bool, True for those that leave -> (n,).

    n: how many places are left, as many as stay or more; what then fills the places up are some that are done.
    """
    n = int((~done).sum()) if n is None else n
    which = torch.arange(n, device=done.device)
    late = (~done[n:]).nonzero().squeeze(1) + n
    gap = done[:n].nonzero().squeeze(1)[: len(late)]
    return which.index_copy_(0, gap, late)
