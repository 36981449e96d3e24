"""Building blocks of the recurrent models: the recurrence, dropout per sentence, and three attention scores.

Shapes: B sentences, L length, S source length, N queries, D `d_model`. Masks are True except at padding.
"""

import torch
from torch import Tensor, nn

from nmt.models.layers import Dropout
from nmt.ops import linear, recurrence
from nmt.recipe.model_options import ModelConfig

State = tuple[Tensor, ...]  # of one layer: (B, width) tensors, h first; an LSTM has c as well

_SATURATING = 1e4  # added to the input of a gate: its sigmoid is exactly 1, or 0 if subtracted, in half precision too


class Recurrence(nn.Module):
    """LSTM or GRU, over whole sentences at once, or token by token.

    LSTM (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000):

        i, f, o = sigmoid(W x + U h + b),  g = tanh(W x + U h + b),  c' = f · c + i · g,  h' = o · tanh(c')

    GRU (Cho et al. 2014; the reset gate acts after the product, as in torch):

        r, z = sigmoid(W x + U h + b),  n = tanh(W x + b + r · (U h + b)),  h' = (1 - z) · n + z · h

    Padding after a sentence leaves c unchanged, to the last bit, although torch gets no lengths: the input has one more
    column, which is 1 at padding. Its weights shut the gate that writes and open the gate that keeps. The last h is
    that of the last word.
    """

    padding_weight: Tensor

    def __init__(self, config: ModelConfig, d_in: int, width: int) -> None:
        super().__init__()
        self.is_lstm, self.forget_bias = config.cell == "lstm", config.forget_bias
        self.cell = nn.LSTMCell(d_in, width) if self.is_lstm else nn.GRUCell(d_in, width)
        gates = (-_SATURATING, _SATURATING, 0.0, 0.0) if self.is_lstm else (0.0, _SATURATING, 0.0)
        padding_weight = torch.tensor(gates).repeat_interleave(width).unsqueeze(1)
        self.register_buffer("padding_weight", padding_weight, persistent=False)  # (gates · width, 1)

    def reset(self) -> None:
        """Initialise: Xavier-uniform from the input, orthogonal from the state, zero biases but for the forget gate."""
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
        """State before the first token, zeros with the batch size, type and device of x, (B, …)."""
        zeros = x.new_zeros(x.size(0), self.cell.hidden_size)
        return (zeros, zeros) if self.is_lstm else (zeros,)

    def forward(self, x: Tensor, state: State, visible: Tensor | None = None) -> tuple[Tensor, State]:
        """(B, L, d_in) -> h at all positions, (B, L, width), and the last state.

        visible: (B, L), False at padding, which must come last; None: no padding.
        """
        w_ih = self.cell.weight_ih
        if visible is not None:
            x = torch.cat([x, (~visible).unsqueeze(2).to(x.dtype)], 2)
            w_ih = torch.cat([w_ih, self.padding_weight.to(w_ih.dtype)], 1)
        weights = [w_ih, self.cell.weight_hh, self.cell.bias_ih, self.cell.bias_hh]
        output, last = recurrence(x, state, weights)
        if visible is not None:
            n_token = visible.sum(1, keepdim=True)
            end = (n_token - 1).clamp(min=0).unsqueeze(2).expand(-1, 1, output.size(2))
            last[0] = torch.where(n_token > 0, output.gather(1, end).squeeze(1), state[0].to(output.dtype))
        return output, tuple(last)

    def step(self, x: Tensor, state: State) -> State:
        """Read one more token of each row: (R, d_in) -> the new state, whose first part is the output."""
        return tuple(self.cell(x, state)) if self.is_lstm else (self.cell(x, state[0]),)

    def blocks(self) -> list[tuple[Tensor, tuple[int, int]]]:
        """Weights, each with the shape of one gate's matrix."""
        width = self.cell.hidden_size
        return [(weight, (width, weight.size(1))) for weight in (self.cell.weight_ih, self.cell.weight_hh)]


class SentenceDropout(Dropout):
    """Dropout that may draw one mask per sentence, for all its positions (variational dropout).

    After Y. Gal and Z. Ghahramani 2016, "A theoretically grounded application of dropout in recurrent neural networks",
    between layers only: between steps, the recurrence would not be one call any more.
    """

    def __init__(self, p: float, per_sentence: bool) -> None:
        super().__init__(p)
        self.per_sentence = per_sentence

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, L, D) -> (B, L, D). mask: from `draw_mask`, where a sentence is read piece by piece."""
        if mask is None:
            mask = self.draw_mask(x)
        return super().forward(x) if mask is None else x * mask

    def draw_mask(self, x: Tensor) -> Tensor | None:
        """Factors for all positions of x (B, L, D), (B, 1, D); None where each position draws its own."""
        return super().forward(x.new_ones(x.size(0), 1, x.size(2))) if self.per_sentence and self.rate else None


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

    It starts as the dot product, which finds similar states at once; a random form would not.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.w_ks = nn.Linear(d_model, d_model, bias=False)

    def reset(self) -> None:
        """Start as the dot product."""
        nn.init.eye_(self.w_ks.weight)

    def keys(self, memory: Tensor) -> Tensor:
        return linear(memory, self.w_ks)


class AdditiveScore(nn.Module):
    """score(h_t, h_s) = vT tanh(W h_t + U h_s). Bahdanau et al. 2015, "Neural machine translation by jointly learning
    to align and translate", appendix A.1.2; unlike there, h_t has already read the last target word."""

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
        hidden = torch.tanh(linear(query, self.w_qs).unsqueeze(2) + keys.unsqueeze(1))  # (B, N, S, D)
        score: Tensor = self.v(hidden)
        return score.squeeze(3)
