"""The two sub-layers of Figure 1, attention and feed-forward, each with its residual and its norm.

Also the optional convolution before them, and lexical attention behind the decoder.

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

Rotation = tuple[Tensor, Tensor] | None  # cosines and sines of rotary positions


class MultiHeadAttention(nn.Module):
    """Attention with n_head query heads and n_kv_head key/value heads; None: as many as n_head.

    One is multi-query attention (MQA, Shazeer 2019), a few are grouped-query attention (GQA, Ainslie et al. 2023).
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
        """Attend from x to memory, or to x itself if memory is None.

        x: (B, T, D), memory: (B, S, D) or None, mask: (B or 1, 1, T or 1, S). rotation is that of x, and
        memory_rotation that of memory. Returns (B, T, D), and the attention weights or None.
        """
        residual, query = self.residual_and_query(x)
        if memory is None:
            q, k, v = self.queries_keys_values(query, rotation)
        else:
            q, (k, v) = self.queries(query, rotation), self.keys_values(memory, memory_rotation)
        stream, attn = self.attend(residual, q, k, v, mask, return_attns)
        return stream.total(), attn

    def residual_and_query(self, x: Tensor, pending: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The residual, x or x + pending, and the input of the projections: the same, normalised with norm 'pre'."""
        return residual_and_input(x, self.layer_norm if self.pre_norm else None, pending)

    def queries_keys_values(self, query: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Project for self-attention: (B, T, D) -> (B, H, T, d_k), (B, G, T, d_k), (B, G, T, d_v)"""
        q, k, v = fused_linear(query, self.input_layers())
        q = self._split_heads(q, self.n_head, self.q_norm, rotation)
        k = self._split_heads(k, self.n_kv_head, self.k_norm, rotation)
        return q, k, self._split_heads(v, self.n_kv_head)

    def keys_values(self, memory: Tensor, rotation: Rotation = None) -> tuple[Tensor, Tensor]:
        """(B, S, D) -> keys (B, G, S, d_k) and values (B, G, S, d_v)."""
        k, v = fused_linear(memory, [self.w_ks, self.w_vs])
        return self._split_heads(k, self.n_kv_head, self.k_norm, rotation), self._split_heads(v, self.n_kv_head)

    def queries(self, query: Tensor, rotation: Rotation = None) -> Tensor:
        """(B, T, D), from `residual_and_query` -> (B, H, T, d_k)"""
        return self._split_heads(linear(query, self.w_qs), self.n_head, self.q_norm, rotation)

    @staticmethod
    def _split_heads(x: Tensor, n_head: int, norm: nn.Module | None = None, rotation: Rotation = None) -> Tensor:
        """(B, T, n_head·d) -> (B, n_head, T, d), normalised and rotated if norm and rotation are given."""
        x = x.view(x.size(0), x.size(1), n_head, -1).transpose(1, 2)
        return rotate(x if norm is None else norm(x), rotation)

    def attend(
        self, residual: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Mask, return_attns: bool = False
    ) -> tuple[Stream, Tensor | None]:
        """Compute the rest of the sub-layer from the residual (B, T, D), queries, keys and values."""
        output, attn = self.attention(q, k, v, mask, return_attns)
        output = linear(output.transpose(1, 2).flatten(2), self.fc)
        return after_sublayer(residual, output, self.dropout, None if self.pre_norm else self.layer_norm), attn

    def input_layers(self) -> list[nn.Linear]:
        """The projections, which read one input in self-attention."""
        return [self.w_qs, self.w_ks, self.w_vs]

    def blocks(self) -> list[tuple[Tensor, tuple[int, int]]]:
        """Weights of the projections, each with the shape of one head's matrix."""
        d_model = self.fc.out_features
        layers = [(self.w_qs, self.d_k), (self.w_ks, self.d_k), (self.w_vs, self.d_v)]
        return [(layer.weight, (d_head, d_model)) for layer, d_head in layers] + [(self.fc.weight, (d_model, self.d_v))]


class PositionwiseFeedForward(nn.Module):
    """Two linear layers around an activation; swiglu has a third, w_3, as the gate."""

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
        """`forward` of a residual stream, whose sum may be pending before and after."""
        residual, x = residual_and_input(stream.x, self.layer_norm if self.pre_norm else None, stream.pending)
        return after_sublayer(residual, self._transform(x), self.dropout, None if self.pre_norm else self.layer_norm)

    def input_layers(self) -> list[nn.Linear]:
        """The layers that read the input."""
        return [self.w_1, self.w_3] if self.kind == "swiglu" else [self.w_1]

    def _transform(self, x: Tensor) -> Tensor:
        """Apply the linear layers and the activation: (B, T, D) -> (B, T, D)"""
        if self.kind == "relu" and not self.act_dropout.rate:
            return linear_relu_linear(x, self.w_1, self.w_2)
        if self.kind == "swiglu":
            hidden, gate = fused_linear(x, self.input_layers())
            hidden = F.silu(hidden) * gate
        else:
            hidden = linear(x, self.w_1)
            hidden = F.gelu(hidden) if self.kind == "gelu" else F.relu(hidden)  # not in place: it may be a view
        if self.kind == "relu2":
            hidden = hidden.square()
        return linear(self.act_dropout(hidden), self.w_2)


class DepthwiseConv(nn.Module):
    """Depthwise convolution: adds to each word a weighted sum of its neighbours. The weights start at zero.

    It shows a word's neighbours to the model before attention has learnt to find them, which takes character models
    long. After the canon layers of Z. Allen-Zhu 2025, "Physics of language models: part 4.1", which only look back;
    D. So et al. 2021, "Primer", convolve queries, keys and values instead.
    """

    def __init__(self, d_model: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(d_model, 1, width))  # shaped as in nn.Conv1d

    def reset(self) -> None:
        """Start as the identity."""
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor, mask: Mask) -> Tensor:
        """(B, S, D), (B, 1, 1, S) -> (B, S, D)"""
        if isinstance(mask, PackedMask):
            sentence = mask.key.sentence.unsqueeze(0)
        else:
            sentence = as_matrix(mask).view(len(x), -1).int() - 1  # 0 at words, -1 at padding
        return convolved(x, sentence, self.weight.squeeze(1).t().contiguous())


class LexicalAttention(nn.Module):
    """Lexical attention: an extra head whose result, attended source embeddings, is added to the decoder's output.

    Its keys come from the encoder's output, its values are the embeddings that entered the encoder. This direct path
    from a word to its translation can be learnt from a few examples of a rare word. After T. Nguyen and D. Chiang 2018,
    "Improving lexical choice in neural machine translation", section 4; unlike there the attention has weights of its
    own, and its result shares the output matrix with the states.
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
        """Start as the identity: a word predicts itself and words with similar embeddings."""
        nn.init.eye_(self.fc.weight)

    def keys(self, enc_output: Tensor, rotation: Rotation = None) -> Tensor:
        """(B, S, D) -> (B, 1, S, d_k)"""
        return rotate(linear(enc_output, self.w_ks).unsqueeze(1), rotation)

    def forward(self, x: Tensor, k: Tensor, words: Tensor, mask: Mask, rotation: Rotation = None) -> Tensor:
        """x: (B, T, D), k: (B, 1, S, d_k), embedded source words (B, S, D), mask: (B, 1, 1, S) -> (B, T, D)"""
        q = rotate(linear(x, self.w_qs).unsqueeze(1), rotation)
        context, _ = self.attention(q, k, words.unsqueeze(1), mask)
        return linear(self.dropout(context.squeeze(1)), self.fc)
