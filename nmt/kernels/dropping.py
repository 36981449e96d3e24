"""Dropout fused with the addition of the residual, with cheap random numbers: a word of 64 bits decides for four
elements, so the rate is a multiple of 2^-16.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nmt.kernels.switch import N_CHANCE, is_half, kernels, takes

# One call of dropout: its seed, how many of the N_CHANCE values drop an element, and the factor of the others.
Draw = tuple[int, int, float]
NO_DROPOUT: Draw = 0, 0, 1.0


def draw(p: float) -> Draw:
    """Draw a call of dropout of rate p; its seed comes from the generator of torch."""
    if not p:
        return NO_DROPOUT
    seed, n_drop = int(torch.empty((), dtype=torch.int64).random_()), round(p * N_CHANCE)
    return seed, n_drop, N_CHANCE / max(1, N_CHANCE - n_drop)


def drop_add(x: Tensor, residual: Tensor | None, p: float) -> Tensor | None:
    """`ops.dropout` in one pass; None if no kernel takes it."""
    if not takes(x, residual):
        return None
    return _drop_add(x, residual, draw(p))


def add_kept(x: Tensor, residual: Tensor | None, dropout: Draw, dtype: torch.dtype) -> Tensor:
    """residual + x · keep · scale, in `dtype`. The seed and the index of an element decide if it is kept."""
    x, residual = x.contiguous(), None if residual is None else residual.contiguous()
    out = torch.empty_like(x, dtype=dtype)
    tensors = out, is_half(out), x, is_half(x), residual, is_half(residual)
    kernels().drop_add(*tensors, x.numel(), *dropout, torch.get_num_threads())
    return out


class _DropAdd(torch.autograd.Function):
    """The backward pass draws `keep` again instead of storing it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, dropout: Draw) -> Tensor:
        ctx.dropout, ctx.x_dtype = dropout, x.dtype
        dtype = x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype)
        return add_kept(x, residual, dropout, dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (grad,) = grad_outputs
        return add_kept(grad, None, ctx.dropout, ctx.x_dtype), grad if ctx.needs_input_grad[1] else None, None


_drop_add: Callable[[Tensor, Tensor | None, Draw], Tensor] = _DropAdd.apply
