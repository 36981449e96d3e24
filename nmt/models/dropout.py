"""Dropout for models of any family."""

from torch import Tensor, nn

from nmt import ops


class Dropout(nn.Module):
    """`ops.dropout` in training, and nothing in evaluation."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def extra_repr(self) -> str:
        return f"p={self.p}"

    def forward(self, x: Tensor) -> Tensor:
        """x with some elements zero and the others scaled up; in evaluation x itself."""
        return ops.dropout(x, self.rate)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + dropout(x), in one pass where that can be had."""
        return ops.dropout(x, self.rate, residual)

    @property
    def rate(self) -> float:
        """The share of elements that are dropped now."""
        return self.p if self.training else 0.0

    @property
    def is_active(self) -> bool:
        return self.rate > 0.0
