"""The operations that models are made of: each in plain torch, and by `nmt/kernels/` where that is faster."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _NoKernels:
    """A module of `nmt/kernels/` where that folder is missing: each of its functions returns None."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_args, **_named: None


try:
    from nmt.kernels import dropping, linears, passes, products, sublayers
except ImportError:
    dropping = linears = passes = products = sublayers = _NoKernels()  # type: ignore[assignment]


def linear(x: Tensor, layer: nn.Module) -> Tensor:
    """layer(x), (..., D) -> (..., d_out)"""
    (out,) = fused_linear(x, [layer])
    return out


def fused_linear(x: Tensor, layers: Sequence[nn.Module]) -> tuple[Tensor, ...]:
    """layer(x) of layers that read the same x, (..., D): one (..., d_out) for each."""
    found = linears.fused_linear(x, layers)
    return tuple(layer(x) for layer in layers) if found is None else found


def linear_relu_linear(x: Tensor, first: nn.Module, second: nn.Module) -> Tensor:
    """second(relu(first(x))), (..., D) -> (..., d_out)"""
    found: Tensor | None = linears.linear_relu_linear(x, first, second)
    return second(F.relu(first(x), inplace=True)) if found is None else found


def dropout(x: Tensor, p: float, residual: Tensor | None = None) -> Tensor:
    """dropout(x), or residual + dropout(x), of one shape. p: the rate, on a CPU rounded to a multiple of 2^-16."""
    if p:
        found = dropping.drop_add(x, residual, p)
        if found is not None:
            return found
        x = F.dropout(x, p)
    return x if residual is None else residual + x


def normed(x: Tensor, norm: nn.Module) -> Tensor:
    """norm(x), (..., D)"""
    found: Tensor | None = sublayers.normed(x, norm)
    return norm(x) if found is None else found


def residual_and_input(x: Tensor, norm: nn.Module | None) -> tuple[Tensor, Tensor]:
    """x as it goes past a sub-layer, and as it enters it: x itself, and norm(x), or x too where norm is None.

    (..., D) both. What enters may be of the type that products are made in, and so is its gradient: one product should
    read it.
    """
    found = sublayers.residual_and_input(x, norm)
    return (x, x if norm is None else norm(x)) if found is None else found


def add_and_norm(x: Tensor, residual: Tensor, p: float, norm: nn.Module) -> Tensor:
    """norm(residual + dropout(x)), (..., D): the end of a sub-layer with norm 'post'. p: the rate of dropout."""
    found = sublayers.add_and_norm(x, residual, p, norm)
    return normed(dropout(x, p, residual), norm) if found is None else found


def widened(x: Tensor) -> Tensor:
    """x as it is multiplied: by kernels in fp32 in place of bf16 where the processor has no products of that."""
    found: Tensor | None = products.widened(x)
    return x if found is None else found


def product_of_each(a: Tensor, b: Tensor, *, symmetric: bool = False) -> Tensor:
    """a · b one by one, (M, N, D) and (M, D, E) -> (M, N, E). symmetric: the results are known to be."""
    found = products.product_of_each(a, b, symmetric=symmetric)
    return torch.bmm(a, b) if found is None else found


def total_norm(tensors: list[Tensor]) -> Tensor:
    """The root of the sum of all squares, 0-dim."""
    found = passes.norm(tensors)
    return torch.nn.utils.get_total_norm(tensors) if found is None else found
