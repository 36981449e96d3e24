"""Products of bf16 on a CPU in kernels: what layers make of their inputs, and the gradient of those.

N rows, D and E columns. The right factor is one matrix or several, of bf16 or of fp32, which is made bf16 on its way.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from nmt.kernels.compiler import library
from nmt.kernels.switch import half, takes, workroom

_MANY = 128  # rows, beside which laying out the right factor is little


@functools.cache
def in_kernels() -> bool:
    """True if kernels make products of bf16: the processor has instructions for them, of AVX-512 or AMX."""
    return bool(library().has_half_products())


@functools.cache
def _fits(n_sum: int, n_col: int) -> bool:
    return bool(library().takes_half(n_col, n_sum))


def takes_product(a: Tensor, parts: Sequence[Tensor]) -> bool:
    """True if kernels multiply a, (N, D), by matrices (D, E), of which several lie one below the other, or one beside
    the other."""
    if not half(a) or len(a) < _MANY or not takes(a, *parts) or not in_kernels() or not a.is_contiguous():
        return False
    return all(_fits(*part.shape) for part in parts) and _fits(a.size(1), parts[0].size(1))


def takes_weights(x: Tensor, weights: Sequence[Tensor]) -> bool:
    """True if kernels multiply x, (N, D), by the weights (E, D) of layers, and then gradients of what they made,
    (N, sum of E), by the same."""
    if not takes_product(x, [weight.t() for weight in weights]):
        return False
    return all(_fits(n, x.size(1)) for n in (sum(map(len, weights)), *map(len, weights)))


def multiply(
    a: Tensor,
    parts: Sequence[Tensor],
    *,
    beside: bool = False,
    out: Tensor | None = None,
    bias: Tensor | None = None,
    relu: bool = False,
    kept: Tensor | None = None,
    sums: Tensor | None = None,
) -> Tensor:
    """a · b of bf16, (N, D) and (D, E) -> (N, E). b is in parts, of which several lie one below the other or, `beside`,
    one beside the other; `takes_product` was asked.

    With what is done to it as it is made: bias, (E,) fp32, is added, the ReLU taken, and what is zero in `kept`,
    (N, E), made zero; the sums of its columns, (E,) fp32, go to `sums`.
    """
    n_row, n_sum, n_thread = len(a), a.size(1), torch.get_num_threads()
    n_col = sum(part.size(1) for part in parts) if beside else parts[0].size(1)
    out = torch.empty(n_row, n_col, dtype=a.dtype) if out is None else out
    assert n_sum == (len(parts[0]) if beside else sum(map(len, parts)))
    assert out.is_contiguous() and out.dtype == a.dtype and out.shape == (n_row, n_col)
    assert kept is None or (kept.is_contiguous() and kept.dtype == a.dtype)
    size = library().size_of_half(n_col, n_sum)
    laid = workroom(size + library().room_of_half(n_row, n_col, n_sum, n_thread))
    done = 0
    for part in parts:
        part = part if 1 in part.stride() else part.contiguous()
        rows_dense = part.stride(1) == 1
        stride = part.stride(0) if rows_dense else part.stride(1)
        columns = done if beside else 0, part.size(1)
        rows = 0 if beside else done, len(part)
        library().lay_half(laid, part, half(part), stride, not rows_dense, *columns, *rows, n_sum, n_thread)
        done += part.size(1) if beside else len(part)
    library().multiply_half(out, a, laid, bias, relu, kept, sums, n_row, n_col, n_sum, laid + size, n_thread)
    return out
