"""Attention by kernels. `attention`, called by `ops.attention`, selects one.

On a CPU, for inputs as long as sentences: a kernel in C. On a GPU: a kernel for the hypotheses of a search, and kernels
for packed sentences.

Shapes: B sentences, H query heads, G key/value heads (G divides H), T queries, S keys.
"""

import ctypes
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_int64, c_uint64, c_void_p
from typing import Any

import torch
from torch import Tensor

from nmt.kernels import dropping, on_gpu, spans
from nmt.kernels.switch import dtype_of_products, is_half, kernels, takes
from nmt.masks import Mask, PackedMask, Packing, SearchMask, as_matrix

_FEW = 16  # queries, at most, for which transposing the keys does not pay
_SHORT = 256 * 256  # queries x keys, at most, whose weights fit into the caches


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, p: float) -> Tensor | None:
    """`ops.attention` without weights, by a kernel; None if the fused attention of torch is as fast."""
    if v.is_cpu:
        return _on_cpu(q, k, v, mask, scale, p)
    if isinstance(mask, PackedMask):
        return _packed(q, k, v, mask, scale)
    if isinstance(mask, SearchMask) and on_gpu.takes_hypotheses(q, k, v):
        from nmt.kernels import search_triton

        mask.prepared = mask.prepared or search_triton.seen_keys(mask.mask)
        return search_triton.attend(q, k, v, mask.prepared, scale)
    return None


def _on_cpu(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, p: float) -> Tensor | None:
    """Attention by the kernel in C, in the type of products. Only the hypotheses of a search, whose number does not
    depend on the other sentences of a batch, select the order of the sums by their number: up to 256 tokens, a
    translation is the same to the bit in any batch."""
    # For long inputs, whose weights exceed the caches, torch is faster; but it has no dropout.
    if not isinstance(mask, PackedMask) and not p and q.size(2) * k.size(2) > _SHORT:
        return None
    dtype = dtype_of_products(v)
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if not takes(q, k, v):
        return None
    in_search = isinstance(mask, SearchMask)
    if not isinstance(mask, PackedMask):
        mask = as_matrix(mask)
        mask = mask if mask.stride(3) == 1 else mask.contiguous()
    if in_search and not p and not torch.is_grad_enabled() and q.size(2) <= _FEW:
        return _look_up(q, k, v, mask, scale)
    return attend(q, k, v, mask, scale, dropping.draw(p))


def prepared(query: Packing, key: Packing, causal: bool) -> tuple[spans.Spans | None, bool] | None:
    """Prepare a packed mask for attention on a GPU. Not to be compiled. Returns the spans, if the Triton kernels work
    there, and True if torch has a kernel; None on another device."""
    device = query.start.device
    if device.type != "cuda":
        return None
    packed_spans = spans.Spans.within(query, key, causal=causal) if on_gpu.works(device) else None
    return packed_spans, on_gpu.is_new(device)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor | None:
    """`ops.rotate` by complex numbers: each pair of columns is one, and its rotation a product, in one pass over x."""
    if torch.compiler.is_compiling():  # the compiler has no complex numbers, and fuses the passes itself
        return None
    if x.storage_offset() % 2 or any(stride % 2 for stride in x.stride()[:-1]):
        x = x.contiguous()  # a slice of a wider product may not be aligned for complex numbers
    dtype = torch.promote_types(torch.promote_types(x.dtype, cos.dtype), torch.float32)  # none in half precision
    rotated = torch.view_as_complex(x.to(dtype).view(*x.shape[:-1], -1, 2))
    rotated = rotated * torch.complex(cos.to(dtype), sin.to(dtype))
    return torch.view_as_real(rotated).flatten(-2).to(x.dtype)


def _packed(q: Tensor, k: Tensor, v: Tensor, mask: PackedMask, scale: float) -> Tensor | None:
    """Attention on a GPU within each sentence of a packed row, without dropout; None if no kernel takes it."""
    if mask.prepared is None:
        return None
    packed_spans, has_flash = mask.prepared
    # Not x[0]: its gradient would be a copy into zeros.
    q, k, v = (x.squeeze(0).transpose(0, 1).to(v.dtype) for x in (q, k, v))  # (T, H, d)
    if packed_spans is not None and on_gpu.fits(q, k, v) and spans.are_near(q, k, v):
        return spans.attend(q, k, v, packed_spans, scale).transpose(0, 1).unsqueeze(0)
    if not has_flash or v.dtype not in (torch.bfloat16, torch.float16):
        return None
    from torch.nn.attention.varlen import varlen_attn  # imports the compiler, which takes over a second

    n_share = q.size(1) // k.size(1)
    if n_share > 1:  # in some versions of torch this kernel cannot share keys
        k, v = k.repeat_interleave(n_share, dim=1), v.repeat_interleave(n_share, dim=1)
    window = (-1, 0) if mask.causal else (-1, -1)
    query, key = mask.query, mask.key
    lengths = query.start, key.start, query.longest, key.longest
    output = varlen_attn(q, k, v, *lengths, window_size=window, scale=scale)
    assert isinstance(output, Tensor)
    return output.transpose(0, 1).unsqueeze(0)


