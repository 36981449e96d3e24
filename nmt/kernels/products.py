"""Matrix products on a CPU, by torch or by kernels: fp32 in panels, optionally skipping zeros of a factor, and bf16
(`half_products.py`).

On a processor without bf16 instructions, where torch takes ten times as long for bf16 as for fp32, bf16 is widened to
fp32: the product of two bf16 numbers is exact in fp32, and sums are rounded to bf16 at their end as before.

Shapes: N rows, D and E columns.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import torch
from torch import Tensor

from nmt.kernels import half_products
from nmt.kernels.compiler import library
from nmt.kernels.passes import add_bias, add_to, column_sums
from nmt.kernels.switch import allocate, is_half, takes, why_not, workspace

_NARROW = 64  # columns of small matrices for which kernels are no faster than torch
MAX_RELATIVE_ERROR = 4  # of a product by kernels, in errors of an fp32 product by torch


@functools.cache
def fp32_in_kernels() -> bool:
    """True if kernels multiply fp32: the processor has AVX2 but not AVX-512, and a test product is exact enough."""
    if why_not() or not library().has_panels():
        return False
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(64, 512, generator=generator), torch.randn(512, 64, generator=generator)
    with torch.autocast("cpu", enabled=False):
        exact = a.double() @ b.double()
        expected, error = ((c - exact).abs().max() for c in (a @ b, _multiply(torch.empty(64, 64), a, b)))
    return bool(error < MAX_RELATIVE_ERROR * expected)


@functools.cache
def bf16_in_fp32() -> bool:
    """True if bf16 factors are widened to fp32."""
    return not why_not() and not library().multiplies_half()


def widened(x: Tensor) -> Tensor:
    """Cast x to the type of its products, once for several products."""
    return x.float() if is_half(x) and takes(x) and bf16_in_fp32() else x


def product(
    a: Tensor,
    *parts: Tensor,
    side_by_side: bool = False,
    out: Tensor | None = None,
    bias: Tensor | None = None,
    relu: bool = False,
    zeros: bool = False,
) -> Tensor:
    """a · b, (N, D) and (D, E) -> (N, E), in `out` if given. parts: b, or what `as_factors` made of it: cut along D, or
    along E if side_by_side. bias: (E,) fp32, is added, and with relu the ReLU taken, for tensors that kernels take.
    zeros: a may have many zeros, which kernels then skip; the result is the same to the bit for finite numbers."""
    if half_products.takes_product(a, parts):
        return half_products.multiply(a, parts, side_by_side=side_by_side, out=out, bias=bias, relu=relu)
    (b,) = parts
    if _are_widened(a, b):
        wide = product(widened(a), widened(b), bias=bias, relu=relu, zeros=zeros)
        return wide.to(a.dtype) if out is None else out.copy_(wide)
    if _in_kernels(a, b):
        out = torch.empty(len(a), b.size(1)) if out is None else out
        return _multiply(out, a, b, bias=bias, relu=relu, zeros=zeros)
    result = torch.mm(a, b, out=out)
    # Not torch.addmm, which first fills the output with the bias, in a pass of its own.
    return result if bias is None else add_bias(result, bias, relu=relu)


def product_of_each(a: Tensor, b: Tensor, *, symmetric: bool) -> Tensor | None:
    """`ops.product_of_each`, computing one half of symmetric results; None if torch is as fast."""
    if b.size(2) <= _NARROW or not _in_kernels(a, b):
        return None
    a, n_thread = a.contiguous(), torch.get_num_threads()
    b_dense = b.mT.is_contiguous()
    b = b if b_dense else b.contiguous()
    out = torch.empty(*a.shape[:2], b.size(2))
    scratch = workspace(n_thread * library().room_of_thread())
    library().multiply_each(out, a, b, b_dense, symmetric, *out.shape, a.size(2), scratch, n_thread)
    return out


def as_factors(x: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """Prepare the weights (E, D) of layers with the input x for `product`, and for the gradient of x: unchanged if
    kernels take them, else one matrix of the type of x, concatenated along E."""
    if half_products.takes_weights(x, weights):
        return list(weights)
    weights = [weight.to(x.dtype) for weight in weights]
    return weights if len(weights) == 1 else [torch.cat(weights)]


class LaidOut:
    """A constant fp32 weight (E, D), in the layout of the kernels. Only if `fp32_in_kernels`."""

    def __init__(self, weight: Tensor) -> None:
        self.shape = weight.shape
        self._weight = weight = weight.contiguous()
        n_out, n_in = weight.shape
        self._buffer, self._address = allocate(library().size_laid_out(n_out, n_in))
        library().lay_out(self._address, weight, n_in, 1, n_out, n_in)

    def __deepcopy__(self, _: Any) -> Self:
        return self  # constant, and a copy would have the address of this buffer

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x · weightT + bias, (..., D) -> (..., E). x may have many zeros, as in `product`."""
        rows = x.reshape(-1, x.size(-1))
        out = torch.empty(len(rows), self.shape[0])
        out = _multiply(out, rows, self._weight.t(), laid_out=self._address, bias=bias, zeros=True)
        return out.view(*x.shape[:-1], -1)


