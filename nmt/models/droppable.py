"""What training may leave out of a model of any family: words, told by their ids, and layers.

Which, and how often, is decided elsewhere; nothing here is random, and translation leaves nothing out.
"""

from torch import Tensor, nn

DROPPED = -1  # stands in a sequence where a word was: it is known that one is there, but not which


class WordEmbedding(nn.Embedding):
    """An embedding in which a dropped word is zero. That the id tells it makes all who look a word up agree.

    may_drop: whether DROPPED may occur in training; otherwise nobody pays for looking.
    """

    may_drop = False

    def forward(self, seq: Tensor) -> Tensor:
        """(...) ids -> (..., D)"""
        if not (self.may_drop and self.training):
            return super().forward(seq)
        return super().forward(seq.clamp(min=0)).masked_fill((seq < 0).unsqueeze(-1), 0.0)


class Layer(nn.Module):
    """One floor of a stack, from (B, L, D) to (B, L, D), which passes on what it gets while it is left out.

    left_out: what training sets; a model that is not in training has all its layers.
    """

    left_out = False

    @property
    def passed_over(self) -> bool:
        """Whether the stack goes on as if this layer were not there."""
        return self.left_out and self.training
