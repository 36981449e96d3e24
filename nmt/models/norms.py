"""Norms of the residual stream. In training on a CPU each is one pass by a kernel, and so is its gradient.

The stream goes two ways at each sub-layer, past it and into it, so two gradients meet where it parts. By themselves
they would be cast and added up in passes of their own.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nmt.models.fused_linear import dtype_of_products
from nmt.native import kernels, passes
from nmt.native.norms import Norm


class RMSNorm(nn.RMSNorm):
    """nn.RMSNorm that under autocast computes as wide as its weight, where torch would warn and be slow."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


def normed(x: Tensor, norm: nn.Module) -> Tensor:
    """norm(x), (..., D) -> the same"""
    known = _known(x, norm)
    if known is None:
        found: Tensor = norm(x)
        return found
    return _part_and_norm(x, *known, x.dtype)[1]


def parted(x: Tensor, norm: nn.Module | None) -> tuple[Tensor, Tensor]:
    """x as it goes past a sub-layer, and as it enters it: x itself, and norm(x), or x too where norm is None.

    (..., D) both. What enters may be of the type that products are made in, and so is its gradient: one product should
    read it.
    """
    if norm is not None:
        known = _known(x, norm)
        return (x, norm(x)) if known is None else _part_and_norm(x, *known, dtype_of_products(x))
    if not torch.is_grad_enabled() or not kernels.takes(x) or (dtype := dtype_of_products(x)) == x.dtype:
        return x, x
    return _part(x, dtype)


def _known(x: Tensor, norm: nn.Module) -> Norm | None:
    """The norm as a kernel takes it, if it is in training and there is a kernel."""
    if not torch.is_grad_enabled() or not isinstance(norm, nn.LayerNorm | RMSNorm):
        return None
    bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    if norm.eps is None or norm.weight.dtype != torch.float32 or not kernels.takes(x, norm.weight):
        return None
    return Norm(norm.weight, bias, isinstance(norm, nn.LayerNorm), norm.eps)


class _PartAndNorm(torch.autograd.Function):
    """Remembers its input, and mean and rate of each row."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, centred: bool, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        dense = x.contiguous()
        out, moments = Norm(weight, bias, centred, eps).forward(dense, dtype)
        ctx.save_for_backward(dense, weight, bias, moments)
        ctx.how = centred, eps
        ctx.set_materialize_grads(False)
        return x, out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        past, d_out = grads
        if d_out is None:
            return past, None, None, None, None, None
        x, weight, bias, moments = ctx.saved_tensors
        d_x, d_weight, d_bias = Norm(weight, bias, *ctx.how).backward(d_out, x, moments, past)
        return d_x, d_weight, d_bias if bias is not None else None, None, None, None


_part_and_norm: Callable[..., tuple[Tensor, Tensor]] = _PartAndNorm.apply


class _Part(torch.autograd.Function):
    """What enters is cast, and its gradient is added to that of what goes past as it is cast back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        ctx.dtype = x.dtype
        ctx.set_materialize_grads(False)
        return x, x.to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None]:
        past, d_out = grads
        if past is None or d_out is None:
            return past if d_out is None else d_out.to(ctx.dtype), None
        return passes.drop_add(d_out, past, 0, 0, 1.0, ctx.dtype), None


_part: Callable[[Tensor, torch.dtype], tuple[Tensor, Tensor]] = _Part.apply
