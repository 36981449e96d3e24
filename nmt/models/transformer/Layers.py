"""The layers of the two stacks, as in Figure 1.

Shapes: B sentences, S source length, T target length, K hypotheses a sentence, R = B·K rows, D `d_model`.
"""

from torch import Tensor, nn

from nmt.masks import Mask, SharedMask
from nmt.models.base import DecoderState
from nmt.models.layers import Stream
from nmt.models.transformer.SubLayers import DepthwiseConv, MultiHeadAttention, PositionwiseFeedForward, Rotation
from nmt.recipe.model_options import ModelConfig


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward; before them, if asked for, a convolution."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.conv = DepthwiseConv(config.d_model, config.enc_conv) if config.enc_conv else None
        self.slf_attn = MultiHeadAttention(config, config.enc_n_kv_head or config.n_kv_head)
        self.pos_ffn = PositionwiseFeedForward(config)

    def forward(
        self, x: Tensor, mask: Mask, rotation: Rotation = None, return_attns: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """(B, S, D), (B, 1, 1, S) -> (B, S, D) and the weights (B, H, S, S) if asked for."""
        if self.conv is not None:
            x = self.conv(x, mask)
        x, attn = self.slf_attn(x, None, mask, rotation, return_attns=return_attns)
        return self.pos_ffn(x), attn


class DecoderLayer(nn.Module):
    """Self-attention, attention over the source, then feed-forward."""

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
        slf_mask: Mask,
        enc_mask: Mask,
        rotation: Rotation = None,
        src_rotation: Rotation = None,
        return_attns: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """x: (B, T, D), enc_output: (B, S, D), masks (B, 1, T, T) and (B, 1, 1, S), rotations of target and source.

        Returns (B, T, D) and the weights over target and source if asked for.
        """
        x, slf_attn = self.slf_attn(x, None, slf_mask, rotation, return_attns=return_attns)
        turn = rotation if self.rotary_enc_attn else None
        x, enc_attn = self.enc_attn(x, enc_output, enc_mask, turn, src_rotation, return_attns)
        return self.pos_ffn(x), slf_attn, enc_attn

    def step(
        self,
        stream: Stream,
        n: int,
        mask: SharedMask,
        src_mask: SharedMask,
        state: DecoderState,
        rotation: Rotation = None,
    ) -> Stream:
        """One more target token of K hypotheses, which are K queries to what their sentence knows: (B, K, D) -> same.

        mask: (B, 1, K, slots), src_mask: (B, 1, 1, S). This is layer n, whose keys and values lie in `state`.
        """
        x, query = self.slf_attn.before(*stream)
        q, k, v = self.slf_attn.queries_keys_values(query, rotation)
        k, v = state.remember(n, k, v)
        stream, _ = self.slf_attn.attend(x, q, k, v, mask)
        k, v = state.per_sentence[f"enc_k.{n}"], state.per_sentence[f"enc_v.{n}"]
        x, query = self.enc_attn.before(*stream)
        q = self.enc_attn.queries(query, rotation if self.rotary_enc_attn else None)
        stream, _ = self.enc_attn.attend(x, q, k, v, src_mask)
        return self.pos_ffn.step(stream)
