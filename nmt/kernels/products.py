"""Matrix products on a CPU, by torch or by kernels: of fp32 in panels, with or without the zeros of a factor, and of
bf16 (`half_products.py`).

Where the processor has no instructions for products of bf16, which then take torch ten times as long as those of fp32,
they are made of fp32: each product of two such numbers is one, to the bit, and sums are rounded as ever at their end.

N rows, D and E columns.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from nmt.kernels import half_products
from nmt.kernels.compiler import library
from nmt.kernels.passes import add_bias, add_to, column_sums, turned
from nmt.kernels.switch import half, room, takes, why_not, workroom

_NARROW = 64  # columns of matrices of which many are multiplied no faster by kernels than by torch
MAX_RELATIVE_ERROR = 4  # times that of a usual product of fp32, of what may be called one


@functools.cache
def fp32_in_kernels() -> bool:
    """True if kernels multiply fp32: the processor has AVX2 and no more, and a product shows that they are exact."""
    if why_not() or not library().has_panels():
        return False
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(64, 512, generator=generator), torch.randn(512, 64, generator=generator)
    with torch.autocast("cpu", enabled=False):
        exact = a.double() @ b.double()
        usual, error = ((found - exact).abs().max() for found in (a @ b, _multiply(torch.empty(64, 64), a, b)))
    return bool(error < MAX_RELATIVE_ERROR * usual)


@functools.cache
def bf16_in_fp32() -> bool:
    """True if products of bf16 are made of fp32."""
    return not why_not() and not library().multiplies_half()


def widened(x: Tensor) -> Tensor:
    """x in the type that it is multiplied in, for who multiplies by it more than once."""
    return x.float() if half(x) and takes(x) and bf16_in_fp32() else x


def product(a: Tensor, b: Tensor, out: Tensor | None = None, *, zeros: bool = False) -> Tensor:
    """a · b, (N, D) and (D, E) -> (N, E), in `out` if that is given. zeros: a may have many, which kernels then leave
    out: the result is the same to the bit, if all is finite."""
    if half_products.takes_product(a, [b]):
        return half_products.multiply(a, [b], out=out)
    if _are_widened(a, b):
        found = product(widened(a), widened(b), zeros=zeros)
        return found.to(a.dtype) if out is None else out.copy_(found)
    if not _in_kernels(a, b):
        return torch.mm(a, b, out=out) if out is not None else a @ b
    return _multiply(torch.empty(len(a), b.size(1)) if out is None else out, a, b, zeros=zeros)


def product_of_each(a: Tensor, b: Tensor, *, symmetric: bool) -> Tensor | None:
    """`ops.product_of_each`, half of each result where they are symmetric; None for what torch multiplies as fast."""
    if b.size(2) <= _NARROW or not _in_kernels(a, b):
        return None
    a, n_thread = a.contiguous(), torch.get_num_threads()
    b_dense = b.mT.is_contiguous()
    b = b if b_dense else b.contiguous()
    out = torch.empty(*a.shape[:2], b.size(2))
    mine = workroom(n_thread * library().room_of_thread())
    library().multiply_each(out, a, b, b_dense, symmetric, *out.shape, a.size(2), mine, n_thread)
    return out


def as_factors(x: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """The weights (E, D) of layers that read x, for `linear` and `product_by`: as they are where kernels take them so,
    or else in the type of x, and one below the other in one."""
    if half_products.takes_weights(x, weights):
        return list(weights)
    weights = [weight.to(x.dtype) for weight in weights]
    return weights if len(weights) == 1 else [torch.cat(weights)]


def linear(
    x: Tensor, weights: Sequence[Tensor], bias: Tensor | None = None, *, relu: bool = False, zeros: bool = False
) -> Tensor:
    """x · weightT + bias, (N, D), (E, D) and (E,) fp32 -> (N, E), and the ReLU of that if wanted; kernels are used.
    weights: as `as_factors` gives them. zeros: x may have many, as in `product`."""
    turned = [weight.t() for weight in weights]
    if half_products.takes_product(x, turned):
        return half_products.multiply(x, turned, beside=True, bias=bias, relu=relu)
    (weight,) = weights
    if _are_widened(x, weight):
        return linear(widened(x), [widened(weight)], bias, relu=relu, zeros=zeros).to(x.dtype)
    if _in_kernels(x, weight):
        return _multiply(torch.empty(len(x), len(weight)), x, weight.t(), bias=bias, relu=relu, zeros=zeros)
    out = x @ weight.t()
    # Not torch's addmm, which first writes biases where the product is to be added to them.
    return out if bias is None else add_bias(out, bias, relu=relu)


def product_by(d_out: Tensor, weights: Sequence[Tensor], *, zeros: bool = False) -> Tensor:
    """d_out · weight, (N, E) and (E, D) -> (N, D): the gradient of what `linear` reads by that of what it makes, with
    the same weights."""
    if half_products.takes_product(d_out, weights):
        return half_products.multiply(d_out, weights)
    (weight,) = weights
    return product(d_out, weight, zeros=zeros)


class LaidOut:
    """A weight (E, D) of fp32, which no longer changes, as kernels multiply by it; `fp32_in_kernels` was asked."""

    def __init__(self, weight: Tensor) -> None:
        self.shape = weight.shape
        self._weight = weight = weight.contiguous()
        n_out, n_in = weight.shape
        self._held, self._place = room(library().size_laid_out(n_out, n_in))
        library().lay_out(self._place, weight, n_in, 1, n_out, n_in)

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x · weightT + bias, (..., D) -> (..., E). x may have many zeros, as in `product`."""
        rows = x.reshape(-1, x.size(-1))
        out = torch.empty(len(rows), self.shape[0])
        return _multiply(out, rows, self._weight.t(), laid=self._place, bias=bias, zeros=True).view(*x.shape[:-1], -1)