def prepacked_linear(weight: Tensor) -> Callable[[Tensor, Tensor | None], Tensor] | None:
    """Function that multiplies by a fixed weight (E, D): (..., D), bias (E,) or None -> (..., E). By kernels for fp32,
    or by oneDNN; None if neither is available."""
    if not weight.is_cpu or weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    try:
        _by_onednn(weight[:2])(weight[:2], None)  # a test: two rows of the matrix times themselves
    except (AttributeError, RuntimeError):
        return None
    return LaidOut(weight).linear if weight.dtype == torch.float32 and fp32_in_kernels() else _by_onednn(weight)


def _by_onednn(weight: Tensor) -> Callable[[Tensor, Tensor | None], Tensor]:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
    return lambda x, bias: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


def product_where(a: Tensor, b: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """a · b, (N, D) and (D, E) -> (N, E), with zeros where `kept`, (N, E), is zero; and the column sums of the result,
    (E,) fp32. b may be a weight from `as_factors`."""
    if half_products.takes_product(a, [b]):
        sums = torch.empty(b.size(1))
        return half_products.multiply(a, [b], kept=kept, sums=sums), sums
    if _are_widened(a, b, kept):
        out, sums = product_where(widened(a), widened(b), widened(kept))
        return out.to(a.dtype), sums
    out = product(a, b)
    return out, column_sums(out, kept)


def weight_gradient(
    d_out: Tensor, x: Tensor, total: Tensor | None = None, *, zeros_in: Literal["d_out", "x", ""] = ""
) -> Tensor:
    """d_outT · x, (N, E)T · (N, D) -> (E, D): the gradient of a weight, in the type of the product. total: (E, D) fp32,
    to which it is added instead. zeros_in: the factor that may have many zeros, as in `product`."""
    if _are_widened(d_out, x):
        d_out, x = widened(d_out), widened(x)
    if is_half(d_out) and is_half(x) and d_out.numel() and x.numel() and takes(x) and half_products.in_kernels():
        # oneDNN is much slower if the first factor is transposed than otherwise.
        out = torch.empty(d_out.size(1), x.size(1)) if total is None else total
        assert out.is_contiguous() and out.dtype == torch.float32
        d_out, x, n_thread = d_out.contiguous(), x.contiguous(), torch.get_num_threads()
        narrow, wide = sorted((d_out, x), key=lambda factor: factor.size(1))
        scratch = workspace(n_thread * library().room_of_gradient())
        shape = narrow.size(1), wide.size(1), len(x)
        library().weight_gradient(out, total is not None, narrow is x, narrow, wide, *shape, scratch, n_thread)
        return out
    if total is None:
        if zeros_in == "x" and _in_kernels(d_out, x):
            return product(x.t(), d_out, zeros=True).t().contiguous()
        return product(d_out.t(), x, zeros=zeros_in == "d_out")
    if _in_kernels(d_out, x):
        return _multiply(total, d_out.t(), x, add=True)
    if is_half(x):
        add_to(total, d_out.t() @ x)
        return total
    return total.addmm_(d_out.t(), x)


def _are_widened(*factors: Tensor) -> bool:
    """True if any of the factors must be widened."""
    return any(map(is_half, factors)) and takes(*factors) and bf16_in_fp32()


def _in_kernels(a: Tensor, b: Tensor) -> bool:
    """True if kernels multiply these fp32 factors."""
    return takes(a, b) and not is_half(a) and not is_half(b) and bool(a.numel() and b.numel()) and fp32_in_kernels()


def _multiply(
    out: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    laid_out: int | None = None,
    add: bool = False,
    bias: Tensor | None = None,
    relu: bool = False,
    zeros: bool = False,
) -> Tensor:
    """Multiply by a kernel. laid_out: address of b in the layout of `LaidOut`, if there is one."""
    assert out.is_contiguous() and out.dtype == torch.float32
    (a, a_stride, a_dense), (b, b_stride, rows_dense) = _as_factor(a), _as_factor(b)
    n_thread = torch.get_num_threads()
    left, right = (a, a_stride, a_dense), (b, b_stride, not rows_dense)
    scratch = workspace(n_thread * library().room_of_thread())
    library().multiply(out, add, *left, *right, laid_out, bias, relu, zeros, *out.shape, a.size(1), scratch, n_thread)
    return out


def _as_factor(x: Tensor) -> tuple[Tensor, int, bool]:
    """Return a matrix with dense rows or columns, copied if neither are dense; their stride; and True for rows."""
    row_stride, column_stride = x.stride()
    if column_stride == 1:
        return x, row_stride, True
    if row_stride == 1:
        return x, column_stride, False
    return x.contiguous(), x.size(1), True
