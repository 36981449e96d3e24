"""Products of states with a matrix in whole numbers of 8 bits: by a kernel of our own where the processor has AVX2 and
nothing better, else by oneDNN.

Sums are exact, and each output has a scale of its own. A processor without instructions for such sums adds several
products up in 16 bits first, for which no neighbours in a row of the matrix are too large together.
"""

import functools
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.kernels.compiler import library
from nmt.kernels.switch import room, why_not, workroom

PANEL, GROUP = 16, 8  # columns, and numbers of a sum, that are multiplied at a time
MOST = 127  # of the whole numbers from 0 on that stand for states
_LARGEST = 127  # of a matrix
# What two neighbours of one sign may come to, before they are rounded: anything, or where 255 times both has 16 bits;
# and what four may, of eight neighbours the first two of both halves, or the others, where 127 times them all has.
_PAIRS = (2.0 * _LARGEST, 127.5)
_FOUR = 256.0
_ROWS = 128  # that states are laid out for
_AS_PAIRS, _AS_FOURS = (1, 2), (2, 2, 2)  # a row's neighbours

Affine = tuple[Tensor, Tensor] | None


@functools.cache
def bytes_in_kernels() -> bool:
    """True if a kernel multiplies numbers of 8 bits: the processor has AVX2, and no instructions for such sums."""
    return not why_not() and bool(library().has_bytes())


class ByKernel:
    """x · weightᵀ + bias, (N, D) -> (N, E) fp32, by a kernel, which rounds, multiplies and adds."""

    most: ClassVar[int] = MOST  # of the whole numbers, from 0 on, that stand for states
    rounds: ClassVar[bool] = True  # states as it reads them, so that small products pay, too

    def __init__(
        self, weight: Tensor, bias: Tensor, step: float, zero: int = 0, affine: Affine = None, *, relu: bool = False
    ) -> None:
        """weight: (E, D), bias: (E,), fp32. relu: the output is a ReLU in steps of 1 / most, cut off at one, as another
        such product reads it.

        A whole number n stands for the state (n - zero) · step. affine: what states are multiplied by, and what is then
        added, (D,) both, before they are rounded; None: they only are to be rounded, or are whole numbers.
        """
        # Of each group of 8 numbers of a row the first two of both halves, and the others, have 16 bits times MOST.
        whole, scale = in_bytes(weight, _FOUR, _AS_FOURS)
        scale, unit = scale * step, self.most if relu else 1
        self._size = n_out, n_in = whole.shape
        self._held, self._laid = room(library().size_of_bytes(n_out, n_in))
        library().lay_out_bytes(self._laid, whole.contiguous(), n_out, n_in)
        of_sum = scale * unit, (bias - scale * zero * whole.sum(1)) * unit
        self._of_sum = [F.pad(one.float(), (0, -n_out % PANEL)) for one in of_sum]
        self._affine = [F.pad(one.float(), (0, -n_in % GROUP)) for one in affine] if affine else [None, None]
        self._relu = relu

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """x: fp32 or bf16, or what another product made for this one; a row in which something is not finite becomes
        NaN. plus: (N, E), which the output, if it is not for a product, is added to: in that type."""
        (n_out, n_in), n_thread = self._size, torch.get_num_threads()
        x = (x if x.dtype == torch.uint8 else x.float()).contiguous()
        beside = None if plus is None else plus.float().contiguous()
        out = (
            torch.empty(len(x), n_out + -n_out % PANEL, dtype=torch.uint8) if self._relu else torch.empty(len(x), n_out)
        )
        to = (None, None, out) if self._relu else (out, beside, None)
        rows = (x, None) if x.dtype == torch.uint8 else (None, x)
        mine = workroom(n_thread * library().room_of_bytes(n_in))
        matrix = self._laid, *self._of_sum, len(x), n_out, n_in
        library().multiply_bytes(*to, *rows, *self._affine, *matrix, mine, n_thread)
        return out if plus is None else out.to(plus.dtype)


class ByOneDnn:
    """The same by oneDNN."""

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
        """pair: what two neighbours of a row may come to; None: what this processor takes."""
        whole, self._scale = in_bytes(weight, pair or exact_pair(), _AS_PAIRS)
        self._packed = torch.ops.onednn.qlinear_prepack(whole, [_ROWS, weight.size(1)])
        self._zeros = torch.zeros(len(whole), dtype=torch.int32)
        self._bias, self._step, self._zero, self._affine = bias, step, zero, affine
        self._relu = relu

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        whole = x
        if x.dtype != torch.uint8:
            if self._affine is not None:
                whole = torch.addcmul(self._affine[1], x, self._affine[0])
            whole = whole.round().clamp_(0, self.most).to(torch.uint8)
        matrix = (self._packed, self._scale, self._zeros, self._bias)
        dtype = torch.float32 if plus is None else plus.dtype
        to = (1 / self.most, 0, torch.uint8, "relu") if self._relu else (1.0, 0, dtype, "none")
        out: Tensor = torch.ops.onednn.qlinear_pointwise(whole, self._step, self._zero, *matrix, *to, [], "")
        # A sum is not finite if one state is not, and is had sooner than a look at each.
        if not self._relu and x.dtype != torch.uint8 and not x.sum().isfinite():
            out[~x.isfinite().all(1)] = torch.nan
        return out if plus is None else plus + out


@functools.cache
def int8_product() -> type[ByKernel] | type[ByOneDnn] | None:
    """The class that multiplies here; None where nothing is exact."""
    if bytes_in_kernels():
        return ByKernel
    return ByOneDnn if exact_pair() else None


def in_bytes(weight: Tensor, most: float, neighbours: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """A matrix (E, D) in whole numbers, and what each row is to be multiplied by for the matrix itself.

    most: what neighbours of one sign may come to, before they are rounded. neighbours: the shape in which numbers of a
    row are put, of which those along the first and the last dimension are neighbours.
    """
    together = F.pad(weight, (0, -weight.size(1) % torch.Size(neighbours).numel())).view(len(weight), -1, *neighbours)
    sums = [together.clamp(min=0.0).sum((2, -1)), together.clamp(max=0.0).sum((2, -1)).abs()]
    scale = torch.maximum(weight.abs().amax(1) / _LARGEST, torch.maximum(*sums).flatten(1).amax(1) / most)
    scale = scale.clamp(min=torch.finfo(torch.float32).tiny)
    return (weight / scale.unsqueeze(1)).round().to(torch.int8), scale


@functools.cache
def exact_pair() -> float:
    """Limit of two neighbours of a row so that oneDNN's largest sums are exact: on some processors it has 16
    bits for the products of both. 0 where no limit helps, or torch has no such products.
    """
    each = torch.tensor([[1.0] * 64, [1.0, 0.0] * 32, [-1.0] * 64, [0.0, -1.0] * 32])
    most = torch.full((2, 64), ByOneDnn.most, dtype=torch.uint8)
    for pair in _PAIRS:
        whole, scale = in_bytes(each, pair, _AS_PAIRS)
        exact = ByOneDnn.most * whole.sum(1) * scale
        try:
            product = ByOneDnn(each, torch.zeros(4), 1.0, pair=pair)(most)
        except (AttributeError, RuntimeError):
            return 0.0
        if torch.allclose(product, exact):
            return pair
    return 0.0
