"""Norms of the residual stream. In training on a CPU each is one pass by a kernel, and so is its gradient.

The stream goes two ways at each sub-layer, past it and into it, so two gradients meet where it parts; and a sub-layer
ends with dropout and a sum. By themselves they would be cast, dropped and added up in passes of their own.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nmt.kernels import on_gpu, switch
from nmt.kernels.dropping import n_drop, scale_up, seed
from nmt.kernels.linears import dtype_of_products
from nmt.kernels.passes import size_of_sums
from nmt.kernels.switch import half, switched_on, workroom

Known = tuple[Tensor, Tensor | None, bool, float]  # of a norm: weight, bias, True for a LayerNorm, eps
_NO_DROPOUT = 0, 0, 1.0  # seed, of N_CHANCE values those that are dropped, and the factor of others


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
    return None if known is None else _part_and_norm(x, x.dtype, *known)[1]


def residual_and_input(x: Tensor, norm: nn.Module | None) -> tuple[Tensor, Tensor] | None:
    """`ops.residual_and_input` by a kernel; None where none takes it."""
    if norm is None:
        return (x, x.to(dtype_of_products(x))) if torch.is_grad_enabled() and switch.takes(x) else None
    known = _known(x, norm)
    return None if known is None else _part_and_norm(x, dtype_of_products(x), *known)


def add_and_norm(x: Tensor, residual: Tensor, p: float, norm: nn.Module) -> Tensor | None:
    """`ops.add_and_norm` by a kernel; None where none takes it: a word decides for four elements of a row."""
    takes = residual.dtype == torch.float32 and switch.takes(x, residual) and (not p or x.size(-1) % 4 == 0)
    known = _known(residual, norm) if takes else None
    if known is None:
        return None
    return _add_and_norm(x, residual, (seed(), n_drop(p), scale_up(p)) if p else _NO_DROPOUT, *known)


def _known(x: Tensor, norm: nn.Module) -> Known | None:
    """The norm as a kernel takes it, if it is in training and there is a kernel."""
    if not torch.is_grad_enabled() or not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return None
    bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    if norm.eps is None or norm.weight.dtype != torch.float32 or not switch.takes(x, norm.weight):
        return None
    return norm.weight, bias, isinstance(norm, nn.LayerNorm), norm.eps


class _PartAndNorm(torch.autograd.Function):
    """x, and its norm in a type. Remembers its input, and mean and rate of each row."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dtype: torch.dtype, weight: Tensor, bias: Tensor | None, centred: bool, eps: float
    ) -> tuple[Tensor, Tensor]:
        dense = x.contiguous()
        out, moments = torch.empty_like(dense, dtype=dtype), torch.empty(2, dense.numel() // dense.size(-1))
        shape = moments.size(1), x.size(-1)
        how = weight, bias, *moments, centred, eps
        switched_on().normalise(out, half(out), dense, half(x), *how, *shape, torch.get_num_threads())
        ctx.save_for_backward(dense, weight, bias, moments)
        ctx.centred = centred
        ctx.set_materialize_grads(False)
        return x, out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        past, d_out = grads
        if d_out is None:
            return past, None, None, None, None, None
        d_x, d_weight, d_bias = _gradients(ctx, d_out, None, _NO_DROPOUT, past)
        return d_x, None, d_weight, d_bias, None, None


_part_and_norm: Callable[..., tuple[Tensor, Tensor]] = _PartAndNorm.apply


class _AddAndNorm(torch.autograd.Function):
    """The norm of residual + dropout(x), fp32. Remembers the sum, and mean and rate of each row."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor,
        dropping: tuple[int, int, float],
        weight: Tensor,
        bias: Tensor | None,
        centred: bool,
        eps: float,
    ) -> Tensor:
        x, residual = x.contiguous(), residual.contiguous()
        out, total = torch.empty_like(residual), torch.empty_like(residual)
        moments = torch.empty(2, x.numel() // x.size(-1))
        how = *dropping, weight, bias, *moments, centred, eps
        shape = moments.size(1), x.size(-1)
        switched_on().add_and_normalise(out, total, x, half(x), residual, *how, *shape, torch.get_num_threads())
        ctx.save_for_backward(total, weight, bias, moments)
        ctx.centred, ctx.dropping, ctx.dtype = centred, dropping, x.dtype
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_x = torch.empty_like(grads[0], dtype=ctx.dtype, memory_format=torch.contiguous_format)
        d_residual, d_weight, d_bias = _gradients(ctx, grads[0], d_x, ctx.dropping, None)
        return d_x, d_residual, None, d_weight, d_bias, None, None


_add_and_norm: Callable[..., Tensor] = _AddAndNorm.apply


def _gradients(
    ctx: Any, d_out: Tensor, dropped: Tensor | None, dropping: tuple[int, int, float], beside: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients of what is normalised, of weight and bias. beside: another one of the first, to be added to it.
    dropped: where the first goes as it goes back through dropout."""
    x, weight, bias, moments = ctx.saved_tensors  # once: activations that are computed anew cannot be unpacked again
    beside = None if beside is None else beside.to(x.dtype).contiguous()
    n_row, n_col = moments.size(1), x.size(-1)
    d_x, sums, d_out = torch.empty_like(x), torch.empty(2, n_col), d_out.contiguous()
    grads = d_x, dropped, half(dropped), *dropping, d_out, half(d_out)
    how = x, half(x), beside, weight, *moments, ctx.centred
    mine = workroom(size_of_sums(n_row, 2 * n_col))
    switched_on().normalise_backward(*grads, *how, sums, mine, n_row, n_col, torch.get_num_threads())
    return d_x, sums[0], None if bias is None else sums[1]
