"""Dropout fused with the addition of the residual, with cheap random numbers: a word of 64 bits decides for four
elements, so the rate is a multiple of 2^-16.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nmt.kernels import passes, switch


def n_drop(p: float) -> int:
    """Return how many of the N_CHANCE values drop an element."""
    return round(p * switch.N_CHANCE)


def scale_up(p: float) -> float:
    """Return the factor of elements that are kept: one over their share on average."""
    return switch.N_CHANCE / max(1, switch.N_CHANCE - n_drop(p))


def seed() -> int:
    """Draw a seed for one call of dropout from the generator of torch."""
    return int(torch.empty((), dtype=torch.int64).random_())


def drop_add(x: Tensor, residual: Tensor | None, p: float) -> Tensor | None:
    """`ops.dropout` in one pass; None if no kernel takes it."""
    if not switch.takes(x, *(() if residual is None else (residual,))):
        return None
    return _drop_add(x, residual, seed(), n_drop(p), scale_up(p))


class _DropAdd(torch.autograd.Function):
    """residual + x · keep · scale by a kernel. The backward pass draws `keep` again instead of storing it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, seed: int, n_drop: int, scale: float) -> Tensor:
        ctx.dropout, ctx.x_dtype = (seed, n_drop, scale), x.dtype
        dtype = x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype)
        return passes.drop_add(x, residual, seed, n_drop, scale, dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        (grad,) = grad_outputs
        seed, n_drop, scale = ctx.dropout
        grad_x = passes.drop_add(grad, None, seed, n_drop, scale, ctx.x_dtype)
        return grad_x, grad if ctx.needs_input_grad[1] else None, None, None, None


_drop_add: Callable[[Tensor, Tensor | None, int, int, float], Tensor] = _DropAdd.apply
