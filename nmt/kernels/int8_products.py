"""Int8 products of states with a matrix: by a kernel in C if the processor has AVX2 but no instructions for 8-bit sums,
else by oneDNN.

Sums are exact, and each output has its own scale. A processor without instructions for such sums first adds several
products in 16 bits, so the sum of neighbours in a row of the matrix is limited.
"""

import functools
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.kernels.compiler import library
from nmt.kernels.switch import allocate, why_not, workspace

PANEL, GROUP = 16, 8  # columns, and terms of a sum, that are multiplied at a time
MOST = 127  # largest integer for a state; the smallest is 0
_LARGEST = 127  # largest absolute value in a matrix
# Limits of the sum of neighbours of one sign, before rounding. Of two: none, or 255 times both fits into 16 bits. Of
# four (of eight neighbours the first two of both halves, or the last two): 127 times all of them fits into 16 bits.
_PAIRS = (2.0 * _LARGEST, 127.5)
_FOUR = 256.0
_ROWS = 128  # rows of states for which oneDNN prepares a matrix
_AS_PAIRS, _AS_FOURS = (1, 2), (2, 2, 2)  # shapes of neighbours in a row

Affine = tuple[Tensor, Tensor] | None


@functools.cache
def bytes_in_kernels() -> bool:
    """True if a kernel multiplies int8: the processor has AVX2, but no instructions for 8-bit sums."""
    return not why_not() and bool(library().has_bytes())


class ByKernel:
    """x · weightᵀ + bias, (N, D) -> (N, E) fp32, by a kernel that rounds, multiplies and adds."""

    most: ClassVar[int] = MOST  # largest integer for a state; the smallest is 0
    rounds: ClassVar[bool] = True  # the kernel rounds states as it reads them, so that small products pay, too

    def __init__(
        self, weight: Tensor, bias: Tensor, step: float, zero: int = 0, affine: Affine = None, *, relu: bool = False
    ) -> None:
        """weight: (E, D), bias: (E,), fp32. relu: the output is a ReLU, clipped at 1, as integers in steps of 1 / most:
        the input of another product.

        An integer n represents the state (n - zero) · step. affine: factor and offset of states, (D,) each, applied
        before rounding; None: states are only rounded, or are integers already.
        """
        # In each group of 8 numbers of a row, MOST times the first two of both halves, or the others, fits 16 bits.
        integers, scale = in_bytes(weight, _FOUR, _AS_FOURS)
        scale, unit = scale * step, self.most if relu else 1
        self._size = n_out, n_in = integers.shape
        self._buffer, self._address = allocate(library().size_of_bytes(n_out, n_in))
        library().lay_out_bytes(self._address, integers.contiguous(), n_out, n_in)
        scale_and_bias = scale * unit, (bias - scale * zero * integers.sum(1)) * unit
        self._scale_and_bias = [F.pad(x.float(), (0, -n_out % PANEL)) for x in scale_and_bias]
        self._affine = [F.pad(x.float(), (0, -n_in % GROUP)) for x in affine] if affine else [None, None]
        self._relu = relu

    def __deepcopy__(self, _: Any) -> Self:
        return self  # constant, and a copy would have the address of this buffer

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """x: fp32 or bf16, or the integers of another product; a row with a number that is not finite becomes NaN.

        plus: (N, E), added to an output that is not integers; the sum has the type of plus.
        """
        (n_out, n_in), n_thread = self._size, torch.get_num_threads()
        x = (x if x.dtype == torch.uint8 else x.float()).contiguous()
        summand = None if plus is None else plus.float().contiguous()
        out = (
            torch.empty(len(x), n_out + -n_out % PANEL, dtype=torch.uint8) if self._relu else torch.empty(len(x), n_out)
        )
        outputs = (None, None, out) if self._relu else (out, summand, None)
        inputs = (x, None) if x.dtype == torch.uint8 else (None, x)
        scratch = workspace(n_thread * library().room_of_bytes(n_in))
        matrix = self._address, *self._scale_and_bias, len(x), n_out, n_in
        library().multiply_bytes(*outputs, *inputs, *self._affine, *matrix, scratch, n_thread)
        return out if plus is None else out.to(plus.dtype)


