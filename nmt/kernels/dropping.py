"""Dropout in one pass with what it is added to, with random numbers that are cheap on a CPU, where torch draws them one
by one: there a word of 64 bits decides for four elements, so the rate is a multiple of 2^-16.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
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
    if _torch_draws(x):
        return None
    if switch.takes(x) if residual is None else switch.takes(x, residual):
        return _drop_add_in_kernel(x, residual, seed(), n_drop(p), scale_up(p))
    return _drop_add(x, residual, draw(x, p), scale_up(p))


def which(x: Tensor, p: float) -> Tensor | None:
    """Draw the elements of x that stay: ones and zeros, of int16 and x's shape; None where all do."""
    if not p:
        return None
    if _torch_draws(x):
        return torch.empty_like(x, dtype=torch.int16).bernoulli_(1 / scale_up(p))
    return passes.decide(x, seed(), n_drop(p)) if switch.takes(x) else draw(x, p)


def draw(x: Tensor, p: float) -> Tensor:
    """Draw them by numpy: ones and zeros, int16, of x's shape."""
    n = x.numel()
    # Numpy's generator draws words in two thirds of the time of torch's.
    words = np.random.SFC64(seed()).random_raw(-(-n // 4))
    # Compared in place, where the result is int16 and vectorised; to bool it would be neither.
    return torch.from_numpy(words.view(np.int16)[:n]).ge_(n_drop(p) - switch.N_CHANCE // 2).view(x.shape)


def _torch_draws(x: Tensor) -> bool:
    return x.device.type != "cpu" or torch.compiler.is_compiling()


def dropped(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    """x · keep · scale. keep: ones and zeros, of x's shape, and of another type."""
    # The scale travels as a number: in a half-precision tensor it would be off by a thousandth.
    return keep.to(x.dtype).mul_(x).mul_(scale)


class _DropAdd(torch.autograd.Function):
    """residual + x · keep · scale in one pass, remembering two bytes an element."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, keep: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(keep)
        ctx.scale, ctx.x_dtype = scale, x.dtype
        if residual is None:
            return dropped(x, keep, scale)
        wide = torch.promote_types(x.dtype, residual.dtype)
        factor = keep.to(wide)
        return torch.addcmul(residual.to(wide), x.to(wide), factor, value=scale, out=factor)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        (grad,) = grad_outputs
        (keep,) = ctx.saved_tensors
        grad_x = keep.to(ctx.x_dtype).mul_(grad).mul_(ctx.scale)
        return grad_x, grad if ctx.needs_input_grad[1] else None, None, None


_drop_add: Callable[[Tensor, Tensor | None, Tensor, float], Tensor] = _DropAdd.apply


class _DropAddInKernel(torch.autograd.Function):
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


_drop_add_in_kernel: Callable[[Tensor, Tensor | None, int, int, float], Tensor] = _DropAddInKernel.apply
