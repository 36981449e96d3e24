"""Pieces that models of any family are made of: dropout, the residual stream, a convolution, gaps in a batch."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt import ops
from nmt.device import send


class Dropout(nn.Module):
    """`ops.dropout` in training, and nothing in evaluation."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def extra_repr(self) -> str:
        return f"p={self.p}"

    def forward(self, x: Tensor) -> Tensor:
        """x with some elements zero and the others scaled up; in evaluation x itself."""
        return ops.dropout(x, self.rate)

    @property
    def rate(self) -> float:
        """The share of elements that are dropped now."""
        return self.p if self.training else 0.0


class Stream(NamedTuple):
    """The residual stream: x, and what is still to be added to it, (..., D) both.

    A GPU adds and normalises in one pass, so the sum waits for the norm of the sub-layer that reads it.
    """

    x: Tensor
    more: Tensor | None = None

    def total(self) -> Tensor:
        """The sum, (..., D)."""
        return self.x if self.more is None else self.x + self.more


def after_sublayer(x: Tensor, output: Tensor, dropout: Dropout, norm: nn.Module | None) -> Stream:
    """Residual stream after a sub-layer: x is its residual, (..., D); norm: the one at its end, with norm 'post'."""
    if norm is not None:
        return Stream(ops.add_and_norm(output, x, dropout.rate, norm))
    return Stream(ops.dropout(output, dropout.rate, x)) if dropout.rate else Stream(x, output)


def convolved(x: Tensor, sentence: Tensor, weight: Tensor) -> Tensor:
    """x[l] + sum over i of weight[i] · x[l + i - k // 2], of the neighbours in the same sentence.

    x: (B, L, D); sentence: (B, L), the one each place belongs to, of which several may lie end to end in a row, and
    another number at padding; weight: (k, D), k odd. Returns (B, L, D) in the type of x.
    """
    n, half, out = x.size(1), weight.size(0) // 2, x
    beside, of_beside = F.pad(x, (0, 0, half, half)), F.pad(sentence, (half, half), value=-1)
    for i, column in enumerate(weight.to(x.dtype)):
        near = (of_beside[:, i : i + n] == sentence).unsqueeze(2)
        out = out + column * beside[:, i : i + n].masked_fill(~near, 0.0)
    return out


class Gaps(NamedTuple):
    """Places of a batch after some left: the first n stay, and what lies at source, (M,), comes to lie at target, (M,):
    so no more is copied than leaves."""

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
            value.index_copy_(dim, self.target, value.index_select(dim, self.source))
        return value.narrow(dim, 0, self.n)

    def close_all(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`close` for tensors by name, of which some may be one and the same."""
        closed: dict[tuple[object, ...], Tensor] = {}
        found = dict[str, Tensor]()
        for name, value in values.items():
            its = value.data_ptr(), value.shape, value.stride(), value.dtype
            if its not in closed:
                closed[its] = self.close(value)
            found[name] = closed[its]
        return found


def closing(done: Tensor, n: int | None = None) -> Tensor:
    """Entries of a batch that stay, so that few are moved: (B,) bool, True for those that leave -> (n,).

    n: how many places are left, as many as stay or more; what then fills the places up are some that are done.
    """
    n = int((~done).sum()) if n is None else n
    which = torch.arange(n, device=done.device)
    late = (~done[n:]).nonzero().squeeze(1) + n
    gap = done[:n].nonzero().squeeze(1)[: len(late)]
    return which.index_copy_(0, gap, late)
