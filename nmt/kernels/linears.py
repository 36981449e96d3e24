"""Linear layers that read the same input as one product, in training and in a search on a GPU; and two around a ReLU,
in training on a CPU.

Under autocast each layer by itself would cast its input and the gradient of that, and gradients of one input would be
added up in between; sums over rows, for the biases, would take passes of their own. The parameters stay where they are.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.kernels import passes, products, switch


def fused_linear(x: Tensor, layers: Sequence[nn.Module]) -> tuple[Tensor, ...] | None:
    """`ops.fused_linear` in one product; None where the layers are better asked one by one."""
    if x.is_cuda:
        return _beside_each_other(x, layers)
    plain = _trained_by_kernels(x, layers)
    biases = [layer.bias for layer in plain if layer.bias is not None]
    if not plain or (biases and len(biases) < len(plain)):
        return None
    return _fused_linear(x, len(plain), *(layer.weight for layer in plain), *biases)


def _beside_each_other(x: Tensor, layers: Sequence[nn.Module]) -> tuple[Tensor, ...] | None:
    """The same on a GPU, where one wide product takes less time than narrow ones, and so do those of its gradient.
    Without gradients where the matrices lie so: see `lay_beside_each_other`."""
    plain = [layer for layer in layers if type(layer) is nn.Linear]
    biases = [layer.bias for layer in plain if layer.bias is not None]
    if len(plain) < max(2, len(layers)) or 0 < len(biases) < len(plain):
        return None
    join = torch.cat if torch.is_grad_enabled() else _as_they_lie
    weight, bias = join([layer.weight for layer in plain]), join([*biases]) if biases else None
    if weight is None or (biases and bias is None):
        return None
    return torch.split(F.linear(x, weight, bias), [layer.out_features for layer in plain], -1)


def lay_beside_each_other(layers: Sequence[nn.Linear]) -> None:
    """Have matrices lie one after the other in memory, and biases likewise, so that they can be read as one. The layers
    get parameters of their own, which are not to be trained or saved; one alone keeps what it has."""
    for name in ("weight", "bias"):
        parts = [getattr(layer, name) for layer in layers]
        if len(parts) > 1 and all(part is not None for part in parts):
            whole = torch.cat([part.detach() for part in parts])
            for layer, part in zip(layers, torch.split(whole, [len(part) for part in parts]), strict=True):
                setattr(layer, name, nn.Parameter(part, requires_grad=False))


def linear_relu_linear(x: Tensor, first: nn.Module, second: nn.Module) -> Tensor | None:
    """`ops.linear_relu_linear` with what is between the products; None where the layers are better asked one by one."""
    plain = _trained_by_kernels(x, (first, second))
    if not plain or any(layer.bias is None for layer in plain):
        return None
    return _linear_relu_linear(x, *(parameter for layer in plain for parameter in (layer.weight, layer.bias)))


def _trained_by_kernels(x: Tensor, layers: Sequence[nn.Module]) -> list[nn.Linear]:
    """The layers, if all are plain ones that are in training, and kernels are switched on; else none."""
    plain = [layer for layer in layers if type(layer) is nn.Linear]
    if len(plain) < len(layers) or not torch.is_grad_enabled():
        return []
    return plain if switch.takes(x, *(layer.weight for layer in plain)) else []


def dtype_of_products(x: Tensor) -> torch.dtype:
    """Type of the products of x, on a CPU."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype


class _FusedLinear(torch.autograd.Function):
    """Remembers what entered the product. Its outputs lie side by side in memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, n: int, *parameters: Tensor) -> tuple[Tensor, ...]:
        dtype, weights, biases = dtype_of_products(x), parameters[:n], parameters[n:]
        rows = x.to(dtype).flatten(0, -2)
        factors = products.as_factors(rows, weights)
        ctx.save_for_backward(rows, *factors)
        ctx.x_dtype, ctx.dtype, ctx.widths = x.dtype, weights[0].dtype, [len(one) for one in weights]
        ctx.has_bias = bool(biases)
        with torch.autocast("cpu", enabled=False):
            out = products.linear(rows, factors, torch.cat(biases).float() if biases else None)
        return torch.split(out.view(*x.shape[:-1], -1), ctx.widths, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, *factors = ctx.saved_tensors
        d_out = products.widened(_side_by_side(grads).flatten(0, -2).contiguous())
        d_x = products.product_by(d_out, factors).to(ctx.x_dtype).view(*grads[0].shape[:-1], -1)
        d_weight = products.weight_gradient(d_out, rows, ctx.dtype)
        d_bias = torch.split(passes.column_sums(d_out).to(ctx.dtype), ctx.widths) if ctx.has_bias else ()
        return d_x, None, *torch.split(d_weight, ctx.widths), *d_bias


_fused_linear: Callable[..., tuple[Tensor, ...]] = _FusedLinear.apply


class _LinearReluLinear(torch.autograd.Function):
    """Remembers what entered each product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w_1: Tensor, b_1: Tensor, w_2: Tensor, b_2: Tensor) -> Tensor:
        dtype = dtype_of_products(x)
        rows = x.to(dtype).flatten(0, -2)
        (first,) = products.as_factors(rows, [w_1])
        with torch.autocast("cpu", enabled=False):
            # Not oneDNN's product with the activation in it, in which NaN becomes 0.
            hidden = products.linear(rows, [first], b_1.float(), relu=True)
            (second,) = products.as_factors(hidden, [w_2])
            out = products.linear(hidden, [second], b_2.float(), zeros=True)
        ctx.save_for_backward(rows, hidden, first, second)
        ctx.x_dtype, ctx.dtype = x.dtype, w_1.dtype
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        rows, hidden, first, second = map(products.widened, ctx.saved_tensors)
        d_out = products.widened(grads[0].flatten(0, -2).contiguous())
        d_w_2, d_b_2 = products.weight_gradient(d_out, hidden, ctx.dtype, zeros_in="x"), passes.column_sums(d_out)
        d_hidden, d_b_1 = products.product_where(d_out, second, hidden)  # back through the ReLU, too
        d_w_1 = products.weight_gradient(d_hidden, rows, ctx.dtype, zeros_in="d_out")
        d_x = products.product_by(d_hidden, [first], zeros=True)
        by_parameter = (grad.to(ctx.dtype) for grad in (d_w_1, d_b_1, d_w_2, d_b_2))
        return d_x.to(ctx.x_dtype).view(*grads[0].shape[:-1], -1), *by_parameter


_linear_relu_linear: Callable[..., Tensor] = _LinearReluLinear.apply


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Parts (..., d) in one (..., sum of d): as they are in memory, if they lie so."""
    whole = _as_they_lie(parts, -1)
    return torch.cat(list(parts), -1) if whole is None else whole


def _as_they_lie(parts: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    """Parts as one tensor, one after the other along `dim`, if they lie so in memory: no copy."""
    first = parts[0]
    storage, place, stride = first.untyped_storage().data_ptr(), first.storage_offset(), first.stride()
    for part in parts:
        if (part.untyped_storage().data_ptr(), part.storage_offset(), part.stride()) != (storage, place, stride):
            return None
        place += part.size(dim) * stride[dim]
    shape = list(first.shape)
    shape[dim] = sum(part.size(dim) for part in parts)
    return first.as_strided(shape, stride)
