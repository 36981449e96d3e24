"""The kernels that normalise rows, called with tensors: LayerNorm, and RMSNorm, where rows are not `centred`.

What is allocated here is returned. N rows, D columns.
"""

from ctypes import c_float, c_int, c_int64
from typing import NamedTuple

import torch
from torch import Tensor

from nmt.native.kernels import half, place, switched_on


class Norm(NamedTuple):
    """(x - mean) · rate · weight + bias of each row: rate is one by the root of the variance and eps.

    weight, bias: (D,) fp32. Without centring the mean is taken for 0; bias may be None.
    """

    weight: Tensor
    bias: Tensor | None
    centred: bool
    eps: float

    def forward(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(..., D) -> the same in `dtype`, and mean and rate of each row, (2, N), for the gradient."""
        assert x.is_contiguous()
        out, moments = torch.empty_like(x, dtype=dtype), torch.empty(2, x.numel() // x.size(-1))
        switched_on().normalise(
            place(out),
            c_int(half(out)),
            place(x),
            c_int(half(x)),
            place(self.weight),
            None if self.bias is None else place(self.bias),
            *(place(one) for one in moments),
            c_int(self.centred),
            c_float(self.eps),
            *(c_int64(size) for size in (moments.size(1), x.size(-1))),
            c_int(torch.get_num_threads()),
        )
        return out, moments

    def backward(
        self, d_out: Tensor, x: Tensor, moments: Tensor, beside: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """By the gradient of the output those of x, weight and bias. beside: another one of x, to be added to it."""
        d_out, beside = d_out.contiguous(), None if beside is None else beside.to(x.dtype).contiguous()
        (n_row, n_col), d_x = (moments.size(1), x.size(-1)), torch.empty_like(x)
        sums = torch.empty(-(-n_row // switched_on().rows_a_sum()), 2, n_col)
        switched_on().normalise_backward(
            place(d_x),
            place(d_out),
            c_int(half(d_out)),
            place(x),
            c_int(half(x)),
            None if beside is None else place(beside),
            place(self.weight),
            *(place(one) for one in moments),
            c_int(self.centred),
            place(sums),
            *(c_int64(size) for size in (n_row, n_col)),
            c_int(torch.get_num_threads()),
        )
        d_weight, d_bias = sums.sum(0).unbind()
        return d_x, d_weight, d_bias
