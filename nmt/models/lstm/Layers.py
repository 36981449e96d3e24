"""Layers of the two stacks: the encoder's, which may be bidirectional, and the decoder's.

Shapes: B sentences, S source length, T target length, R rows, D `d_model`.
"""

import torch
from torch import Tensor, nn

from nmt.models.lstm.Modules import Recurrence, SentenceDropout, State
from nmt.recipe.model_options import ModelConfig


def reversal(visible: Tensor) -> Tensor:
    """Positions in an order that reverses each sentence: (B, S) -> (B, S).

    visible: False at padding, which comes last and stays where it is. Reversing twice restores the order.
    """
    position = torch.arange(visible.size(1), device=visible.device)
    mirrored = visible.sum(1, keepdim=True) - 1 - position
    return torch.where(visible, mirrored, position)


class EncoderLayer(nn.Module):
    """Recurrence over the source, forward, backward, or both side by side."""

    def __init__(self, config: ModelConfig, d_in: int, dropout: float) -> None:
        super().__init__()
        n_direction = 2 if config.enc_direction == "both" else 1
        width = config.d_model // n_direction
        self.dropout = SentenceDropout(dropout, config.variational_dropout)
        self.ahead = Recurrence(config, d_in, width) if config.enc_direction != "backward" else None
        self.back = Recurrence(config, d_in, width) if config.enc_direction != "forward" else None

    def forward(self, x: Tensor, visible: Tensor, reverse: Tensor) -> tuple[Tensor, State]:
        """(B, S, d_in), (B, S), result of `reversal` -> (B, S, D) and the last state, tensors (B, D)."""
        x = self.dropout(x)
        outputs, last_states = [], []
        for rnn, is_reversed in ((self.ahead, False), (self.back, True)):
            if rnn is not None:
                output, last_state = rnn(_gather(x, reverse) if is_reversed else x, rnn.initial_state(x), visible)
                outputs.append(_gather(output, reverse) if is_reversed else output)
                last_states.append(last_state)
        return torch.cat(outputs, 2), tuple(torch.cat(parts, 1) for parts in zip(*last_states, strict=True))


class DecoderLayer(nn.Module):
    """Recurrence over the target."""

    def __init__(self, config: ModelConfig, d_in: int, dropout: float) -> None:
        super().__init__()
        self.dropout = SentenceDropout(dropout, config.variational_dropout)
        self.rnn = Recurrence(config, d_in, config.d_model)

    def forward(self, x: Tensor, state: State) -> Tensor:
        """Read a whole target: (B, T, d_in) -> (B, T, D)"""
        output: Tensor
        output, _ = self.rnn(self.dropout(x), state)
        return output

    def step(self, x: Tensor, state: State, dropout_mask: Tensor | None = None) -> State:
        """Read one more token: (R, d_in) -> the new state, whose first part is the output.

        dropout_mask: of `SentenceDropout`.
        """
        return self.rnn.step(self.dropout(x.unsqueeze(1), dropout_mask).squeeze(1), state)


def _gather(x: Tensor, position: Tensor) -> Tensor:
    """x, (B, S, D), at the positions (B, S): (B, S, D)"""
    return x.gather(1, position.unsqueeze(2).expand_as(x))
