"""Dropout in one pass with what it is added to, with random numbers that are cheap: a word of 64 bits decides for four
elements, so the rate is a multiple of 2^-16.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nmt.kernels import passes, switch


def n_drop(p: float) -> int:
    """Of N_CHANCE values those that mean that an element is dropped."""
    return round(p * switch.N_CHANCE)


def scale_up(p: float) -> float:
    """Factor of what is kept: one over the share that is kept on average."""
    return switch.N_CHANCE / max(1, switch.N_CHANCE - n_drop(p))


def seed() -> int:
    """A seed for the words that decide in one place: torch's generator gives no more than that."""
    return int(torch.empty((), dtype=torch.int64).random_())


def drop_add(x: Tensor, residual: Tensor | None, p: float) -> Tensor | None:
    """`ops.dropout` in one pass; None where torch draws."""
    if not switch.takes(x, *(() if residual is None else (residual,))):
        return None
    return _drop_add(x, residual, seed(), n_drop(p), scale_up(p))


class _DropAdd(torch.autograd.Function):
    """residual + x · keep · scale by a kernel, which draws again in place of remembering."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, seed: int, n_drop: int, scale: float) -> Tensor:
        ctx.how, ctx.x_dtype = (seed, n_drop, scale), x.dtype
        dtype = x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype)
        return passes.drop_add(x, residual, seed, n_drop, scale, dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        (grad,) = grad_outputs
        seed, n_drop, scale = ctx.how
        grad_x = passes.drop_add(grad, None, seed, n_drop, scale, ctx.x_dtype)
        return grad_x, grad if ctx.needs_input_grad[1] else None, None, None, None


_drop_add: Callable[[Tensor, Tensor | None, int, int, float], Tensor] = _DropAdd.apply