class ByOneDnn:
    """The product of `ByKernel` by oneDNN."""

    most: ClassVar[int] = 255
    rounds: ClassVar[bool] = False

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        step: float,
        zero: int = 0,
        affine: Affine = None,
        *,
        relu: bool = False,
        pair: float | None = None,
    ) -> None:
        """pair: limit of the sum of two neighbours of a row; None: that of this processor."""
        integers, self._scale = in_bytes(weight, pair or exact_pair(), _AS_PAIRS)
        self._packed = torch.ops.onednn.qlinear_prepack(integers, [_ROWS, weight.size(1)])
        self._zeros = torch.zeros(len(integers), dtype=torch.int32)
        self._bias, self._step, self._zero, self._affine = bias, step, zero, affine
        self._relu = relu

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        integers = x
        if x.dtype != torch.uint8:
            if self._affine is not None:
                integers = torch.addcmul(self._affine[1], x, self._affine[0])
            integers = integers.round().clamp_(0, self.most).to(torch.uint8)
        matrix = (self._packed, self._scale, self._zeros, self._bias)
        dtype = torch.float32 if plus is None else plus.dtype
        output = (1 / self.most, 0, torch.uint8, "relu") if self._relu else (1.0, 0, dtype, "none")
        out: Tensor = torch.ops.onednn.qlinear_pointwise(integers, self._step, self._zero, *matrix, *output, [], "")
        # The sum is not finite if any state is not, and is faster than a test of each.
        if not self._relu and x.dtype != torch.uint8 and not x.sum().isfinite():
            out[~x.isfinite().all(1)] = torch.nan
        return out if plus is None else plus + out


@functools.cache
def int8_product() -> type[ByKernel] | type[ByOneDnn] | None:
    """Return the class for this processor; None if no product is exact."""
    if bytes_in_kernels():
        return ByKernel
    return ByOneDnn if exact_pair() else None


def in_bytes(weight: Tensor, most: float, neighbours: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Quantise a matrix (E, D). Returns it as integers, and the scale of each row.

    most: limit of the sum of neighbours of one sign, before rounding. neighbours: shape of a group of numbers of a row;
    those along its first and last dimension are neighbours.
    """
    groups = F.pad(weight, (0, -weight.size(1) % torch.Size(neighbours).numel())).view(len(weight), -1, *neighbours)
    sums = [groups.clamp(min=0.0).sum((2, -1)), groups.clamp(max=0.0).sum((2, -1)).abs()]
    scale = torch.maximum(weight.abs().amax(1) / _LARGEST, torch.maximum(*sums).flatten(1).amax(1) / most)
    scale = scale.clamp(min=torch.finfo(torch.float32).tiny)
    return (weight / scale.unsqueeze(1)).round().to(torch.int8), scale


@functools.cache
def exact_pair() -> float:
    """Return the limit of the sum of two neighbours of a row for which the largest sums of oneDNN are exact: on some
    processors both products are added in 16 bits. 0 if no limit helps, or if torch has no such products.
    """
    weight = torch.tensor([[1.0] * 64, [1.0, 0.0] * 32, [-1.0] * 64, [0.0, -1.0] * 32])
    states = torch.full((2, 64), ByOneDnn.most, dtype=torch.uint8)
    for pair in _PAIRS:
        integers, scale = in_bytes(weight, pair, _AS_PAIRS)
        exact = ByOneDnn.most * integers.sum(1) * scale
        try:
            product = ByOneDnn(weight, torch.zeros(4), 1.0, pair=pair)(states)
        except (AttributeError, RuntimeError):
            return 0.0
        if torch.allclose(product, exact):
            return pair
    return 0.0
