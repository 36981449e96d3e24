"""The two sub-layers of Figure 1, each with its residual and its norm: attention and feed-forward; the convolution
that may stand before them; and attention that looks up words.

Shapes: B sentences, T queries, S keys, H query heads, G key/value heads, D `d_model`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.masks import Mask, PackedMask, as_matrix
from nmt.models.layers import Dropout, Stream, after_sublayer, convolved
from nmt.models.transformer.Modules import make_attention, make_norm
from nmt.ops import fused_linear, linear, linear_relu_linear, residual_and_input, rotate
from nmt.recipe.model_options import ModelConfig

Rotation = tuple[Tensor, Tensor] | None  # cosines and sines, where positions are rotary


class MultiHeadAttention(nn.Module):
    """Attention of n_head heads, of which every n_head / n_kv_head share keys and values.

    One for queries (MQA, Shazeer 2019) or a few (GQA, Ainslie et al. 2023). n_kv_head: None: as many as n_head.
    """

    def __init__(self, config: ModelConfig, n_kv_head: int | None) -> None:
        super().__init__()
        d_model, n_head = config.d_model, config.n_head
        self.n_head = n_head
        self.n_kv_head = n_kv_head or n_head
        self.d_k = config.d_k or d_model // n_head
        self.d_v = config.d_v or d_model // n_head
        self.w_qs = nn.Linear(d_model, n_head * self.d_k, bias=config.attn_bias)
        self.w_ks = nn.Linear(d_model, self.n_kv_head * self.d_k, bias=config.attn_bias)
        self.w_vs = nn.Linear(d_model, self.n_kv_head * self.d_v, bias=config.attn_bias)
        self.fc = nn.Linear(n_head * self.d_v, d_model, bias=config.attn_bias)
        self.q_norm = make_norm(config, self.d_k) if config.qk_norm else nn.Identity()
        self.k_norm = make_norm(config, self.d_k) if config.qk_norm else nn.Identity()
        self.attention = make_attention(config, self.d_k)
        self.dropout = Dropout(config.dropout)
        self.layer_norm = make_norm(config, d_model)
        self.pre_norm = config.norm == "pre"

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None,
        mask: Mask,
        rotation: Rotation = None,
        memory_rotation: Rotation = None,
        return_attns: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """x looks at memory, or at itself where memory is None.

        x: (B, T, D), memory: (B, S, D) or None, mask: (B or 1, 1, T or 1, S). rotation is that of x, and
        memory_rotation that of memory. Returns (B, T, D) and weights or None.
        """
        x, query = self.before(x)
        if memory is None:
            q, k, v = self.queries_keys_values(query, rotation)
        else:
            q, (k, v) = self.queries(query, rotation), self.keys_values(memory, memory_rotation)
        stream, attn = self.attend(x, q, k, v, mask, return_attns)
        return stream.total(), attn

    def before(self, x: Tensor, more: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The residual, x or x + more, and what enters the projections: the same, normalised with norm 'pre'."""
        return residual_and_input(x, self.layer_norm if self.pre_norm else None, more)

    def queries_keys_values(self, query: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Of what looks at itself: (B, T, D), from `before` -> (B, H, T, d_k), (B, G, T, d_k), (B, G, T, d_v)"""
        q, k, v = fused_linear(query, self.readers())
        q = self._heads(q, self.n_head, self.q_norm, rotation)
        return q, self._heads(k, self.n_kv_head, self.k_norm, rotation), self._heads(v, self.n_kv_head)

    def keys_values(self, memory: Tensor, rotation: Rotation = None) -> tuple[Tensor, Tensor]:
        """(B, S, D) -> keys (B, G, S, d_k) and values (B, G, S, d_v)."""
        k, v = fused_linear(memory, [self.w_ks, self.w_vs])
        return self._heads(k, self.n_kv_head, self.k_norm, rotation), self._heads(v, self.n_kv_head)

    def queries(self, query: Tensor, rotation: Rotation = None) -> Tensor:
        """(B, T, D), from `before` -> (B, H, T, d_k)"""
        return self._heads(linear(query, self.w_qs), self.n_head, self.q_norm, rotation)

    @staticmethod
    def _heads(x: Tensor, n_head: int, norm: nn.Module | None = None, rotation: Rotation = None) -> Tensor:
        """(B, T, n_head·d) -> (B, n_head, T, d), normalised and turned where there is a norm and a rotation."""
        x = x.view(x.size(0), x.size(1), n_head, -1).transpose(1, 2)
        x = x if norm is None else norm(x)
        return x if rotation is None else rotate(x, rotation)

    def attend(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Mask, return_attns: bool = False
    ) -> tuple[Stream, Tensor | None]:
        """The rest of the sub-layer, given the residual x, (B, T, D), queries, keys and values."""
        output, attn = self.attention(q, k, v, mask, return_attns)
        output = linear(output.transpose(1, 2).flatten(2), self.fc)
        return after_sublayer(x, output, self.dropout, None if self.pre_norm else self.layer_norm), attn

    def readers(self) -> list[nn.Linear]:
        """The projections that may read the same input."""
        return [self.w_qs, self.w_ks, self.w_vs]

    def blocks(self) -> list[tuple[Tensor, tuple[int, int]]]:
        """The projections, each with the shape of one head's part."""
        d_model = self.fc.out_features
        rows = [(self.w_qs, self.d_k), (self.w_ks, self.d_k), (self.w_vs, self.d_v)]
        return [(w.weight, (width, d_model)) for w, width in rows] + [(self.fc.weight, (d_model, self.d_v))]


class PositionwiseFeedForward(nn.Module):
    """Two matrices around an activation; swiglu has a third, w_3, which gates."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.kind = config.ffn
        self.w_1 = nn.Linear(config.d_model, config.d_inner, bias=config.ffn_bias)
        self.w_2 = nn.Linear(config.d_inner, config.d_model, bias=config.ffn_bias)
        if self.kind == "swiglu":
            self.w_3 = nn.Linear(config.d_model, config.d_inner, bias=config.ffn_bias)
        self.act_dropout = Dropout(config.act_dropout)
        self.dropout = Dropout(config.dropout)
        self.layer_norm = make_norm(config, config.d_model)
        self.pre_norm = config.norm == "pre"

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        return self.step(Stream(x)).total()

    def step(self, stream: Stream) -> Stream:
        """The same of a stream whose sum may still be to be made, before as behind."""
        x, entering = residual_and_input(stream.x, self.layer_norm if self.pre_norm else None, stream.more)
        return after_sublayer(x, self._transform(entering), self.dropout, None if self.pre_norm else self.layer_norm)

    def readers(self) -> list[nn.Linear]:
        """The matrices that read the same input."""
        return [self.w_1, self.w_3] if self.kind == "swiglu" else [self.w_1]

    def _transform(self, x: Tensor) -> Tensor:
        """The two matrices and what is between them: (B, T, D) -> (B, T, D)"""
        if self.kind == "relu" and not self.act_dropout.rate:
            return linear_relu_linear(x, self.w_1, self.w_2)
        if self.kind == "swiglu":
            hidden, gate = fused_linear(x, self.readers())
            hidden = F.silu(hidden) * gate
        else:
            hidden = linear(x, self.w_1)
            hidden = F.gelu(hidden) if self.kind == "gelu" else F.relu(hidden)  # not in place: it may be a view
        if self.kind == "relu2":
            hidden = hidden.square()
        return linear(self.act_dropout(hidden), self.w_2)


class DepthwiseConv(nn.Module):
    """Adds to each word a weighted sum of its neighbours, every column with weights of its own; at first nothing.

    What stands beside a word is known before any attention has learnt to look there, which takes a model of characters
    long. After the canon layers of Z. Allen-Zhu 2025, "Physics of language models: part 4.1", which look back alone;
    D. So et al. 2021, "Primer", convolve queries, keys and values instead.
    """

    def __init__(self, d_model: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(d_model, 1, width))  # laid out as that of nn.Conv1d

    def reset(self) -> None:
        """Begin with words as they are."""
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor, mask: Mask) -> Tensor:
        """(B, S, D), (B, 1, 1, S) -> (B, S, D)"""
        if isinstance(mask, PackedMask):
            sentence = mask.key.sentence.unsqueeze(0)
        else:
            sentence = as_matrix(mask).view(len(x), -1).int() - 1  # 0 at words, -1 at padding
        return convolved(x, sentence, self.weight.squeeze(1).t().contiguous())


class LexicalAttention(nn.Module):
    """Dictionary of what source words stand for in themselves, to be added to the decoder's last states.

    One head looks at the encoder's output, but finds the embeddings that entered the encoder. So a word leads to its
    translation on a way of its own, which a rare word needs seen but a few times. After T. Nguyen and D. Chiang 2018,
    "Improving lexical choice in neural machine translation", section 4; other than there the attention has weights of
    its own, and the words it finds share the output matrix with the states.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d_model = config.d_model
        self.d_k = config.d_k or d_model // config.n_head
        self.w_qs = nn.Linear(d_model, self.d_k, bias=config.attn_bias)
        self.w_ks = nn.Linear(d_model, self.d_k, bias=config.attn_bias)
        self.fc = nn.Linear(d_model, d_model, bias=config.attn_bias)
        self.attention = make_attention(config, self.d_k)
        self.dropout = Dropout(config.dropout)

    def reset(self) -> None:
        """Begin with words that stand for themselves, and for what their embeddings are near to."""
        nn.init.eye_(self.fc.weight)

    def keys(self, enc_output: Tensor, rotation: Rotation = None) -> Tensor:
        """(B, S, D) -> (B, 1, S, d_k)"""
        k = linear(enc_output, self.w_ks).unsqueeze(1)
        return k if rotation is None else rotate(k, rotation)

    def forward(self, x: Tensor, k: Tensor, words: Tensor, mask: Mask, rotation: Rotation = None) -> Tensor:
        """States x: (B, T, D), their keys, the embedded source words (B, S, D), mask: (B, 1, 1, S) -> (B, T, D)"""
        q = linear(x, self.w_qs).unsqueeze(1)
        if rotation is not None:
            q = rotate(q, rotation)
        found, _ = self.attention(q, k, words.unsqueeze(1), mask)
        return linear(self.dropout(found.squeeze(1)), self.fc)
