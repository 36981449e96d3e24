"""Dropout for models of any family: cheap on the CPU, and in one pass with what it is added to."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.kernels import passes, switch


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


class Dropout(nn.Module):
    """Dropout whose random numbers are cheap on the CPU, where torch draws them one by one.

    There one 64-bit word decides for four elements, so the rate is a multiple of 2^-16, and what is
    kept is divided by exactly the share that is kept on average.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.n_drop = round(p * switch.N_CHANCE)
        self.scale = switch.N_CHANCE / max(1, switch.N_CHANCE - self.n_drop)

    def extra_repr(self) -> str:
        return f"p={self.p}"

    def forward(self, x: Tensor) -> Tensor:
        """x with some elements zero and the others scaled up; in evaluation x itself."""
        if not self.is_active:
            return x
        if self._leave_to_torch(x):
            return F.dropout(x, self.p)
        if switch.takes(x):
            return _drop_add_in_kernel(x, None, self.seed(), self.n_drop, self.scale)
        return _drop_add(x, None, self._draw(x), self.scale)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + dropout(x), in one pass where that can be had."""
        if not self.is_active:
            return residual + x
        if self._leave_to_torch(x):
            return residual + F.dropout(x, self.p)
        if switch.takes(x, residual):
            return _drop_add_in_kernel(x, residual, self.seed(), self.n_drop, self.scale)
        return _drop_add(x, residual, self._draw(x), self.scale)

    def which(self, x: Tensor) -> Tensor | None:
        """Which elements of x stay: ones and zeros, of int16 and x's shape; None where all do."""
        if not self.is_active:
            return None
        if self._leave_to_torch(x):
            return torch.empty_like(x, dtype=torch.int16).bernoulli_(1 / self.scale)
        return passes.decide(x, self.seed(), self.n_drop) if switch.takes(x) else self._draw(x)

    @staticmethod
    def seed() -> int:
        """A seed for the words that decide in one place: torch's generator gives no more than that."""
        return int(torch.empty((), dtype=torch.int64).random_())

    def is_drawn_by_kernels(self, x: Tensor, residual: Tensor) -> bool:
        """Whether kernels can add dropout(x) to the residual, row by row: a word decides for four elements."""
        return switch.takes(x, residual) and (not self.is_active or x.size(-1) % 4 == 0)

    @property
    def is_active(self) -> bool:
        return self.training and self.p > 0.0

    def _leave_to_torch(self, x: Tensor) -> bool:
        return x.device.type != "cpu" or torch.compiler.is_compiling()

    def _draw(self, x: Tensor) -> Tensor:
        """Which elements of x stay: ones and zeros, int16, of x's shape."""
        n = x.numel()
        # Numpy's generator draws words in two thirds of the time of torch's.
        words = np.random.SFC64(self.seed()).random_raw(-(-n // 4))
        # Compared in place, where the result is int16 and vectorised; to bool it would be neither.
        return torch.from_numpy(words.view(np.int16)[:n]).ge_(self.n_drop - switch.N_CHANCE // 2).view(x.shape)
