"""Building blocks without projections: norms, position tables, rotary positions, scaled dot-product attention.

Shapes: B sentences, T queries, S keys, H query heads, G key/value heads (G divides H), D `d_model`.
Masks are True where a query may attend.
"""

import torch
from torch import Tensor, nn

from nmt.masks import Mask, Packing
from nmt.models.layers import Dropout
from nmt.ops import attention
from nmt.recipe.model_options import ModelConfig

# A position: an int, or a (1,) tensor on the device, which tables must cover already.
Position = int | Tensor


class RMSNorm(nn.RMSNorm):
    """nn.RMSNorm computed in the type of its weight, even under autocast, where torch would warn and be slow."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


def make_norm(config: ModelConfig, width: int) -> nn.Module:
    """Make the norm of the recipe, over the last dimension."""
    return nn.LayerNorm(width, eps=1e-6) if config.norm_kind == "layer" else RMSNorm(width, eps=1e-6)


def sinusoids(first: int, n: int, width: int) -> Tensor:
    """Rows first, ..., first + n - 1 of the paper's position table: (n, width), sines in even columns, cosines in odd.

    Angles are computed in double precision: in single precision they are visibly wrong at a position of some thousands.
    """
    column = torch.arange(width)
    rate = 10000.0 ** (-2.0 * (column // 2).double() / width)
    angle = torch.arange(first, first + n).double().unsqueeze(1) * rate
    return torch.where(column % 2 == 0, angle.sin(), angle.cos()).float()


class SinusoidTable(nn.Module):
    """Sinusoids of all positions read so far. Rows beyond the n_position of `pos_table` are computed when first needed.

    Only `pos_table` is in the state dict: it keeps its size, whatever lengths the model has read.
    """

    is_saved = True
    pos_table: Tensor
    extension: Tensor

    def __init__(self, width: int, n_position: int) -> None:
        super().__init__()
        self.register_buffer("pos_table", sinusoids(0, n_position, width).unsqueeze(0), persistent=self.is_saved)
        self.register_buffer("extension", torch.empty(1, 0, width), persistent=False)

    def rows(self, first: Position, n: int, packing: Packing | None = None) -> Tensor:
        """Rows of n positions from `first` on, or of the n tokens of a packed row: (1, n, width)"""
        if isinstance(first, Tensor):
            return torch.cat([self.pos_table, self.extension], dim=1).index_select(1, first)
        start, end = (0, packing.longest) if packing else (first, first + n)
        n_table, rows = self.pos_table.size(1), self.pos_table[:, start:end]
        if end > n_table:
            rows = torch.cat([rows, self.grow(end)[:, max(0, start - n_table) : end - n_table]], dim=1)
        return rows.index_select(1, packing.position) if packing else rows

    def grow(self, n: int) -> Tensor:
        """Make rows for the first n positions. Returns the extension, since another thread may replace it."""
        extension = self.extension
        n_known = self.pos_table.size(1) + extension.size(1)
        if n > n_known:
            # Translation runs in inference mode, and training could not use tensors that were made there.
            with torch.inference_mode(False):
                rows = sinusoids(n_known, 2 * (n - n_known), extension.size(-1))  # twice, so that it seldom grows
                self.extension = extension = torch.cat([extension, rows.unsqueeze(0).to(extension)], dim=1)
        return extension


class RotaryEncoding(SinusoidTable):
    """Positions as rotations of queries and keys (Su et al. 2021): their product depends on the distance alone."""

    is_saved = False

    def forward(self, first: Position, n: int, packing: Packing | None = None) -> tuple[Tensor, Tensor]:
        """Cosines and sines, (n, d_k / 2) each, of n positions from `first` on, or of the n tokens of a packed row."""
        rows = self.rows(first, n, packing)[0]
        return rows[:, 1::2], rows[:, 0::2]


class ScaledDotProductAttention(nn.Module):
    """softmax(q kᵀ / temperature) v (Vaswani et al. 2017, section 3.2.1)."""

    def __init__(self, temperature: float, attn_dropout: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.dropout = Dropout(attn_dropout)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, return_attns: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attend to v by the products of q and k. A query whose mask is all False gets zeros.

        q: (B, H, T, d_k), k: (B, G, S, d_k), v: (B, G, S, d_v), mask: (B or 1, 1, T or 1, S), True where q may attend.
        Returns (B, H, T, d_v), and the weights before dropout, (B, H, T, S), or None.
        """
        return attention(q, k, v, mask, 1.0 / self.temperature, self.dropout.rate, return_attns)


def make_attention(config: ModelConfig, d_k: int) -> ScaledDotProductAttention:
    """Make the attention of the recipe, over keys of width d_k."""
    return ScaledDotProductAttention(d_k**0.5, config.dropout if config.attn_dropout is None else config.attn_dropout)
