"""The operations that models are made of: each in plain torch, and by `nmt/kernels/` where that is faster."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from nmt.kernels import linears


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
