"""The smallest boxes of the recurrent models: the recurrence itself, and the three ways to score attention.

Shapes: B sentences, L length, S source length, N queries, D `d_model`. Masks are True at what is not padding.
"""

import torch
from torch import Tensor, nn

from nmt.models.layers import Dropout
from nmt.ops import linear, recurrence
from nmt.recipe.model_options import ModelConfig

State = tuple[Tensor, ...]  # of one layer: (B, width) tensors, h first; an LSTM has c as well

_SHUT = 1e4  # added to a gate it makes its sigmoid exactly 0 or 1, in half precision too


class Recurrence(nn.Module):
    """One LSTM or GRU, over whole sentences at once, or token by token.

    LSTM (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000):

        i, f, o = sigmoid(W x + U h + b),  g = tanh(W x + U h + b),  c' = f · c + i · g,  h' = o · tanh(c')

    GRU (Cho et al. 2014; the reset gate acts after the product, as in torch):

        r, z = sigmoid(W x + U h + b),  n = tanh(W x + b + r · (U h + b)),  h' = (1 - z) · n + z · h

    Padding after a sentence leaves c as it is, to the last bit, though torch is told no lengths: the input has one
    more column, which is 1 at padding, and whose weights shut the gate that writes and open the one that keeps. The
    last h is that of the last word.
    """

    hold: Tensor

    def __init__(self, config: ModelConfig, d_in: int, width: int) -> None:
        super().__init__()
        self.is_lstm, self.forget_bias = config.cell == "lstm", config.forget_bias
        self.cell = nn.LSTMCell(d_in, width) if self.is_lstm else nn.GRUCell(d_in, width)
        gates = (-_SHUT, _SHUT, 0.0, 0.0) if self.is_lstm else (0.0, _SHUT, 0.0)
        hold = torch.tensor(gates).repeat_interleave(width).unsqueeze(1)
        self.register_buffer("hold", hold, persistent=False)  # (gates · width, 1)

    def reset(self) -> None:
        """First weights: Xavier-uniform from the input, orthogonal from the state; no bias but the forget gate's."""
        width = self.cell.hidden_size
        for matrix in self.cell.weight_ih.chunk(4 if self.is_lstm else 3):
            nn.init.xavier_uniform_(matrix)
        for matrix in self.cell.weight_hh.chunk(4 if self.is_lstm else 3):
            nn.init.orthogonal_(matrix)
        for bias in (self.cell.bias_ih, self.cell.bias_hh):
            nn.init.zeros_(bias)
        if self.is_lstm:
            nn.init.constant_(self.cell.bias_ih[width : 2 * width], self.forget_bias)

    def initial_state(self, x: Tensor) -> State:
        """The state before anything was read. x: (B, …), whose type and device count."""
        zeros = x.new_zeros(x.size(0), self.cell.hidden_size)
        return (zeros, zeros) if self.is_lstm else (zeros,)

    def forward(self, x: Tensor, state: State, visible: Tensor | None = None) -> tuple[Tensor, State]:
        """(B, L, d_in) -> the h of every place, (B, L, width), and the last state.

        visible: (B, L), False at padding, which must come last; None: there is none.
        """
        w_ih = self.cell.weight_ih
        if visible is not None:
            x = torch.cat([x, (~visible).unsqueeze(2).to(x.dtype)], 2)
            w_ih = torch.cat([w_ih, self.hold.to(w_ih.dtype)], 1)
        weights = [w_ih, self.cell.weight_hh, self.cell.bias_ih, self.cell.bias_hh]
        output, last = recurrence(x, state, weights)
        if visible is not None:
            n_real = visible.sum(1, keepdim=True)
            end = (n_real - 1).clamp(min=0).unsqueeze(2).expand(-1, 1, output.size(2))
            last[0] = torch.where(n_real > 0, output.gather(1, end).squeeze(1), state[0].to(output.dtype))
        return output, tuple(last)

    def step(self, x: Tensor, state: State) -> State:
        """One more token of each row: (R, d_in) -> the state after it, whose first part is the output."""
        if self.is_lstm:
            h, c = self.cell(x, state)
            return h, c
        return (self.cell(x, state[0]),)

    def blocks(self) -> list[tuple[Tensor, tuple[int, int]]]:
        """The matrices, each with the shape of one gate's part."""
        width = self.cell.hidden_size
        return [(weight, (width, weight.size(1))) for weight in (self.cell.weight_ih, self.cell.weight_hh)]


class SentenceDropout(Dropout):
    """Dropout that may draw once a sentence: what is dropped at one place is dropped at all.

    After Y. Gal and Z. Ghahramani 2016, "A theoretically grounded application of dropout in recurrent neural networks",
    on what goes from layer to layer; not from step to step, which would not leave the recurrence to one call.
    """

    def __init__(self, p: float, once: bool) -> None:
        super().__init__(p)
        self.once = once

    def forward(self, x: Tensor, kept: Tensor | None = None) -> Tensor:
        """(B, L, D) -> (B, L, D). kept: what `draw` gave, for one who sees a sentence piece by piece."""
        if kept is None:
            kept = self.draw(x)
        return super().forward(x) if kept is None else x * kept

    def draw(self, x: Tensor) -> Tensor | None:
        """Factors of x (B, L, D) for a sentence, (B, 1, D); None where each place draws anew."""
        return super().forward(x.new_ones(x.size(0), 1, x.size(2))) if self.once and self.rate else None


class DotScore(nn.Module):
    """score(h_t, h_s) = h_t · h_s. Luong et al. 2015, "Effective approaches to attention-based neural machine
    translation", section 3.1, dot."""

    def keys(self, memory: Tensor) -> Tensor:
        """Keys, computed once, of the encoder's states: (B, S, D) -> (B, S, D)"""
        return memory

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """(B, N, D), (B, S, D) -> (B, N, S)"""
        return query @ keys.mT


class GeneralScore(DotScore):
    """score(h_t, h_s) = h_tT W h_s. Luong et al. 2015, section 3.1, general: a bilinear form.

    It begins as the dot product: states that agree are found from the start, as a random form would not.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.w_ks = nn.Linear(d_model, d_model, bias=False)

    def reset(self) -> None:
        """The first weights."""
        nn.init.eye_(self.w_ks.weight)

    def keys(self, memory: Tensor) -> Tensor:
        return linear(memory, self.w_ks)


class AdditiveScore(nn.Module):
    """score(h_t, h_s) = vT tanh(W h_t + U h_s). Bahdanau et al. 2015, "Neural machine translation by jointly learning
    to align and translate", appendix A.1.2; other than there h_t has read the last target word already."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.w_qs = nn.Linear(d_model, d_model, bias=False)
        self.w_ks = nn.Linear(d_model, d_model)
        self.v = nn.Linear(d_model, 1, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        """(B, S, D) -> (B, S, D)"""
        return linear(memory, self.w_ks)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """(B, N, D), (B, S, D) -> (B, N, S)"""
        agreement = torch.tanh(linear(query, self.w_qs).unsqueeze(2) + keys.unsqueeze(1))  # (B, N, S, D)
        score: Tensor = self.v(agreement)
        return score.squeeze(3)


def make_score(config: ModelConfig) -> DotScore | AdditiveScore:
    """The score that the recipe asks for."""
    if config.attn_score == "dot":
        return DotScore()
    return GeneralScore(config.d_model) if config.attn_score == "general" else AdditiveScore(config.d_model)
