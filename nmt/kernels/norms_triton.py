"""LayerNorm and RMSNorm of rows on a GPU, in Triton, in one pass with the sum that they are of. No gradients.

Shapes: N rows, D columns.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nmt.kernels.on_gpu import dense, on_its_device

_PER_WARP = 512  # numbers, of one row or of several narrow ones: two loads of 16 bytes a thread, in 16 bits


@triton.jit(do_not_specialize=["n_row"])  # sentences leave a search all the time
def _add_and_norm(
    x, more, total, normed, weight, bias, x_stride, more_stride, n_row, n_column, eps,
    CENTRED: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Some rows, whole. more, total and bias may be None."""
    row, column = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    is_column = column < n_column
    there = (row < n_row)[:, None] & is_column[None, :]
    place = row[:, None] * n_column + column[None, :]
    z = tl.load(x + row[:, None] * x_stride + column[None, :], mask=there, other=0.0).to(tl.float32)
    if more is not None:
        z += tl.load(more + row[:, None] * more_stride + column[None, :], mask=there, other=0.0).to(tl.float32)
    # Read here, where nobody waits for it yet.
    slope = tl.load(weight + column, mask=is_column, other=0.0).to(tl.float32)
    if bias is not None:
        shift = tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)
    if more is not None:
        # The norm is that of what is kept, not of what it was rounded from.
        rounded = z.to(x.dtype.element_ty)
        if total is not None:
            tl.store(total + place, rounded, mask=there)
        z = rounded.to(tl.float32)
    if CENTRED:
        z = tl.where(there, z - (tl.sum(z, 1) / n_column)[:, None], 0.0)
    rate = tl.rsqrt(tl.sum(z * z, 1) / n_column + eps)
    z = z * rate[:, None] * slope[None, :]
    if bias is not None:
        z += shift[None, :]
    tl.store(normed + place, z.to(normed.dtype.element_ty), mask=there)


def normed(x: Tensor, more: Tensor | None, weight: Tensor, bias: Tensor | None, centred: bool, eps: float) -> Tensor:
    """(x + more - mean) · rate · weight + bias of each row, where rate is one by the root of the variance and eps:
    (..., D), in x's type, in which the sum is rounded first. Without centring the mean is taken for 0.

    x, more: (..., D) of one type. weight, bias: (D,).
    """
    return _start(x, more, None, weight, bias, centred, eps)


def added_and_normed(
    x: Tensor, more: Tensor, weight: Tensor, bias: Tensor | None, centred: bool, eps: float
) -> tuple[Tensor, Tensor]:
    """x + more, (..., D), and what `normed` makes of them."""
    total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return total, _start(x, more, total, weight, bias, centred, eps)


def _start(
    x: Tensor, more: Tensor | None, total: Tensor | None, weight: Tensor, bias: Tensor | None, centred: bool, eps: float
) -> Tensor:
    """Writes the sum into `total`, where there is one, and returns its norm."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    n_column = x.size(-1)
    x = dense(x.reshape(-1, n_column))
    more = None if more is None else dense(more.reshape(-1, n_column))
    # What a program has follows from the width alone: a row is the same in any company.
    width = triton.next_power_of_2(n_column)
    n_each = max(1, _PER_WARP // width)
    with on_its_device(x):
        _add_and_norm[(triton.cdiv(len(x), n_each),)](
            x, more, total, out, dense(weight), None if bias is None else dense(bias),
            x.stride(0), 0 if more is None else more.stride(0), len(x), n_column, eps,
            CENTRED=centred, ROWS=n_each, WIDTH=width, num_warps=max(1, n_each * width // _PER_WARP),
        )  # fmt: skip
    return out
