"""The residual stream in a search, from the end of a sub-layer to the beginning of the next: a sum and a norm, which on
a GPU are one kernel. What they are elsewhere, and in training, stands in `ops.py`."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from nmt.kernels import on_gpu
from nmt.models.dropout import Dropout
from nmt.ops import add_and_norm, normed, residual_and_input


class Stream(NamedTuple):
    """x, and what is still to be added to it, (..., D) both: whoever reads the sum makes it, in one with a norm."""

    x: Tensor
    more: Tensor | None = None

    def total(self) -> Tensor:
        """The stream as it is, (..., D)."""
        return self.x if self.more is None else self.x + self.more

    def parted(self, norm: nn.Module | None) -> tuple[Tensor, Tensor]:
        """The stream as it goes past a sub-layer, and as it enters it: see `ops.residual_and_input`."""
        if self.more is None:
            entering = _normed_by_kernel(self.x, None, norm)
            return residual_and_input(self.x, norm) if entering is None else (self.x, entering)
        if (known := _known(self.x, self.more, norm)) is None:
            return residual_and_input(self.total(), norm)
        from nmt.kernels import norms_triton

        return norms_triton.added_and_normed(self.x, self.more, *known)

    def normed(self, norm: nn.Module) -> Tensor:
        """norm(the stream), (..., D), which goes no further."""
        found = _normed_by_kernel(self.x, self.more, norm)
        return normed(self.total(), norm) if found is None else found


def behind(x: Tensor, output: Tensor, dropout: Dropout, norm: nn.Module | None) -> Stream:
    """The stream behind a sub-layer, which x, (..., D), went past. norm: the one at its end, with norm 'post'."""
    if norm is None:
        return Stream(dropout.add(output, x)) if dropout.is_active else Stream(x, output)
    found = None if dropout.is_active else _normed_by_kernel(x, output, norm)
    return Stream(add_and_norm(output, x, dropout.rate, norm) if found is None else found)


def _normed_by_kernel(x: Tensor, more: Tensor | None, norm: nn.Module | None) -> Tensor | None:
    """norm(x + more), (..., D), if there is a norm and a kernel on a GPU takes it."""
    if (known := _known(x, more, norm)) is None:
        return None
    from nmt.kernels import norms_triton

    return norms_triton.normed(x, more, *known)


def _known(x: Tensor, more: Tensor | None, norm: nn.Module | None) -> tuple[Tensor, Tensor | None, bool, float] | None:
    """Weight, bias, whether it centres, and what it adds to the variance, of a norm that the kernel takes."""
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm) or norm.eps is None or not norm.elementwise_affine:
        return None
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or not on_gpu.takes_norm(x, more, norm.weight):
        return None
    bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    return norm.weight, bias, isinstance(norm, nn.LayerNorm), norm.eps
