"""Sub-layers around the recurrence: attention over the encoder's states, and the input of the output layer.

Shapes: B sentences, S source length, N queries, D `d_model`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.models.lstm.Modules import AdditiveScore, DotScore, GeneralScore, SentenceDropout
from nmt.ops import linear
from nmt.recipe.model_options import ModelConfig


class SourceAttention(nn.Module):
    """Mean of the encoder's states, weighted by their scores against a state of the decoder."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.score: DotScore | AdditiveScore = DotScore()
        if config.attn_score == "general":
            self.score = GeneralScore(config.d_model)
        elif config.attn_score == "additive":
            self.score = AdditiveScore(config.d_model)

    def forward(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N, D), (B, S, D), (B, S, D), (B, 1, S) -> context (B, N, D) and weights (B, N, S).

        The context of a source of padding alone is zero.
        """
        score = self.score(query, keys)
        # Half the lowest number, not -inf: a row that is all -inf would become NaN.
        attn = F.softmax(score.masked_fill(~mask, torch.finfo(score.dtype).min / 2), dim=-1)
        attn = attn.masked_fill(~mask, 0.0)
        return attn @ values.to(attn.dtype), attn


class Readout(nn.Module):
    """Input of the output layer: tanh(W [h; context]), as in Luong et al. 2015, equation 5.

    Without a context, a state of width d_out passes unchanged.
    """

    def __init__(self, config: ModelConfig, d_context: int, d_out: int) -> None:
        super().__init__()
        d_in = config.d_model + d_context
        self.fc = nn.Linear(d_in, d_out) if d_context or d_in != d_out else None
        self.dropout = SentenceDropout(config.dropout, config.variational_dropout)

    def forward(self, h: Tensor, context: Tensor | None, dropout_mask: Tensor | None = None) -> Tensor:
        """(B, N, D) and (B, N, d_context), if any -> (B, N, d_out). dropout_mask: of `SentenceDropout`."""
        x = h if context is None else torch.cat([h, context.to(h.dtype)], dim=-1)
        if self.fc is not None:
            x = torch.tanh(linear(x, self.fc))
        output: Tensor = self.dropout(x, dropout_mask)
        return output


class Lexicon(nn.Module):
    """Lexical attention: attended source embeddings, added to the input of the output layer.

    The decoder's attention weights select embeddings of source words instead of encoder states. So a rare word leads to
    its translation, which a state that has read many words does not hold. After T. Nguyen and D. Chiang 2018,
    "Improving lexical choice in neural machine translation", section 4, without their feed-forward layer: the result
    starts as the mean of the embeddings, which predicts the words themselves and words with similar embeddings.
    """

    def __init__(self, config: ModelConfig, d_out: int) -> None:
        super().__init__()
        self.fc = nn.Linear(config.d_emb or config.d_model, d_out, bias=False)
        self.dropout = SentenceDropout(config.dropout, config.variational_dropout)

    def reset(self) -> None:
        """Start as the identity, as far as the widths allow."""
        nn.init.eye_(self.fc.weight)

    def forward(self, attn: Tensor, words: Tensor) -> Tensor:
        """Weights (B, N, S) of the embedded source words (B, S, E) -> (B, N, d_out)"""
        context = attn @ words.to(attn.dtype)
        return linear(self.dropout(context), self.fc)
