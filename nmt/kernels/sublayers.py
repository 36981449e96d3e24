"""Norms of the residual stream. In training on a CPU each is one pass by a kernel, and so is its gradient.

The stream goes two ways at each sub-layer, past it and into it, so two gradients meet where it parts; and a sub-layer
ends with dropout and a sum. By themselves they would be cast, dropped and added up in passes of their own.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nmt.kernels import on_gpu, passes, switch
from nmt.kernels.dropping import n_drop, scale_up, seed
from nmt.kernels.linears import dtype_of_products
from nmt.kernels.norms import Dropping, Norm

_ENTERING = "entering"  # what a tensor of the residual stream holds: the same in the type that products are made in


def sum_and_norm(
    x: Tensor, more: Tensor | None, norm: nn.Module | None, *, keep_sum: bool = True
) -> tuple[Tensor, Tensor] | None:
    """x + more and the norm of that in one pass of a GPU, without gradients; None where there is none.

    keep_sum: the sum is read, too; else x is returned for it.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return None
    if norm.eps is None or not norm.elementwise_affine or not on_gpu.takes_norm(x, more, norm.weight):
        return None
    from nmt.kernels import norms_triton

    bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    its = norm.weight, bias, isinstance(norm, nn.LayerNorm), norm.eps
    if more is None or not keep_sum:
        return x, norms_triton.normed(x, more, *its)
    return norms_triton.added_and_normed(x, more, *its)


def normed(x: Tensor, norm: nn.Module) -> Tensor | None:
    """`ops.normed` by a kernel; None where none takes it."""
    known = _known(x, norm)
    return None if known is None else _part_and_norm(x, *known, x.dtype)[1]


def residual_and_input(x: Tensor, norm: nn.Module | None) -> tuple[Tensor, Tensor] | None:
    """`ops.residual_and_input` by a kernel; None where none takes it."""
    if norm is not None:
        known = _known(x, norm)
        return None if known is None else _part_and_norm(x, *known, dtype_of_products(x))
    if (entering := getattr(x, _ENTERING, None)) is not None and entering.dtype == dtype_of_products(x):
        return x, entering
    if not torch.is_grad_enabled() or not switch.takes(x) or (dtype := dtype_of_products(x)) == x.dtype:
        return None
    return _part(x, dtype)


def add_and_norm(x: Tensor, residual: Tensor, p: float, norm: nn.Module) -> Tensor | None:
    """`ops.add_and_norm` by a kernel; None where none takes it: a word decides for four elements of a row."""
    takes = switch.takes(x, residual) and (not p or x.size(-1) % 4 == 0)
    known = _known(residual, norm) if takes else None
    if known is None or residual.dtype != torch.float32:
        return None
    chances = Dropping(seed(), n_drop(p), scale_up(p)) if p else Dropping()
    enters = dtype_of_products(residual) == torch.bfloat16
    out, entering = _add_and_norm(x, residual, *known, chances, enters)
    # The next sub-layer, which is given one tensor, finds there what it would make of it: see `residual_and_input`.
    setattr(out, _ENTERING, entering)
    return out


def _known(x: Tensor, norm: nn.Module) -> Norm | None:
    """The norm as a kernel takes it, if it is in training and there is a kernel."""
    if not torch.is_grad_enabled() or not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return None
    bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    if norm.eps is None or norm.weight.dtype != torch.float32 or not switch.takes(x, norm.weight):
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


class _AddAndNorm(torch.autograd.Function):
    """Returns what goes past the next sub-layer, and what enters it, or None where that is the same. Remembers the sum,
    and mean and rate of each row."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        centred: bool,
        eps: float,
        dropping: Dropping,
        enters: bool,
    ) -> tuple[Tensor, Tensor | None]:
        norm, x_dense = Norm(weight, bias, centred, eps), x.contiguous()
        out, entering, total, moments = norm.after_sum(x_dense, residual.contiguous(), dropping, also_half=enters)
        ctx.save_for_backward(total, weight, bias, moments)
        ctx.how, ctx.through = (centred, eps), (dropping, x.dtype)
        ctx.set_materialize_grads(False)
        return out, entering

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        past, d_entering = grads
        d_out, also = (d_entering, None) if past is None else (past, d_entering)
        if d_out is None:
            return (None,) * 8
        total, weight, bias, moments = ctx.saved_tensors
        norm = Norm(weight, bias, *ctx.how)
        d_x, d_residual, d_weight, d_bias = norm.backward_of_sum(d_out, also, total, moments, *ctx.through)
        return d_x, d_residual, d_weight, d_bias if bias is not None else None, None, None, None, None


_add_and_norm: Callable[..., tuple[Tensor, Tensor | None]] = _AddAndNorm.apply


class _Part(torch.autograd.Function):
    """Cast of what enters: its gradient is added to that of what goes past as it is cast back."""

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
