"""LayerNorm and RMSNorm of rows on a GPU, in Triton, fused with a sum of two inputs. No gradients.

Shapes: N rows, D columns.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nmt.kernels.on_gpu import dense, on_its_device

_PER_WARP = 512  # numbers, of one row or of several narrow ones: two loads of 16 bytes per thread, in 16 bits


@triton.jit(do_not_specialize=["n_row"])  # it changes whenever a sentence leaves a search
def _add_and_norm(
    x, more, total, normed, weight, bias, x_stride, more_stride, n_row, n_column, eps,
    CENTRED: tl.constexpr, N_ROW: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program for several whole rows. more, total and bias may be None."""
    row, column = tl.program_id(0).to(tl.int64) * N_ROW + tl.arange(0, N_ROW), tl.arange(0, WIDTH)
    is_column = column < n_column
    mask = (row < n_row)[:, None] & is_column[None, :]
    place = row[:, None] * n_column + column[None, :]
    z = tl.load(x + row[:, None] * x_stride + column[None, :], mask=mask, other=0.0).to(tl.float32)
    if more is not None:
        z += tl.load(more + row[:, None] * more_stride + column[None, :], mask=mask, other=0.0).to(tl.float32)
    # Loaded before they are needed, to hide the latency.
    slope = tl.load(weight + column, mask=is_column, other=0.0).to(tl.float32)
    if bias is not None:
        shift = tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)
    if more is not None:
        # The norm is that of the rounded sum, which is stored.
        rounded = z.to(x.dtype.element_ty)
        if total is not None:
            tl.store(total + place, rounded, mask=mask)
        z = rounded.to(tl.float32)
    if CENTRED:
        z = tl.where(mask, z - (tl.sum(z, 1) / n_column)[:, None], 0.0)
    rate = tl.rsqrt(tl.sum(z * z, 1) / n_column + eps)
    z = z * rate[:, None] * slope[None, :]
    if bias is not None:
        z += shift[None, :]
    tl.store(normed + place, z.to(normed.dtype.element_ty), mask=mask)


def sum_and_norm(
    x: Tensor,
    more: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    centred: bool,
    eps: float,
    *,
    keep_sum: bool = True,
) -> tuple[Tensor, Tensor]:
    """x + more and its norm, (..., D) both: (x + more - mean) · rate · weight + bias of each row, with
    rate = 1 / sqrt(variance + eps), in the type of x, to which the sum is rounded first. If not centred, the mean is
    taken as 0.

    x, more: (..., D) of one type. weight, bias: (D,). keep_sum: if False, x is returned in place of the sum.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = torch.empty_like(out) if keep_sum and more is not None else None
    n_column = x.size(-1)
    rows = dense(x.reshape(-1, n_column))
    more = None if more is None else dense(more.reshape(-1, n_column))
    # The work of a program depends only on the width: the result of a row does not depend on the other rows.
    width = triton.next_power_of_2(n_column)
    n_row = max(1, _PER_WARP // width)  # of a program
    with on_its_device(x):
        _add_and_norm[(triton.cdiv(len(rows), n_row),)](
            rows, more, total, out, dense(weight), None if bias is None else dense(bias),
            rows.stride(0), 0 if more is None else more.stride(0), len(rows), n_column, eps,
            CENTRED=centred, N_ROW=n_row, WIDTH=width, num_warps=max(1, n_row * width // _PER_WARP),
        )  # fmt: skip
    return x if total is None else total, out
