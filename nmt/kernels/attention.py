"""Attention by kernels, and the choice among them: `attention`, which `ops.attention` asks.

On a CPU, at the length of sentences: a kernel in C. On a GPU: a kernel for the hypotheses of a search, and kernels for
packed sentences.

Shapes: B sentences, H query heads, G key/value heads (G divides H), T queries, S keys.
"""

import ctypes
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_int64, c_uint64, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nmt.kernels import on_gpu, spans
from nmt.kernels.dropping import n_drop, scale_up, seed
from nmt.kernels.switch import half, switched_on, takes
from nmt.masks import Mask, PackedMask, Packing, SharedMask

_FEW = 16  # queries for which it does not pay to turn the keys round
_SHORT = 256 * 256  # queries x keys whose weights fit the caches


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, p: float, return_attns: bool
) -> tuple[Tensor, Tensor | None] | None:
    """`ops.attention` by a kernel; None for what torch's fused attention does as fast."""
    if isinstance(mask, PackedMask):
        if not return_attns and (found := _packed(q, k, v, mask, scale, p)) is not None:
            return found, None
        mask = mask.matrix()
    mask = mask if isinstance(mask, SharedMask) else SharedMask(mask)
    if v.is_cuda and mask.in_search and not return_attns and on_gpu.takes_hypotheses(q, k, v):
        from nmt.kernels import search_triton

        return search_triton.look(q, k, v, mask.derived(search_triton.listed), scale), None
    # Long inputs, whose weights would not fit the caches, are better in torch's, which has no dropout on a CPU.
    if return_attns or not v.is_cpu or (not p and q.size(2) * k.size(2) > _SHORT):
        return None
    q, k, v = _narrow(q, k, v)
    return (in_kernel(q, k, v, mask.mask, scale, p, in_search=mask.in_search), None) if takes(q, k, v) else None


def prepared(query: Packing, key: Packing, causal: bool) -> tuple[spans.Spans | None, bool] | None:
    """Prepare a packed mask for attention on a GPU: spans, if kernels of ours work there, and True if torch has one.
    Not to be compiled."""
    device = query.start.device
    if device.type != "cuda":
        return None
    its = spans.Spans.within(query, key, causal=causal) if on_gpu.works(device) else None
    return its, on_gpu.is_new(device)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor | None:
    """`ops.rotate` by complex numbers: a pair is one, and its turn a product, one pass over x instead of several."""
    if torch.compiler.is_compiling():  # which knows no complex numbers, and needs none to be fast
        return None
    if x.storage_offset() % 2 or any(stride % 2 for stride in x.stride()[:-1]):
        x = x.contiguous()  # a part of a wider product, of which no number need begin where a complex one may
    kind = torch.promote_types(torch.promote_types(x.dtype, cos.dtype), torch.float32)  # none in half precision
    turned = torch.view_as_complex(x.to(kind).view(*x.shape[:-1], -1, 2)) * torch.complex(cos.to(kind), sin.to(kind))
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


def _packed(q: Tensor, k: Tensor, v: Tensor, mask: PackedMask, scale: float, p: float) -> Tensor | None:
    """Attention within each sentence of the one row; None if no kernel takes these. Those of a GPU know no dropout."""
    if v.is_cpu:
        narrow = _narrow(q, k, v)
        return in_kernel(*narrow, mask, scale, p) if takes(*narrow) else None
    if mask.prepared is None:
        return None
    its, has_flash = mask.prepared
    # Not x[0], whose gradient is zeros and a copy.
    q, k, v = (x.squeeze(0).transpose(0, 1).to(v.dtype) for x in (q, k, v))  # (T, H, d)
    if its is not None and on_gpu.fits(q, k, v) and spans.are_near(q, k, v):
        return spans.attend(q, k, v, its, scale).transpose(0, 1).unsqueeze(0)
    if not has_flash or v.dtype not in (torch.bfloat16, torch.float16):
        return None
    from torch.nn.attention.varlen import varlen_attn  # which brings the compiler with it: over a second

    n_share = q.size(1) // k.size(1)
    if n_share > 1:  # not every torch that has this kernel lets it share keys
        k, v = k.repeat_interleave(n_share, dim=1), v.repeat_interleave(n_share, dim=1)
    window = (-1, 0) if mask.causal else (-1, -1)
    of_query, of_key = mask.query, mask.key
    lengths = of_query.start, of_key.start, of_query.longest, of_key.longest
    found = varlen_attn(q, k, v, *lengths, window_size=window, scale=scale)
    assert isinstance(found, Tensor)
    return found.transpose(0, 1).unsqueeze(0)


def _narrow(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """In the type that products are made in."""
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else v.dtype
    return q.to(dtype), k.to(dtype), v.to(dtype)


# The kernel in C, called with tensors.


class _Heads(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("sentence", c_int64), ("head", c_int64), ("place", c_int64))


def _heads(*tensors: Tensor) -> list[Any]:
    assert all(one.stride(3) == 1 or one.size(3) == 1 for one in tensors)
    return [byref(_Heads(one.data_ptr(), *one.stride()[:3])) for one in tensors]


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("n_sentence", "n_head", "n_group", "n_query", "n_key", "d_k", "d_v")),
        ("mask", c_void_p),
        ("mask_sentence", c_int64),
        ("mask_query", c_int64),
        ("query_start", c_void_p),
        ("key_start", c_void_p),
        ("causal", c_int),
        ("scale", c_float),
        ("seed", c_uint64),
        ("n_drop", c_int),
        ("scale_up", c_float),
        ("half", c_int),
        ("n_thread", c_int),
    )


