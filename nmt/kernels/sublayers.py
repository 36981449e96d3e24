"""Norms of the residual stream. In training on a CPU a kernel computes each norm in one pass, and its gradient, too.

The kernels also add the two gradients of the stream, which goes past each sub-layer and into it; and they fuse the
dropout and the sum at the end of a sub-layer. Separate operations would need more passes for casts, dropout and sums.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nmt.kernels import dropping, on_gpu, switch
from nmt.kernels.passes import size_of_sums
from nmt.kernels.switch import dtype_of_products, is_half, kernels, workspace

NormParameters = tuple[Tensor, Tensor | None, bool, float]  # weight, bias, True for a LayerNorm, eps


def sum_and_norm(
    x: Tensor, addend: Tensor | None, norm: nn.Module | None, *, for_product: bool
) -> tuple[Tensor, Tensor] | None:
    """x, or x + addend, and its norm, if there is one: on a GPU without gradients, on a CPU with them. None if no
    kernel takes it. for_product: a product reads the norm, which may get the type of products; else only the norm is
    needed, and x may be returned in place of the sum."""
    if not torch.is_grad_enabled():
        parameters = None if torch.compiler.is_compiling() else _parameters(norm)
        if parameters is None or not on_gpu.takes_norm(x, addend, parameters[0]):
            return None
        from nmt.kernels import norms_triton

        return norms_triton.sum_and_norm(x, addend, *parameters, keep_sum=for_product)
    if not switch.takes(x, addend):
        return None
    parameters = _trained_parameters(norm)
    if norm is not None and parameters is None:
        return None
    total = x if addend is None else x + addend
    dtype = dtype_of_products(total) if for_product else total.dtype
    if parameters is None:
        return total, total.to(dtype)
    return _sum_and_norm(total, None, dropping.NO_DROPOUT, dtype, *parameters)


def add_and_norm(x: Tensor, residual: Tensor, p: float, norm: nn.Module) -> Tensor | None:
    """`ops.add_and_norm` by a kernel; None if no kernel takes it. Dropout needs rows of a multiple of 4 elements."""
    takes = residual.dtype == torch.float32 and switch.takes(x, residual) and (not p or x.size(-1) % 4 == 0)
    parameters = _trained_parameters(norm) if takes and torch.is_grad_enabled() else None
    if parameters is None:
        return None
    return _sum_and_norm(x, residual, dropping.draw(p), residual.dtype, *parameters)[1]


def _parameters(norm: nn.Module | None) -> NormParameters | None:
    """Return the parameters of a norm as kernels take them; None if it is another module."""
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm) or norm.eps is None or not norm.elementwise_affine:
        return None
    bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    return norm.weight, bias, isinstance(norm, nn.LayerNorm), norm.eps


def _trained_parameters(norm: nn.Module | None) -> NormParameters | None:
    """`_parameters`, if the kernels of a CPU take them."""
    parameters = _parameters(norm)
    is_taken = parameters is not None and parameters[0].dtype == torch.float32 and switch.takes(parameters[0])
    return parameters if is_taken else None


class _SumAndNorm(torch.autograd.Function):
    """x, or residual + dropout(x) in fp32, and its norm in a type. Saves the sum, and mean and inverse deviation of
    each row."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        dropout: dropping.Draw,
        dtype: torch.dtype,
        weight: Tensor,
        bias: Tensor | None,
        centred: bool,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        dense, n_col = x.contiguous(), x.size(-1)
        n_row = x.numel() // n_col
        out, moments = torch.empty_like(dense, dtype=dtype), torch.empty(2, n_row)
        norm = weight, bias, *moments, centred, eps, n_row, n_col, torch.get_num_threads()
        if residual is None:
            total = x
            kernels().normalise(out, is_half(out), dense, is_half(dense), *norm)
        else:
            total = torch.empty_like(out)
            inputs = dense, is_half(dense), residual.contiguous()
            kernels().add_and_normalise(out, total, *inputs, *dropout, *norm)
        ctx.save_for_backward(dense if residual is None else total, weight, bias, moments)
        ctx.centred, ctx.dropout, ctx.dtype_dropped = centred, dropout, None if residual is None else x.dtype
        ctx.set_materialize_grads(False)
        return total, out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        d_total, d_out = grads
        if d_out is None:
            return d_total, *(None,) * 7  # of x: the sum with a residual is read by its norm only
        x, weight, bias, moments = ctx.saved_tensors  # read once: recomputed activations cannot be unpacked again
        d_total = None if d_total is None else d_total.to(x.dtype).contiguous()
        n_row, n_col = moments.size(1), x.size(-1)
        d_x, sums, d_out = torch.empty_like(x), torch.empty(2, n_col), d_out.contiguous()
        d_dropped = None if ctx.dtype_dropped is None else torch.empty_like(d_out, dtype=ctx.dtype_dropped)
        gradients = d_x, d_dropped, is_half(d_dropped), *ctx.dropout, d_out, is_half(d_out)
        inputs = x, is_half(x), d_total, weight, *moments, ctx.centred
        scratch = workspace(size_of_sums(n_row, 2 * n_col))
        kernels().normalise_backward(*gradients, *inputs, sums, scratch, n_row, n_col, torch.get_num_threads())
        d_inputs = (d_x, None) if d_dropped is None else (d_dropped, d_x)  # of x and residual
        return *d_inputs, None, None, sums[0], None if bias is None else sums[1], None, None


_sum_and_norm: Callable[..., tuple[Tensor, Tensor]] = _SumAndNorm.apply
