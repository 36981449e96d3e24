"""One layer of each stack: the encoder's, which may read both ways, and the decoder's.

Shapes: B sentences, S source length, T target length, R rows, D `d_model`.
"""

import torch
from torch import Tensor, nn

from nmt.models.lstm.Modules import Recurrence, SentenceDropout, State
from nmt.recipe.model_options import ModelConfig


def reversal(visible: Tensor) -> Tensor:
    """For each place the one that has its word when every sentence is read from its end: (B, S) -> (B, S).

    visible: False at padding, which comes last and stays where it is. Turning twice is not turning.
    """
    place = torch.arange(visible.size(1), device=visible.device)
    mirrored = visible.sum(1, keepdim=True) - 1 - place
    return torch.where(visible, mirrored, place)


class EncoderLayer(nn.Module):
    """A recurrence over the source, forward or backward, or one of each, side by side."""

    def __init__(self, config: ModelConfig, d_in: int, dropout: float) -> None:
        super().__init__()
        n_direction = 2 if config.enc_direction == "both" else 1
        width = config.d_model // n_direction
        self.dropout = SentenceDropout(dropout, config.variational_dropout)
        self.ahead = Recurrence(config, d_in, width) if config.enc_direction != "backward" else None
        self.back = Recurrence(config, d_in, width) if config.enc_direction != "forward" else None

    def forward(self, x: Tensor, visible: Tensor, reverse: Tensor) -> tuple[Tensor, State]:
        """(B, S, d_in), (B, S), what `reversal` gives -> (B, S, D) and the state in which reading ends, (B, D) each."""
        x = self.dropout(x)
        outputs, lasts = [], []
        if self.ahead is not None:
            output, last = self.ahead(x, self.ahead.initial_state(x), visible)
            outputs.append(output)
            lasts.append(last)
        if self.back is not None:
            output, last = self.back(_gathered(x, reverse), self.back.initial_state(x), visible)
            outputs.append(_gathered(output, reverse))
            lasts.append(last)
        return torch.cat(outputs, 2), tuple(torch.cat(parts, 1) for parts in zip(*lasts, strict=True))


class DecoderLayer(nn.Module):
    """A recurrence over the target."""

    def __init__(self, config: ModelConfig, d_in: int, dropout: float) -> None:
        super().__init__()
        self.dropout = SentenceDropout(dropout, config.variational_dropout)
        self.rnn = Recurrence(config, d_in, config.d_model)

    def forward(self, x: Tensor, state: State) -> Tensor:
        """A whole target: (B, T, d_in) -> (B, T, D)"""
        output: Tensor
        output, _ = self.rnn(self.dropout(x), state)
        return output

    def step(self, x: Tensor, state: State, kept: Tensor | None = None) -> State:
        """One more token: (R, d_in) -> the state after it, whose first part is the output.

        kept: as in SentenceDropout.
        """
        return self.rnn.step(self.dropout(x.unsqueeze(1), kept).squeeze(1), state)


def _gathered(x: Tensor, place: Tensor) -> Tensor:
    """(B, S, D) at the places (B, S): (B, S, D)"""
    return x.gather(1, place.unsqueeze(2).expand_as(x))
