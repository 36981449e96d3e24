"""Fused linear layers: layers with the same input as one product, in training and in a search on a GPU; and two layers
around a ReLU, in training on a CPU.

Without fusion, under autocast, each layer casts its input and the gradient of it, the gradients of a shared input are
added in extra passes, and so are the rows for the biases. The parameters stay in their tensors.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.kernels import passes, products
from nmt.kernels.switch import dtype_of_products, takes


def fused_linear(x: Tensor, layers: Sequence[nn.Module]) -> tuple[Tensor, ...] | None:
    """`ops.fused_linear` in one product; None if separate layers are better."""
    if x.is_cuda:
        return _beside_each_other(x, layers)
    linears = _trained_by_kernels(x, layers)
    biases = [layer.bias for layer in linears if layer.bias is not None]
    if not linears or (biases and len(biases) < len(linears)):
        return None
    return _fused_linear(x, len(linears), *(layer.weight for layer in linears), *biases)


def _beside_each_other(x: Tensor, layers: Sequence[nn.Module]) -> tuple[Tensor, ...] | None:
    """`fused_linear` on a GPU, where one wide product and its gradient are faster than narrow ones. Without gradients
    only if the matrices are adjacent in memory: see `lay_beside_each_other`."""
    linears = [layer for layer in layers if type(layer) is nn.Linear]
    biases = [layer.bias for layer in linears if layer.bias is not None]
    if len(linears) < max(2, len(layers)) or 0 < len(biases) < len(linears):
        return None
    join = torch.cat if torch.is_grad_enabled() else _view_as_one
    weight, bias = join([layer.weight for layer in linears]), join([*biases]) if biases else None
    if weight is None or (biases and bias is None):
        return None
    return torch.split(F.linear(x, weight, bias), [layer.out_features for layer in linears], -1)


def lay_beside_each_other(layers: Sequence[nn.Linear]) -> None:
    """Move the weights of layers to adjacent memory, and the biases, too, so that they can be read as one. The layers
    get new parameters, not for training or saving; a single layer is left unchanged."""
    for name in ("weight", "bias"):
        parameters = [getattr(layer, name) for layer in layers]
        if len(parameters) > 1 and all(parameter is not None for parameter in parameters):
            joined = torch.cat([parameter.detach() for parameter in parameters])
            parts = torch.split(joined, [len(parameter) for parameter in parameters])
            for layer, part in zip(layers, parts, strict=True):
                setattr(layer, name, nn.Parameter(part, requires_grad=False))


def linear_relu_linear(x: Tensor, first: nn.Module, second: nn.Module) -> Tensor | None:
    """`ops.linear_relu_linear` with fused bias and ReLU; None if separate layers are better."""
    linears = _trained_by_kernels(x, (first, second))
    if not linears or any(layer.bias is None for layer in linears):
        return None
    return _linear_relu_linear(x, *(parameter for layer in linears for parameter in (layer.weight, layer.bias)))


def _trained_by_kernels(x: Tensor, layers: Sequence[nn.Module]) -> list[nn.Linear]:
    """Return the layers if all are plain linear layers in training and kernels take them; else []."""
    linears = [layer for layer in layers if type(layer) is nn.Linear]
    if len(linears) < len(layers) or not torch.is_grad_enabled():
        return []
    return linears if takes(x, *(layer.weight for layer in linears)) else []


class _FusedLinear(torch.autograd.Function):
    """Several linear layers of one input. Saves the input of the product. The outputs are adjacent in memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, n: int, *parameters: Tensor) -> tuple[Tensor, ...]:
        dtype, weights, biases = dtype_of_products(x), parameters[:n], parameters[n:]
        rows = x.to(dtype).flatten(0, -2)
        factors = products.as_factors(rows, weights)
        ctx.save_for_backward(rows, *factors)
        ctx.x_dtype, ctx.dtype, ctx.widths = x.dtype, weights[0].dtype, [len(weight) for weight in weights]
        ctx.has_bias = bool(biases)
        with torch.autocast("cpu", enabled=False):
            bias = torch.cat(biases).float() if biases else None
            out = products.product(rows, *(factor.t() for factor in factors), side_by_side=True, bias=bias)
        return torch.split(out.view(*x.shape[:-1], -1), ctx.widths, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, *factors = ctx.saved_tensors
        joined = _view_as_one(grads, -1)
        joined = torch.cat(grads, -1) if joined is None else joined
        d_out = products.widened(joined.flatten(0, -2).contiguous())
        d_x = products.product(d_out, *factors).to(ctx.x_dtype).view(*grads[0].shape[:-1], -1)
        d_weight = products.weight_gradient(d_out, rows).to(ctx.dtype)
        d_bias = torch.split(passes.column_sums(d_out).to(ctx.dtype), ctx.widths) if ctx.has_bias else ()
        return d_x, None, *torch.split(d_weight, ctx.widths), *d_bias


_fused_linear: Callable[..., tuple[Tensor, ...]] = _FusedLinear.apply


class _LinearReluLinear(torch.autograd.Function):
    """Two linear layers around a ReLU. Saves the input of each product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w_1: Tensor, b_1: Tensor, w_2: Tensor, b_2: Tensor) -> Tensor:
        dtype = dtype_of_products(x)
        rows = x.to(dtype).flatten(0, -2)
        (first,) = products.as_factors(rows, [w_1])
        with torch.autocast("cpu", enabled=False):
            # Not the product of oneDNN with a fused activation, which turns NaN into 0.
            hidden = products.product(rows, first.t(), bias=b_1.float(), relu=True)
            (second,) = products.as_factors(hidden, [w_2])
            out = products.product(hidden, second.t(), bias=b_2.float(), zeros=True)
        ctx.save_for_backward(rows, hidden, first, second)
        ctx.x_dtype, ctx.dtype = x.dtype, w_1.dtype
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        rows, hidden, first, second = map(products.widened, ctx.saved_tensors)
        d_out = products.widened(grads[0].flatten(0, -2).contiguous())
        d_w_2, d_b_2 = products.weight_gradient(d_out, hidden, zeros_in="x"), passes.column_sums(d_out)
        d_hidden, d_b_1 = products.product_where(d_out, second, hidden)  # includes the gradient of the ReLU
        d_w_1 = products.weight_gradient(d_hidden, rows, zeros_in="d_out")
        d_x = products.product(d_hidden, first, zeros=True)
        by_parameter = (grad.to(ctx.dtype) for grad in (d_w_1, d_b_1, d_w_2, d_b_2))
        return d_x.to(ctx.x_dtype).view(*grads[0].shape[:-1], -1), *by_parameter


_linear_relu_linear: Callable[..., Tensor] = _LinearReluLinear.apply


def _view_as_one(parts: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    """Return a view of parts, concatenated along `dim`, if they are adjacent in memory; else None."""
    first = parts[0]
    storage, offset, stride = first.untyped_storage().data_ptr(), first.storage_offset(), first.stride()
    for part in parts:
        if (part.untyped_storage().data_ptr(), part.storage_offset(), part.stride()) != (storage, offset, stride):
            return None
        offset += part.size(dim) * stride[dim]
    shape = list(first.shape)
    shape[dim] = sum(part.size(dim) for part in parts)
    return first.as_strided(shape, stride)
