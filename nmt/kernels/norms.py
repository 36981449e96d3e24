"""The kernels that normalise rows, called with tensors: LayerNorm, and RMSNorm, where rows are not `centred`.

What is allocated here is returned. N rows, D columns.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from nmt.kernels.passes import size_of_sums
from nmt.kernels.switch import half, switched_on, workroom


class Dropping(NamedTuple):
    """Dropout by kernels: of N_CHANCE values n_drop are dropped, which follows from the seed; others are scaled up."""

    seed: int = 0
    n_drop: int = 0
    scale: float = 1.0


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
        how = self.weight, self.bias, *moments, self.centred, self.eps
        shape = moments.size(1), x.size(-1)
        switched_on().normalise(out, half(out), x, half(x), *how, *shape, torch.get_num_threads())
        return out, moments

    def after_sum(
        self, x: Tensor, residual: Tensor, dropping: Dropping, *, also_half: bool
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """The norm of residual + dropout(x), (..., D) fp32: that, the same in bf16 if wanted, the sum, and mean and
        rate of its rows as above. D: a multiple of 4, or nothing is dropped."""
        assert x.is_contiguous() and residual.is_contiguous() and residual.dtype == torch.float32
        assert x.size(-1) % 4 == 0 or not dropping.n_drop
        out, total = torch.empty_like(residual), torch.empty_like(residual)
        also = torch.empty_like(residual, dtype=torch.bfloat16) if also_half else None
        moments = torch.empty(2, x.numel() // x.size(-1))
        how = *dropping, self.weight, self.bias, *moments, self.centred, self.eps
        shape = moments.size(1), x.size(-1)
        switched_on().add_and_normalise(out, also, total, x, half(x), residual, *how, *shape, torch.get_num_threads())
        return out, also, total, moments

    def backward(
        self, d_out: Tensor, x: Tensor, moments: Tensor, beside: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of x, weight and bias by that of the output. beside: another one of x, to be added to it."""
        d_x = torch.empty_like(x)
        beside = None if beside is None else beside.to(x.dtype).contiguous()
        return d_x, *self._backward(d_x, None, Dropping(), d_out.contiguous(), None, x, moments, beside)

    def backward_of_sum(
        self, d_out: Tensor, also: Tensor | None, total: Tensor, moments: Tensor, dropping: Dropping, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The gradients of x, in `dtype`, residual, weight and bias by those of the outputs of `after_sum`. also: bf16,
        where d_out is fp32, or absent."""
        assert also is None or (half(also), half(d_out)) == (1, 0)
        d_x, d_total = torch.empty_like(total, dtype=dtype), torch.empty_like(total)
        also = None if also is None else also.contiguous()
        rest = self._backward(d_total, d_x, dropping, d_out.contiguous(), also, total, moments, None)
        return d_x, d_total, *rest

    def _backward(
        self,
        d_x: Tensor,
        dropped: Tensor | None,
        dropping: Dropping,
        d_out: Tensor,
        also: Tensor | None,
        x: Tensor,
        moments: Tensor,
        beside: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Writes the gradient of x, and that as it goes back through dropout; returns those of weight and bias."""
        n_row, n_col = moments.size(1), x.size(-1)
        sums = torch.empty(2, n_col)
        grads = d_x, dropped, half(dropped), *dropping, d_out, half(d_out), also
        how = x, half(x), beside, self.weight, *moments, self.centred
        mine = workroom(size_of_sums(n_row, 2 * n_col))
        switched_on().normalise_backward(*grads, *how, sums, mine, n_row, n_col, torch.get_num_threads())
        d_weight, d_bias = sums.unbind()
        return d_weight, d_bias