class Attention(NamedTuple):
    """dropout(softmax(scale · q kT)) v, and its gradient.

    mask: bool (B or 1, 1, T or 1, S), its columns dense, True where a query may look; one that may look nowhere finds
    zeros. n_drop: this many weights of N_CHANCE are dropped; which ones follows from the seed. scale_up: of the others.
    """

    mask: Tensor | PackedMask
    scale: float
    seed: int = 0
    n_drop: int = 0
    scale_up: float = 1.0

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """(B, H, T, d_k), (B, G, S, d_k), (B, G, S, d_v), of one type -> (B, H, T, d_v), in memory (B, T, H, d_v), and
        the weights before dropout, fp32, for the gradient: (B, H, T, S or more), or sentence by sentence where they lie
        end to end."""
        q, k, v = (on_gpu.dense(x) for x in (q, k, v))
        shape, lanes = self._shape(q, k, v), switched_on().lanes()
        weight = torch.empty(*q.shape[:3], -(-shape.n_key // lanes) * lanes)
        out = _by_place(q, v.size(3))
        _check(switched_on().attend(byref(shape), *_heads(q, k, v, out), weight))
        return out, weight

    def look_up(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`forward` for a few queries that see few of the keys, without dropout and without a gradient."""
        assert not self.n_drop and isinstance(self.mask, Tensor)
        q, k, v = (on_gpu.dense(x) for x in (q, k, v))
        out = _by_place(q, v.size(3))
        _check(switched_on().look_up(byref(self._shape(q, k, v)), *_heads(q, k, v, out)))
        return out

    def backward(self, q: Tensor, k: Tensor, v: Tensor, weight: Tensor, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of q, k and v, by the weights of `forward` and the gradient (B, H, T, d_v) of its output."""
        q, k, v, d_out = (on_gpu.dense(x) for x in (q, k, v, d_out))
        grads = self._room(q, k, v)
        given = *_heads(q, k, v, d_out), weight, *_heads(*grads)
        _check(switched_on().attend_backward(byref(self._shape(q, k, v)), *given))
        return grads

    @staticmethod
    def _room(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Room for gradients of q, k and v. Those of one product lie side by side, as it would have them."""
        if q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr():
            d_q, d_k, d_v = _side_by_side(q, k, v)
        else:
            d_q, (d_k, d_v) = _by_place(q, q.size(3)), _side_by_side(k, v)
        return d_q, d_k, d_v

    def _shape(self, q: Tensor, k: Tensor, v: Tensor) -> _Shape:
        mask, where = self.mask, tuple[int | None, ...]()
        if isinstance(mask, PackedMask):
            size = len(mask.query.start) - 1, mask.query.longest, mask.key.longest
            where = None, 0, 0, mask.query.start.data_ptr(), mask.key.start.data_ptr(), mask.causal
        else:
            size = q.size(0), q.size(2), k.size(2)
            apart = (mask.stride(dim) if mask.size(dim) > 1 else 0 for dim in (0, 2))
            where = mask.data_ptr(), *apart, None, None, False
        sizes = size[0], q.size(1), k.size(1), *size[1:], q.size(3), v.size(3)
        chance = self.seed, self.n_drop, self.scale_up
        return _Shape(*sizes, *where, self.scale, *chance, half(q), torch.get_num_threads())


def _by_place(like: Tensor, width: int) -> Tensor:
    """Room for (B, H, T, width) as the projections read and write it: place by place."""
    n_sentence, n_head, n_place, _ = like.shape
    return torch.empty(n_sentence, n_place, n_head, width, dtype=like.dtype).transpose(1, 2)


def _side_by_side(*like: Tensor) -> tuple[Tensor, ...]:
    """Room for several (B, heads, T, width), whose places lie in one another's rows."""
    n_sentence, _, n_place, _ = like[0].shape
    widths = [one.size(1) * one.size(3) for one in like]
    room = torch.empty(n_sentence, n_place, sum(widths), dtype=like[0].dtype)
    parts = zip(torch.split(room, widths, -1), like, strict=True)
    return tuple(part.view(n_sentence, n_place, one.size(1), -1).transpose(1, 2) for part, one in parts)


def _check(failed: int) -> None:
    if failed:
        raise MemoryError("no memory for the room that attention needs in each thread")


class _InKernel(torch.autograd.Function):
    """Attention by a kernel, which reads the heads where the projections wrote them and draws the dropout again."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, attention: Attention) -> Tensor:
        output, weight = attention.forward(q, k, v)
        ctx.save_for_backward(q, k, v, weight)
        ctx.attention = attention
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        (d_output,) = grads
        return *ctx.attention.backward(*ctx.saved_tensors, d_output), None


_in_kernel: Callable[[Tensor, Tensor, Tensor, Attention], Tensor] = _InKernel.apply


def in_kernel(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | PackedMask, scale: float, p: float, *, in_search: bool = False
) -> Tensor:
    """dropout(softmax(scale · q kT)) v of what `switch.takes`: (B, H, T, d_v).

    q: (B, H, T, d_k), k: (B, G, S, d_k), v: (B, G, S, d_v), of one type; mask: bool, (B or 1, 1, T or 1, S), True where
    looking is allowed, or how sentences lie that are all in one row; a query that may look nowhere gets zeros.
    in_search: queries are hypotheses of a sentence. Only then their number, which never is that of what else is in a
    batch, decides how the sums are made: a translation of up to 256 tokens is the same to
    the bit in any batch.
    """
    if isinstance(mask, Tensor) and mask.stride(3) != 1:
        mask = mask.contiguous()
    if not p:
        attention = Attention(mask, scale)
        if in_search and isinstance(mask, Tensor) and not torch.is_grad_enabled() and q.size(2) <= _FEW:
            return attention.look_up(q, k, v)
        return _in_kernel(q, k, v, attention)
    return _in_kernel(q, k, v, Attention(mask, scale, seed(), n_drop(p), scale_up(p)))
