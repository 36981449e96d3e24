"""The smallest boxes: norms, rotary angles, scaled dot-product attention. No projections live here.

Shapes: B sentences, T queries, S keys, H query heads, G key/value heads (G divides H), D `d_model`.
Masks are True where looking is allowed.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.kernels import on_gpu, spans, switch
from nmt.kernels.attention import Within
from nmt.kernels.listed import Listed
from nmt.kernels.spans import Spans
from nmt.kernels.written_out import in_kernel, written_out
from nmt.models.base import Packing
from nmt.models.layers import Dropout
from nmt.recipe.model_options import ModelConfig

# A position: an int, or a (1,) tensor on the device, which `reach` must have covered.
Place = int | Tensor
_SHORT = 256 * 256  # queries x keys up to which attention on the CPU is written out


class RMSNorm(nn.RMSNorm):
    """nn.RMSNorm that under autocast computes as wide as its weight, where torch would warn and be slow."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


def make_norm(config: ModelConfig, width: int) -> nn.Module:
    """The norm over the last dimension that the recipe asks for."""
    return nn.LayerNorm(width, eps=1e-6) if config.norm_kind == "layer" else RMSNorm(width, eps=1e-6)


def sinusoids(first: int, n: int, width: int) -> Tensor:
    """Rows first, ..., first + n - 1 of the paper's position table: (n, width), sines in even columns, cosines in odd.

    Angles are computed in double precision: at a position of some thousands single precision is visibly wrong.
    """
    column = torch.arange(width)
    rate = 10000.0 ** (-2.0 * (column // 2).double() / width)
    angle = torch.arange(first, first + n).double().unsqueeze(1) * rate
    return torch.where(column % 2 == 0, angle.sin(), angle.cos()).float()


def extend(table: Tensor, first: int, end: int, dim: int) -> Tensor:
    """`table` with sinusoids first, ..., end - 1 appended along `dim`, and as many more, so that it seldom grows."""
    # Translation runs in inference mode, whose tensors could not be used by training afterwards.
    with torch.inference_mode(False):
        more = sinusoids(first, 2 * (end - first), table.size(-1)).to(table)
        return torch.cat([table, more.expand(*table.shape[:dim], -1, -1)], dim)


class RotaryEncoding(nn.Module):
    """Positions as rotations of queries and keys (Su et al. 2021): their product depends on the distance alone."""

    table: Tensor

    def __init__(self, width: int, n_position: int) -> None:
        super().__init__()
        self.register_buffer("table", sinusoids(0, n_position, width), persistent=False)

    def forward(self, first: Place, n: int, packing: Packing | None = None) -> tuple[Tensor, Tensor]:
        """The rotation of n positions from `first` on, or of n places of a packed row: cosines and sines, (n, d_k / 2)
        each."""
        if isinstance(first, Tensor):
            rows = self.table.index_select(0, first)
        else:
            end = packing.longest if packing else first + n
            self.reach(end)
            rows = self.table[packing.position] if packing else self.table[first:end]
        return rows[:, 1::2], rows[:, 0::2]

    def reach(self, n: int) -> None:
        """Know the first n positions."""
        if n > self.table.size(0):
            self.table = extend(self.table, self.table.size(0), n, dim=0)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair of neighbouring columns by the angle of its position. x: (B, H, T, d_k), d_k even."""
    cos, sin = rotation
    if torch.compiler.is_compiling():  # which knows no complex numbers, and needs none to be fast
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)
    # A pair is a complex number, and its turn a product: one pass over x instead of several.
    # There are none in half precision.
    if x.storage_offset() % 2 or any(stride % 2 for stride in x.stride()[:-1]):
        x = x.contiguous()  # a part of a wider product, of which no number need begin where a complex one may
    kind = torch.promote_types(torch.promote_types(x.dtype, cos.dtype), torch.float32)
    turned = torch.view_as_complex(x.to(kind).view(*x.shape[:-1], -1, 2)) * torch.complex(cos.to(kind), sin.to(kind))
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


class PackedMask(NamedTuple):
    """Where queries of a packed row may look: at the keys of their own sentence, and only back if causal.

    spans: the same for kernels of our own on a GPU, where there are some. flash: whether torch has one for it there.
    """

    query: Packing
    key: Packing
    causal: bool
    spans: Spans | None = None
    flash: bool = False

    @classmethod
    def of(cls, query: Packing, key: Packing, *, causal: bool) -> "PackedMask":
        """With what kernels want, where there are some. Not to be compiled."""
        device, its = query.start.device, None
        if device.type != "cuda":
            return cls(query, key, causal)
        if on_gpu.works(device):
            its = Spans.within(query.start, query.sentence, key.start, key.sentence, causal=causal)
        return cls(query, key, causal, its, on_gpu.is_new(device))

    @property
    def within(self) -> Within:
        """The mask as a kernel takes it."""
        return Within(self.query.start, self.key.start, self.query.longest, self.key.longest, self.causal)

    def written_out(self) -> Tensor:
        """The mask as a matrix, (1, 1, T, S): dear, and for where no kernel knows packing."""
        mask = self.query.sentence.unsqueeze(1) == self.key.sentence
        return (mask.tril() if self.causal else mask)[None, None]


class SharedMask:
    """A mask, (B or 1, 1, T or 1, S), for several layers: what each makes of it is made once.

    in_search: its T queries are hypotheses of a sentence, not words.
    """

    def __init__(self, mask: Tensor, *, in_search: bool = False) -> None:
        self._mask, self.in_search = mask, in_search
        self._repeated: dict[int, Tensor] = {}
        self._added: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor | None]] = {}
        self._listed: Listed | None = None

    @property
    def mask(self) -> Tensor:
        """The mask as it was given."""
        return self._mask

    def listed(self) -> Listed:
        """The places that it lets look at, of all sentences, for a kernel of a GPU."""
        if self._listed is None:
            from nmt.kernels import search_triton

            self._listed = search_triton.listed(self._mask)
        return self._listed

    def repeated(self, n: int) -> Tensor:
        """For n times the queries: those of n heads, one head after the other."""
        if n == 1 or self._mask.size(2) == 1:
            return self._mask
        if n not in self._repeated:
            self._repeated[n] = self._mask.repeat(1, 1, n, 1)
        return self._repeated[n]

    def added(self, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """What is to be added to scores of n times the queries, and the queries that may look nowhere, if any."""
        if (n, dtype) not in self._added:
            mask = self.repeated(n)
            # Half the lowest number, not -inf: a row that is all -inf would become NaN. After the softmax what is
            # hidden is exactly zero either way.
            bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
            bias = bias.masked_fill(~mask, torch.finfo(dtype).min / 2)
            blind = ~mask.any(dim=-1, keepdim=True)
            self._added[n, dtype] = bias, blind if blind.any() else None
        return self._added[n, dtype]


Mask = Tensor | PackedMask | SharedMask


def shared(mask: Mask) -> Mask:
    """A mask for all the layers of a stack.

    Only a CPU gains by it; elsewhere layers may be compiled one by one, and would be again for what is shared.
    """
    if isinstance(mask, Tensor) and mask.device.type == "cpu" and not torch.compiler.is_compiling():
        return SharedMask(mask)
    return mask


def visible(mask: "Tensor | SharedMask") -> Tensor:
    """Which words are there, of a mask that hides padding alone: (B, 1, 1, S) -> (B, S, 1)"""
    plain = mask.mask if isinstance(mask, SharedMask) else mask
    return plain.view(plain.size(0), -1, 1)


class ScaledDotProductAttention(nn.Module):
    """softmax(q kT / temperature) v (Vaswani et al. 2017, section 3.2.1), in the way that is fastest where it is:

    - written out, as two products and a softmax, where the weights are wanted, and on a CPU without kernels of ours;
    - by a kernel of ours on a CPU, at the length of sentences, and on a GPU in a search;
    - for packed sentences on a GPU by kernels of ours, or, where a head has no width that they take, by torch's
      attention of variable lengths, in 16 bits;
    - by torch's fused kernel, `scaled_dot_product_attention`, for all else.
    """

    def __init__(self, temperature: float, attn_dropout: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.dropout = Dropout(attn_dropout)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, return_attns: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Look up v where q and k agree; a query that may look nowhere gets zeros.

        q: (B, H, T, d_k), k: (B, G, S, d_k), v: (B, G, S, d_v), mask: bool, (B or 1, 1, T or 1, S), shared or packed.
        Returns (B, H, T, d_v), and the weights before dropout, (B, H, T, S), or None.
        """
        if isinstance(mask, PackedMask):
            if v.is_cuda and (found := self._packed(q, k, v, mask)) is not None:
                return found, None
            narrow = self._narrow(q, k, v)
            if switch.takes(*narrow):
                return in_kernel(*narrow, mask.within, 1.0 / self.temperature, self.dropout.rate), None
            mask = mask.written_out()
        mask = mask if isinstance(mask, SharedMask) else SharedMask(mask)
        if not return_attns and self._prefers_written_out(q, k):
            narrow = self._narrow(q, k, v)
            if switch.takes(*narrow):
                return in_kernel(
                    *narrow, mask.mask, 1.0 / self.temperature, self.dropout.rate, in_search=mask.in_search
                ), None
        (n_row, n_head, n_query, _), n_kv_head = q.shape, k.size(1)
        n_share = n_head // n_kv_head
        if mask.in_search and not return_attns and on_gpu.takes_hypotheses(q, k, v):
            from nmt.kernels import search_triton

            return search_triton.look(q, k, v, mask.listed(), 1.0 / self.temperature), None
        if n_share > 1:
            # The heads that share a key/value head become further queries of it: nothing is copied per head.
            q = q.reshape(n_row, n_kv_head, -1, q.size(-1))
        if return_attns or self._prefers_written_out(q, k):
            output, attn = self._written_out(q, k, v, mask, n_share)
        else:
            attn = None
            output = F.scaled_dot_product_attention(
                q,
                k,
                v,
                mask.repeated(n_share),
                self.dropout.rate,
                scale=1.0 / self.temperature,
            )
        output = output.reshape(n_row, n_head, n_query, v.size(-1))
        return output, attn.view(n_row, n_head, n_query, -1) if return_attns and attn is not None else None

    def _packed(self, q: Tensor, k: Tensor, v: Tensor, mask: PackedMask) -> Tensor | None:
        """Attention within each sentence of the one row, by kernels on a GPU that know no dropout; None if none takes
        these."""
        # Not x[0], whose gradient is zeros and a copy.
        q, k, v = (x.squeeze(0).transpose(0, 1).to(v.dtype) for x in (q, k, v))  # (T, H, d)
        if mask.spans is not None and on_gpu.fits(q, k, v) and spans.are_near(q, k, v):
            return spans.attend(q, k, v, mask.spans, 1.0 / self.temperature).transpose(0, 1).unsqueeze(0)
        if not mask.flash or v.dtype not in (torch.bfloat16, torch.float16):
            return None
        from torch.nn.attention.varlen import varlen_attn  # which brings the compiler with it: over a second

        n_share = q.size(1) // k.size(1)
        if n_share > 1:  # not every torch that has this kernel lets it share keys
            k, v = k.repeat_interleave(n_share, dim=1), v.repeat_interleave(n_share, dim=1)
        found = varlen_attn(
            q,
            k,
            v,
            mask.query.start,
            mask.key.start,
            mask.query.longest,
            mask.key.longest,
            window_size=(-1, 0) if mask.causal else (-1, -1),
            scale=1.0 / self.temperature,
        )
        assert isinstance(found, Tensor)
        return found.transpose(0, 1).unsqueeze(0)

    def _prefers_written_out(self, q: Tensor, k: Tensor) -> bool:
        """Whether torch's fused kernel is not the way, for what is padded and of which no weights are wanted.

        On a CPU torch has no fused kernel with dropout; without, its many tiny products are several times
        slower once fp32 products go through oneDNN. At the length of sentences the written-out way is never far
        behind, so only long inputs, whose weights would not fit the caches, take the fused kernel there.
        """
        if q.device.type != "cpu" or torch.compiler.is_compiling():
            return False
        return self.dropout.is_active or q.size(2) * k.size(2) <= _SHORT

    def _written_out(self, q: Tensor, k: Tensor, v: Tensor, mask: SharedMask, n_share: int) -> tuple[Tensor, Tensor]:
        q, k, v = self._narrow(q, k, v)
        bias, blind = mask.added(n_share, torch.promote_types(v.dtype, torch.float32))
        return written_out(q, k, v, bias, blind, 1.0 / self.temperature, self.dropout.rate)

    @staticmethod
    def _narrow(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """In the type that products are made in."""
        device, dtype = v.device.type, v.dtype
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        return q.to(dtype), k.to(dtype), v.to(dtype)