# Interface to the kernel in C.


class _Heads(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("sentence", c_int64), ("head", c_int64), ("place", c_int64))


def _heads(*tensors: Tensor) -> list[Any]:
    assert all(x.stride(3) == 1 or x.size(3) == 1 for x in tensors)
    return [byref(_Heads(x.data_ptr(), *x.stride()[:3])) for x in tensors]


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


def _shape(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | PackedMask, scale: float, dropout: dropping.Draw) -> _Shape:
    pointers: tuple[int | None, ...]
    if isinstance(mask, PackedMask):
        size = len(mask.query.start) - 1, mask.query.longest, mask.key.longest
        pointers = None, 0, 0, mask.query.start.data_ptr(), mask.key.start.data_ptr(), mask.causal
    else:
        size = q.size(0), q.size(2), k.size(2)
        strides = (mask.stride(dim) if mask.size(dim) > 1 else 0 for dim in (0, 2))
        pointers = mask.data_ptr(), *strides, None, None, False
    sizes = size[0], q.size(1), k.size(1), *size[1:], q.size(3), v.size(3)
    return _Shape(*sizes, *pointers, scale, *dropout, is_half(q), torch.get_num_threads())


def _empty_heads(like: Tensor, width: int) -> Tensor:
    """Allocate (B, H, T, width) in the memory layout of the projections, (B, T, H, width)."""
    n_sentence, n_head, n_place, _ = like.shape
    return torch.empty(n_sentence, n_place, n_head, width, dtype=like.dtype).transpose(1, 2)


def _empty_parts(*like: Tensor) -> tuple[Tensor, ...]:
    """Allocate several (B, heads, T, width) side by side in one (B, T, sum of heads x width)."""
    n_sentence, _, n_place, _ = like[0].shape
    widths = [x.size(1) * x.size(3) for x in like]
    buffer = torch.empty(n_sentence, n_place, sum(widths), dtype=like[0].dtype)
    parts = zip(torch.split(buffer, widths, -1), like, strict=True)
    return tuple(part.view(n_sentence, n_place, x.size(1), -1).transpose(1, 2) for part, x in parts)


def _check(failed: int) -> None:
    if failed:
        raise MemoryError("out of memory for the attention buffers of the threads")


def _empty_gradients(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """Allocate the gradients of q, k and v. If they are parts of one product, their gradients are parts of one."""
    if q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr():
        return _empty_parts(q, k, v)
    return _empty_heads(q, q.size(3)), *_empty_parts(k, v)


def _look_up(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | PackedMask, scale: float) -> Tensor:
    """`attend` for a few queries that see few of the keys, without dropout and without a gradient."""
    q, k, v = (on_gpu.dense(x) for x in (q, k, v))
    out = _empty_heads(q, v.size(3))
    _check(kernels().look_up(byref(_shape(q, k, v, mask, scale, dropping.NO_DROPOUT)), *_heads(q, k, v, out)))
    return out


class _Attend(torch.autograd.Function):
    """Saves the weights before dropout, fp32: (B, H, T, S or more), or sentence by sentence for a packed row. The
    backward pass draws the dropout again."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | PackedMask, scale: float, dropout: dropping.Draw
    ) -> Tensor:
        q, k, v = (on_gpu.dense(x) for x in (q, k, v))
        ctx.options = mask, scale, dropout
        shape, n_lane = _shape(q, k, v, *ctx.options), kernels().lanes()
        weight = torch.empty(*q.shape[:3], -(-shape.n_key // n_lane) * n_lane)
        out = _empty_heads(q, v.size(3))
        _check(kernels().attend(byref(shape), *_heads(q, k, v, out), weight))
        ctx.save_for_backward(q, k, v, weight)
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weight = ctx.saved_tensors
        d_out, grads = on_gpu.dense(grad_outputs[0]), _empty_gradients(q, k, v)
        args = *_heads(q, k, v, d_out), weight, *_heads(*grads)
        _check(kernels().attend_backward(byref(_shape(q, k, v, *ctx.options)), *args))
        return *grads, None, None, None


# dropout(softmax(scale · q kT)) v of q (B, H, T, d_k), k (B, G, S, d_k), v (B, G, S, d_v), all of one type, a mask, the
# scale, and the dropout of the weights: (B, H, T, d_v), in memory (B, T, H, d_v). The mask is bool, (B or 1, 1, T or 1,
# S), with dense columns, or that of a packed row; a query that may look nowhere gets zeros.
attend: Callable[[Tensor, Tensor, Tensor, Tensor | PackedMask, float, dropping.Draw], Tensor] = _Attend.apply
