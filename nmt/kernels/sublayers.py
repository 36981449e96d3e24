"""Norms of the residual stream. In training on a CPU a kernel computes each norm in one pass, and its gradient, too.

The kernels also add the two gradients of the stream, which goes past each sub-layer and into it; and they fuse the
dropout and the sum at the end of a sub-layer. Separate operations would need more passes for casts, dropout and sums.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nmt.kernels import dropping, on_gpu, switch
from nmt.kernels.linears import dtype_of_products
from nmt.kernels.passes import size_of_sums
from nmt.kernels.switch import is_half, kernels, workspace

NormParameters = tuple[Tensor, Tensor | None, bool, float]  # weight, bias, True for a LayerNorm, eps


def sum_and_norm(
    x: Tensor, more: Tensor | None, norm: nn.Module | None, *, keep_sum: bool = True
) -> tuple[Tensor, Tensor] | None:
    """x + more and its norm in one pass on a GPU, without gradients; None if no kernel takes it.

    keep_sum: whether the sum is needed; if not, x is returned in its place.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return None
    if norm.eps is None or not norm.elementwise_affine or not on_gpu.takes_norm(x, more, norm.weight):
        return None
    from nmt.kernels import norms_triton

    bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    parameters = norm.weight, bias, isinstance(norm, nn.LayerNorm), norm.eps
    if more is None or not keep_sum:
        return x, norms_triton.normed(x, more, *parameters)
    return norms_triton.added_and_normed(x, more, *parameters)


def normed(x: Tensor, norm: nn.Module) -> Tensor | None:
    """`ops.normed` by a kernel; None if no kernel takes it."""
    parameters = _parameters(x, norm)
    return None if parameters is None else _residual_and_norm(x, x.dtype, *parameters)[1]


def residual_and_input(x: Tensor, norm: nn.Module | None) -> tuple[Tensor, Tensor] | None:
    """`ops.residual_and_input` by a kernel; None if no kernel takes it."""
    if norm is None:
        return (x, x.to(dtype_of_products(x))) if torch.is_grad_enabled() and switch.takes(x) else None
    parameters = _parameters(x, norm)
    return None if parameters is None else _residual_and_norm(x, dtype_of_products(x), *parameters)


def add_and_norm(x: Tensor, residual: Tensor, p: float, norm: nn.Module) -> Tensor | None:
    """`ops.add_and_norm` by a kernel; None if no kernel takes it. Dropout needs rows of a multiple of 4 elements."""
    takes = residual.dtype == torch.float32 and switch.takes(x, residual) and (not p or x.size(-1) % 4 == 0)
    parameters = _parameters(residual, norm) if takes else None
    if parameters is None:
        return None
    return _add_and_norm(x, residual, dropping.draw(p), *parameters)


def _parameters(x: Tensor, norm: nn.Module) -> NormParameters | None:
    """Return the parameters of a norm in training, as kernels take them; None if no kernel takes it."""
    if not torch.is_grad_enabled() or not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return None
    bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    if norm.eps is None or norm.weight.dtype != torch.float32 or not switch.takes(x, norm.weight):
        return None
    return norm.weight, bias, isinstance(norm, nn.LayerNorm), norm.eps


class _ResidualAndNorm(torch.autograd.Function):
    """x, and its norm in a type. Saves x, and mean and inverse deviation of each row."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dtype: torch.dtype, weight: Tensor, bias: Tensor | None, centred: bool, eps: float
    ) -> tuple[Tensor, Tensor]:
        dense = x.contiguous()
        out, moments = torch.empty_like(dense, dtype=dtype), torch.empty(2, dense.numel() // dense.size(-1))
        shape = moments.size(1), x.size(-1)
        norm = weight, bias, *moments, centred, eps
        kernels().normalise(out, is_half(out), dense, is_half(x), *norm, *shape, torch.get_num_threads())
        ctx.save_for_backward(dense, weight, bias, moments)
        ctx.centred = centred
        ctx.set_materialize_grads(False)
        return x, out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        d_residual, d_out = grads
        if d_out is None:
            return d_residual, None, None, None, None, None
        d_x, d_weight, d_bias = _gradients(ctx, d_out, None, dropping.NO_DROPOUT, d_residual)
        return d_x, None, d_weight, d_bias, None, None


_residual_and_norm: Callable[..., tuple[Tensor, Tensor]] = _ResidualAndNorm.apply


class _AddAndNorm(torch.autograd.Function):
    """The norm of residual + dropout(x), fp32. Saves the sum, and mean and inverse deviation of each row."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor,
        dropout: dropping.Draw,
        weight: Tensor,
        bias: Tensor | None,
        centred: bool,
        eps: float,
    ) -> Tensor:
        x, residual = x.contiguous(), residual.contiguous()
        out, total = torch.empty_like(residual), torch.empty_like(residual)
        moments = torch.empty(2, x.numel() // x.size(-1))
        norm = weight, bias, *moments, centred, eps
        shape = moments.size(1), x.size(-1)
        inputs = x, is_half(x), residual
        kernels().add_and_normalise(out, total, *inputs, *dropout, *norm, *shape, torch.get_num_threads())
        ctx.save_for_backward(total, weight, bias, moments)
        ctx.centred, ctx.dropout, ctx.dtype = centred, dropout, x.dtype
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_x = torch.empty_like(grads[0], dtype=ctx.dtype, memory_format=torch.contiguous_format)
        d_residual, d_weight, d_bias = _gradients(ctx, grads[0], d_x, ctx.dropout, None)
        return d_x, d_residual, None, d_weight, d_bias, None, None


_add_and_norm: Callable[..., Tensor] = _AddAndNorm.apply


def _gradients(
    ctx: Any, d_out: Tensor, d_dropped: Tensor | None, dropout: dropping.Draw, d_residual: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients of the input of the norm, of its weight and of its bias. d_residual: another gradient of the
    input, which is added. d_dropped: output for the gradient of the input behind dropout."""
    x, weight, bias, moments = ctx.saved_tensors  # read once: recomputed activations cannot be unpacked again
    d_residual = None if d_residual is None else d_residual.to(x.dtype).contiguous()
    n_row, n_col = moments.size(1), x.size(-1)
    d_x, sums, d_out = torch.empty_like(x), torch.empty(2, n_col), d_out.contiguous()
    grads = d_x, d_dropped, is_half(d_dropped), *dropout, d_out, is_half(d_out)
    inputs = x, is_half(x), d_residual, weight, *moments, ctx.centred
    scratch = workspace(size_of_sums(n_row, 2 * n_col))
    kernels().normalise_backward(*grads, *inputs, sums, scratch, n_row, n_col, torch.get_num_threads())
    return d_x, sums[0], None if bias is None else sums[1]
