"""Building blocks of all model families: dropout, the residual stream, a convolution, compaction of a batch."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt import ops
from nmt.device import send


class Dropout(nn.Dropout):
    """`ops.dropout` in training, the identity in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        """Set some elements of x to zero and scale up the others; in evaluation return x."""
        return ops.dropout(x, self.rate)

    @property
    def rate(self) -> float:
        """Share of dropped elements in the present mode."""
        return self.p if self.training else 0.0


class Stream(NamedTuple):
    """Residual stream: the sum of x and a pending output of the last sub-layer, (..., D) both.

    A GPU adds and normalises in one pass, so the norm of the next sub-layer computes the sum.
    """

    x: Tensor
    pending: Tensor | None = None

    def total(self) -> Tensor:
        """The sum, (..., D)."""
        return self.x if self.pending is None else self.x + self.pending


def after_sublayer(residual: Tensor, output: Tensor, dropout: Dropout, norm: nn.Module | None) -> Stream:
    """Add the output of a sub-layer to its residual, (..., D) both. norm: that at its end, with norm 'post'."""
    if norm is not None:
        return Stream(ops.add_and_norm(output, residual, dropout.rate, norm))
    return Stream(ops.dropout(output, dropout.rate, residual)) if dropout.rate else Stream(residual, output)


def convolved(x: Tensor, sentence: Tensor, weight: Tensor) -> Tensor:
    """Return x[l] + sum over i of weight[i] · x[l + i - k // 2], where the neighbours are of the same sentence.

    x: (B, L, D); sentence: (B, L), number of the sentence at each position, with another number at padding; a row may
    hold several sentences end to end; weight: (k, D), k odd. Returns (B, L, D) in the type of x.
    """
    n, half, out = x.size(1), weight.size(0) // 2, x
    padded_x, padded_sentence = F.pad(x, (0, 0, half, half)), F.pad(sentence, (half, half), value=-1)
    for i, weight_row in enumerate(weight.to(x.dtype)):
        is_same = (padded_sentence[:, i : i + n] == sentence).unsqueeze(2)
        out = out + weight_row * padded_x[:, i : i + n].masked_fill(~is_same, 0.0)
    return out


class Gaps(NamedTuple):
    """Compaction of a batch: the entries at source, (M,), move into the gaps at target, (M,), that finished ones leave.

    stay: (n,) entries that stay, in their new order, on the host.
    """

    source: Tensor
    target: Tensor
    stay: Tensor

    @classmethod
    def of(cls, done: Tensor, device: torch.device, n: int | None = None) -> "Gaps":
        """Gaps of a batch on a device. done: (B,) bool, True for finished entries, on any device. n: number of entries
        to keep, at least the unfinished ones; finished ones fill the rest. None: the unfinished ones."""
        done = done.cpu()
        n = int((~done).sum()) if n is None else n
        source = (~done[n:]).nonzero().squeeze(1) + n
        target = done[:n].nonzero().squeeze(1)[: len(source)]
        stay = torch.arange(n).index_copy_(0, target, source)
        source, target = send(torch.stack([source, target]), device)
        return cls(source, target, stay)

    def close(self, value: Tensor) -> Tensor:
        """Compact a tensor of all entries in place, and return a view of those that stay."""
        if len(self.target):
            value.index_copy_(0, self.target, value.index_select(0, self.source))
        return value[: len(self.stay)]

    def close_all(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`close` tensors by name. No two of them may share memory."""
        return {name: self.close(value) for name, value in values.items()}
