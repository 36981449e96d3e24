"""Dropout fused with the addition of the residual, with cheap random numbers: a word of 64 bits decides for four
elements, so the rate is a multiple of 2^-16.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nmt.kernels import passes, switch

# One call of dropout: its seed, how many of the N_CHANCE values drop an element, and the factor of the others.
Draw = tuple[int, int, float]
NO_DROPOUT: Draw = 0, 0, 1.0


def draw(p: float) -> Draw:
    """Draw a call of dropout of rate p; its seed comes from the generator of torch."""
    if not p:
        return NO_DROPOUT
    seed, n_drop = int(torch.empty((), dtype=torch.int64).random_()), round(p * switch.N_CHANCE)
    return seed, n_drop, switch.N_CHANCE / max(1, switch.N_CHANCE - n_drop)


def drop_add(x: Tensor, residual: Tensor | None, p: float) -> Tensor | None:
    """`ops.dropout` in one pass; None if no kernel takes it."""
    if not switch.takes(x, *(() if residual is None else (residual,))):
        return None
    return _drop_add(x, residual, draw(p))


class _DropAdd(torch.autograd.Function):
    """residual + x · keep · scale by a kernel. The backward pass draws `keep` again instead of storing it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, dropout: Draw) -> Tensor:
        ctx.dropout, ctx.x_dtype = dropout, x.dtype
        dtype = x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype)
        return passes.drop_add(x, residual, *dropout, dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (grad,) = grad_outputs
        dropout: Draw = ctx.dropout
        grad_x = passes.drop_add(grad, None, *dropout, ctx.x_dtype)
        return grad_x, grad if ctx.needs_input_grad[1] else None, None


_drop_add: Callable[[Tensor, Tensor | None, Draw], Tensor] = _DropAdd.apply
