"""Each place and its neighbours, weighted column by column: a depthwise convolution, with its residual.

Nothing here multiplies matrices, and what costs is passing over memory: the gradient is written out, since what is
derived of slices of a padded copy fills whole tensors with zeros for each neighbour.

Shapes: B sentences, L places, D columns, k neighbours, of which the one in the middle is the place itself.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def convolved(x: Tensor, there: Tensor, weight: Tensor) -> Tensor:
    """x[l] + sum over i of weight[i] · x[l + i - k // 2], of the neighbours that are there.

    x: (B, L, D); there: (B, L, 1), False at padding; weight: (k, D), k odd. Returns (B, L, D) in the type of x.
    """
    return _convolved(x, there, weight.to(x.dtype))


def convolved_within(x: Tensor, sentence: Tensor, weight: Tensor) -> Tensor:
    """What `convolved` returns, of neighbours in the same sentence: several may lie end to end in a row.

    x: (B, L, D); sentence: (B, L), which one each place belongs to, negative at padding; weight: (k, D), k odd.
    A compiler makes one pass of it.
    """
    n, half, out = x.size(1), weight.size(0) // 2, x
    beside, of_beside = F.pad(x, (0, 0, half, half)), F.pad(sentence, (half, half), value=-1)
    for i, column in enumerate(weight.to(x.dtype)):
        near = (of_beside[:, i : i + n] == sentence).unsqueeze(2)
        out = out + column * beside[:, i : i + n].masked_fill(~near, 0.0)
    return out


class _Convolved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, weight: Tensor) -> Tensor:
        seen, out = x * there, x.clone()
        for i, place, beside in _neighbours(x.size(1), weight.size(0)):
            out[:, place].addcmul_(seen[:, beside], weight[i])
        ctx.save_for_backward(seen, there, weight)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, Tensor]:
        (d_out,) = grads
        seen, there, weight = ctx.saved_tensors
        d_seen, d_weight = torch.zeros_like(d_out), torch.zeros_like(weight)
        for i, place, beside in _neighbours(seen.size(1), weight.size(0)):
            d_seen[:, beside].addcmul_(d_out[:, place], weight[i])
            d_weight[i] = (d_out[:, place] * seen[:, beside]).sum((0, 1))
        return d_seen.mul_(there).add_(d_out), None, d_weight


_convolved: Callable[[Tensor, Tensor, Tensor], Tensor] = _Convolved.apply


def _neighbours(n: int, k: int) -> Iterator[tuple[int, slice, slice]]:
    """For each of k neighbours, the places of n that have it, and where it is."""
    for i in range(k):
        ahead = i - k // 2
        first, end = max(0, -ahead), min(n, n - ahead)
        if first < end:
            yield i, slice(first, end), slice(first + ahead, end + ahead)
