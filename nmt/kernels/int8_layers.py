"""Layers in 8-bit integers for inference on a CPU.

8-bit integers are faster than bf16, but need a range. `Affine` is the spread of an input; that of a hidden unit follows
from the length of its row. `_range` sets the number of standard deviations in a range. So quantisation needs no data,
and a sentence's states do not depend on its batch. Numbers beyond a range are clipped. Each output has its own scale,
for its row of the matrix; sums are exact (`int8_products`).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.kernels import int8_products

# Weight and bias, (D,) each, of the LayerNorm that an input comes from: its numbers are states of variance one, times
# weight, plus bias. An input from elsewhere that is spread alike has such numbers, too.
Affine = tuple[Tensor, Tensor]

# Ranges of normalised states and of hidden units: the smallest, in standard deviations, and the factor by which a range
# exceeds this quantile on a text of random subwords. Hidden units reach further on a text that makes sense.
MIN_RANGES = (4.0, 6.0)
_MARGINS = (1.25, 2.0)
_QUANTILE = 0.999
_TINY = torch.finfo(torch.float32).tiny

Product = int8_products.ByKernel | int8_products.ByOneDnn
# Quantisation of states: step, zero and affine, as the classes of `int8_products` take them.
Quantisation = tuple[float, int, Affine | None]


class Int8Linear:
    """layer(x), (N, D) -> (N, E) in fp32."""

    def __init__(self, layer: nn.Linear, affine: Affine, sample: Tensor | None = None) -> None:
        """sample: its input on some text, from which the range is set; None: the smallest range."""
        self.range = MIN_RANGES[0] if sample is None else _range(_states_of(affine, sample), MIN_RANGES[0], _MARGINS[0])
        product: Any = int8_products.int8_product()
        self._product: Product = product(*_folded(layer, affine), *_quantisation(affine, self.range, product.most))

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x)


class Int8FeedForward:
    """x + second(relu(first(norm(x)))), or with norm 'post' without this norm, (N, D) -> (N, D)."""

    def __init__(
        self, first: nn.Linear, second: nn.Linear, affine: Affine, eps: float | None, sample: Tensor | None = None
    ) -> None:
        """affine: of the norm, or with norm 'post' of that of the sub-layer before. eps: of the norm; None with norm
        'post'. sample: as in `Int8Linear`."""
        w_1, b_1 = _folded(first, affine)
        w_2, b_2 = _folded(second)
        self.range, hidden_range = MIN_RANGES
        if sample is not None:
            if eps is None:
                states = _states_of(affine, sample)
            else:
                states = F.layer_norm(sample.float(), sample.shape[-1:], eps=eps)
            hidden = F.relu(F.linear(states, w_1, b_1)) - b_1.clamp(min=0.0)
            self.range = _range(states, MIN_RANGES[0], _MARGINS[0])
            hidden_range = _range(hidden / w_1.norm(dim=1).clamp(min=_TINY), MIN_RANGES[1], _MARGINS[1])
        product: Any = int8_products.int8_product()
        # Each hidden unit is divided by its maximum, and its column of the second matrix is multiplied by it.
        maximum = (hidden_range * w_1.norm(dim=1) + b_1.clamp(min=0.0)).clamp(min=_TINY)
        quantisation = _quantisation(affine if eps is None else None, self.range, product.most)
        if eps is not None:  # the norm quantises its output, by these in place of its weight and bias
            step, zero, _ = quantisation
            self._gain, self._shift = torch.full_like(b_2, 1 / step), torch.full_like(b_2, zero)
        self._first: Product = product(w_1 / maximum.unsqueeze(1), b_1 / maximum, *quantisation, relu=True)
        self._second: Product = product(w_2 * maximum, b_2, 1 / product.most)
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        states = x if self._eps is None else F.layer_norm(x, x.shape[-1:], self._gain, self._shift, self._eps)
        return self._second(self._first(states), plus=x)


def spread_of_outputs(layer: nn.Linear, affine: Affine) -> Affine:
    """Return the spread of the outputs of a layer, (E,) each. That of means of them is at most as large."""
    weight, bias = _folded(layer, affine)
    return weight.norm(dim=1), bias


def _range(numbers: Tensor, minimum: float, margin: float) -> float:
    """Range that numbers need, in standard deviations. Rounded to halves, so that rounding errors rarely change it."""
    sizes = numbers.abs().flatten().nan_to_num(0.0, 0.0)  # the search reports numbers that are not finite
    quantile = sizes.kthvalue(max(1, int(_QUANTILE * len(sizes)))).values.item()
    return max(minimum, margin * (round(2 * quantile) / 2))


def _states_of(affine: Affine, x: Tensor) -> Tensor:
    """States of variance one before weight and bias of the norm, whose output is x."""
    gain, shift = _inverse(affine)
    return x.float() * gain + shift


def _folded(layer: nn.Linear, affine: Affine | None = None) -> tuple[Tensor, Tensor]:
    """Weight and bias in fp32; if the input comes from a norm, the weight and bias of that are folded in."""
    weight = layer.weight.detach().float()
    bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach().float()
    if affine is None:
        return weight, bias
    gain, shift = (x.detach().float() for x in affine)
    return weight * gain, bias + weight @ shift


def _inverse(affine: Affine) -> Affine:
    """Gain and shift that turn a norm's output into its states before weight and bias."""
    weight, bias = (x.detach().float() for x in affine)
    gain = torch.where(weight.abs() > 1e-6, 1 / weight, 0.0)  # a column of weight 0 is its bias alone
    return gain, -bias * gain


def _quantisation(affine: Affine | None, state_range: float, most: int) -> Quantisation:
    """Quantisation of a norm's output into 0 … most; affine None: the norm itself is to quantise."""
    zero = (most + 1) // 2
    step = state_range / (zero - 1)
    if affine is None:
        return step, zero, None
    gain, shift = _inverse(affine)
    return step, zero, (gain / step, shift / step + zero)
