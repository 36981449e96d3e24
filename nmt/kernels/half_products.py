"""Products of bf16 on a CPU by kernels: outputs of linear layers, and the gradients of their inputs.

Shapes: N rows, D and E columns. The right factor is one matrix or several, of bf16, or of fp32 and converted to bf16.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from nmt.kernels.compiler import library
from nmt.kernels.switch import is_half, takes, workspace

_MIN_ROWS = 128  # for fewer rows, laying out the right factor takes too much of the time


@functools.cache
def in_kernels() -> bool:
    """True if kernels multiply bf16: the processor has instructions for it, of AVX-512 or AMX."""
    return bool(library().has_half_products())


@functools.cache
def _fits(n_sum: int, n_col: int) -> bool:
    return bool(library().takes_half(n_col, n_sum))


def takes_product(a: Tensor, parts: Sequence[Tensor]) -> bool:
    """True if kernels multiply a, (N, D), by a matrix (D, E) that is one part or a concatenation of parts, along D or
    along E."""
    if not is_half(a) or len(a) < _MIN_ROWS or not takes(a, *parts) or not in_kernels() or not a.is_contiguous():
        return False
    return all(_fits(*part.shape) for part in parts) and _fits(a.size(1), parts[0].size(1))


def takes_weights(x: Tensor, weights: Sequence[Tensor]) -> bool:
    """True if kernels multiply x, (N, D), by the weights (E, D) of layers, and the gradients of the outputs,
    (N, sum of E), by the same weights."""
    if not takes_product(x, [weight.t() for weight in weights]):
        return False
    return all(_fits(n_out, x.size(1)) for n_out in (sum(map(len, weights)), *map(len, weights)))


def multiply(
    a: Tensor,
    parts: Sequence[Tensor],
    *,
    side_by_side: bool = False,
    out: Tensor | None = None,
    bias: Tensor | None = None,
    relu: bool = False,
    kept: Tensor | None = None,
    sums: Tensor | None = None,
) -> Tensor:
    """a · b of bf16, (N, D) and (D, E) -> (N, E). Only if `takes_product`. parts: b, cut along D, or along E if
    side_by_side.

    Fused with the product: bias, (E,) fp32, is added; relu: the ReLU is taken; kept, (N, E): the output is zero where
    it is zero; sums, (E,) fp32: receives the column sums of the output.
    """
    n_row, n_sum, n_thread = len(a), a.size(1), torch.get_num_threads()
    n_col = sum(part.size(1) for part in parts) if side_by_side else parts[0].size(1)
    out = torch.empty(n_row, n_col, dtype=a.dtype) if out is None else out
    assert n_sum == (len(parts[0]) if side_by_side else sum(map(len, parts)))
    assert out.is_contiguous() and out.dtype == a.dtype and out.shape == (n_row, n_col)
    assert kept is None or (kept.is_contiguous() and kept.dtype == a.dtype)
    size = library().size_of_half(n_col, n_sum)
    laid_out = workspace(size + library().room_of_half(n_row, n_col, n_sum, n_thread))
    offset = 0
    for part in parts:
        part = part if 1 in part.stride() else part.contiguous()
        rows_dense = part.stride(1) == 1
        stride = part.stride(0) if rows_dense else part.stride(1)
        columns = offset if side_by_side else 0, part.size(1)
        rows = 0 if side_by_side else offset, len(part)
        library().lay_half(laid_out, part, is_half(part), stride, not rows_dense, *columns, *rows, n_sum, n_thread)
        offset += part.size(1) if side_by_side else len(part)
    scratch = laid_out + size
    library().multiply_half(out, a, laid_out, bias, relu, kept, sums, n_row, n_col, n_sum, scratch, n_thread)
    return out
