"""Encoder layer and decoder layer of Figure 1.

Shapes: B sentences, S source length, T target length, K hypotheses a sentence, R = B·K rows, D `d_model`.
"""

from torch import Tensor, nn

from nmt.masks import Mask, SearchMask
from nmt.models.base import DecoderState
from nmt.models.layers import Stream
from nmt.models.transformer.SubLayers import DepthwiseConv, MultiHeadAttention, PositionwiseFeedForward, Rotation
from nmt.recipe.model_options import ModelConfig


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward; with enc_conv a convolution before them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.conv = DepthwiseConv(config.d_model, config.enc_conv) if config.enc_conv else None
        self.slf_attn = MultiHeadAttention(config, config.enc_n_kv_head or config.n_kv_head)
        self.pos_ffn = PositionwiseFeedForward(config)

    def forward(
        self, x: Tensor, slf_attn_mask: Mask, rotation: Rotation = None, return_attns: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """(B, S, D), (B, 1, 1, S) -> (B, S, D), and with return_attns the attention weights (B, H, S, S)."""
        if self.conv is not None:
            x = self.conv(x, slf_attn_mask)
        x, slf_attn = self.slf_attn(x, None, slf_attn_mask, rotation, return_attns=return_attns)
        return self.pos_ffn(x), slf_attn


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention, then feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.rotary_enc_attn = config.rotary_enc_attn
        self.slf_attn = MultiHeadAttention(config, config.n_kv_head)
        self.enc_attn = MultiHeadAttention(config, config.n_kv_head)
        self.pos_ffn = PositionwiseFeedForward(config)

    def forward(
        self,
        x: Tensor,
        enc_output: Tensor,
        slf_attn_mask: Mask,
        dec_enc_attn_mask: Mask,
        rotation: Rotation = None,
        src_rotation: Rotation = None,
        return_attns: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """x: (B, T, D), enc_output: (B, S, D), masks (B, 1, T, T) and (B, 1, 1, S), rotations of target and source.

        Returns (B, T, D), and with return_attns the weights over target and source.
        """
        x, slf_attn = self.slf_attn(x, None, slf_attn_mask, rotation, return_attns=return_attns)
        query_rotation = rotation if self.rotary_enc_attn else None
        x, enc_attn = self.enc_attn(x, enc_output, dec_enc_attn_mask, query_rotation, src_rotation, return_attns)
        return self.pos_ffn(x), slf_attn, enc_attn

    def step(
        self,
        stream: Stream,
        n: int,
        slf_attn_mask: SearchMask,
        dec_enc_attn_mask: SearchMask,
        state: DecoderState,
        rotation: Rotation = None,
    ) -> Stream:
        """Read one more target token of each of the K hypotheses, which are K queries: (B, K, D) -> (B, K, D).

        Masks (B, 1, K, slots) and (B, 1, 1, S). n: number of this layer, whose keys and values are in `state`.
        """
        residual, query = self.slf_attn.residual_and_query(*stream)
        q, k, v = self.slf_attn.queries_keys_values(query, rotation)
        k, v = state.update_cache(n, k, v)
        stream, _ = self.slf_attn.attend(residual, q, k, v, slf_attn_mask)
        k, v = state.per_sentence[f"enc_k.{n}"], state.per_sentence[f"enc_v.{n}"]
        residual, query = self.enc_attn.residual_and_query(*stream)
        q = self.enc_attn.queries(query, rotation if self.rotary_enc_attn else None)
        stream, _ = self.enc_attn.attend(residual, q, k, v, dec_enc_attn_mask)
        return self.pos_ffn.step(stream)