def prepacked_linear(weight: Tensor) -> Callable[[Tensor, Tensor | None], Tensor] | None:
    """`ops.prepacked_linear` by kernels that multiply fp32, or by oneDNN; None where neither does."""
    if not weight.is_cpu or weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    try:
        _by_onednn(weight[:2])(weight[:2], None)  # which shows it, by two rows of the matrix times themselves
    except (AttributeError, RuntimeError):
        return None
    return LaidOut(weight).linear if weight.dtype == torch.float32 and fp32_in_kernels() else _by_onednn(weight)


def _by_onednn(weight: Tensor) -> Callable[[Tensor, Tensor | None], Tensor]:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
    return lambda x, bias: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


def product_where(a: Tensor, b: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """a · b, (N, D) and (D, E) -> (N, E), where `kept`, (N, E), is not zero, and zero elsewhere; and the sums of its
    columns, (E,) fp32. b may be a weight as `as_factors` gives it."""
    if half_products.takes_product(a, [b]):
        sums = torch.empty(b.size(1))
        return half_products.multiply(a, [b], kept=kept, sums=sums), sums
    if _are_widened(a, b, kept):
        out, sums = product_where(widened(a), widened(b), widened(kept))
        return out.to(a.dtype), sums
    out = product(a, b)
    return out, column_sums(out, kept)


def weight_gradient(
    d_out: Tensor, x: Tensor, dtype: torch.dtype, *, zeros_in: Literal["d_out", "x", ""] = ""
) -> Tensor:
    """d_outT · x, (N, E)T · (N, D) -> (E, D), in `dtype`: the gradient of a weight by those of its outputs. zeros_in:
    the one of both that may have many zeros, as in `product`."""
    if _are_widened(d_out, x):
        d_out, x = widened(d_out), widened(x)
    if _is_half_gradient(d_out, x):
        return _gradient(torch.empty(d_out.size(1), x.size(1)), d_out, x, add=False).to(dtype)
    if zeros_in == "x" and _in_kernels(d_out, x):
        return turned(product(x.t(), d_out, zeros=True)).to(dtype)
    return product(d_out.t(), x, zeros=zeros_in == "d_out").to(dtype)


def add_weight_gradient(total: Tensor, d_out: Tensor, x: Tensor) -> None:
    """Add d_outT · x, (N, E)T · (N, D), to total, (E, D) of fp32: the gradient of a weight by those of its outputs."""
    if _are_widened(d_out, x):
        d_out, x = widened(d_out), widened(x)
    if _in_kernels(d_out, x):
        _multiply(total, d_out.t(), x, add=True)
    elif _is_half_gradient(d_out, x):
        _gradient(total, d_out, x, add=True)
    elif half(x):
        add_to(total, d_out.t() @ x)
    else:
        total.addmm_(d_out.t(), x)


def _is_half_gradient(d_out: Tensor, x: Tensor) -> bool:
    """True if kernels multiply these, of bf16. oneDNN takes much longer for a product whose first factor is read by
    columns than for others."""
    return (
        takes(d_out, x) and bool(half(d_out) and half(x) and d_out.numel() and x.numel()) and half_products.in_kernels()
    )


def _gradient(out: Tensor, d_out: Tensor, x: Tensor, *, add: bool) -> Tensor:
    assert out.is_contiguous() and out.dtype == torch.float32
    d_out, x, n_thread = d_out.contiguous(), x.contiguous(), torch.get_num_threads()
    narrow, wide = sorted((d_out, x), key=lambda one: one.size(1))
    mine = workroom(n_thread * library().room_of_gradient())
    library().weight_gradient(out, add, narrow is x, narrow, wide, narrow.size(1), wide.size(1), len(x), mine, n_thread)
    return out


def _are_widened(*factors: Tensor) -> bool:
    """True if any of these is, before it is multiplied."""
    return any(map(half, factors)) and takes(*factors) and bf16_in_fp32()


def _in_kernels(a: Tensor, b: Tensor) -> bool:
    """True if kernels multiply these."""
    return takes(a, b) and not half(a) and not half(b) and bool(a.numel() and b.numel()) and fp32_in_kernels()


def _multiply(
    out: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    laid: int | None = None,
    add: bool = False,
    bias: Tensor | None = None,
    relu: bool = False,
    zeros: bool = False,
) -> Tensor:
    """laid: b as it is laid out, if it is."""
    assert out.is_contiguous() and out.dtype == torch.float32
    (a, a_stride, a_dense), (b, b_stride, rows_dense) = _as_factor(a), _as_factor(b)
    n_thread = torch.get_num_threads()
    left, right = (a, a_stride, a_dense), (b, b_stride, not rows_dense)
    mine = workroom(n_thread * library().room_of_thread())
    library().multiply(out, add, *left, *right, laid, bias, relu, zeros, *out.shape, a.size(1), mine, n_thread)
    return out


def _as_factor(x: Tensor) -> tuple[Tensor, int, bool]:
    """A matrix whose rows, or columns, are dense, copied if neither are; how far those are apart; and whether it is the
    rows."""
    of_row, of_number = x.stride()
    if of_number == 1:
        return x, of_row, True
    if of_row == 1:
        return x, of_number, False
    return x.contiguous(), x.size(1), True
