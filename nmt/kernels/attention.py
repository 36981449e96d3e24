"""The kernels of attention, called with tensors.

Shapes: B sentences, H query heads, G key/value heads (G divides H), T queries, S keys.
"""

import ctypes
from ctypes import byref, c_float, c_int, c_int64, c_uint64, c_void_p
from typing import NamedTuple

import torch
from torch import Tensor

from nmt.kernels.switch import half, place, switched_on


class _Heads(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("sentence", c_int64), ("head", c_int64), ("place", c_int64))

    @classmethod
    def of(cls, tensor: Tensor) -> "_Heads":
        assert tensor.stride(3) == 1 or tensor.size(3) == 1
        return cls(tensor.data_ptr(), *tensor.stride()[:3])


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


class Within(NamedTuple):
    """Where queries look that lie end to end in one row (B = 1), as keys do: within their own sentence.

    query_start, key_start: (N + 1,) int32, where sentences begin, and where the last ends: the length of the row.
    n_query, n_key: bounds on the lengths of sentences. causal: whether they look at their own place and back alone.
    """

    query_start: Tensor
    key_start: Tensor
    n_query: int
    n_key: int
    causal: bool


class Attention(NamedTuple):
    """dropout(softmax(scale · q kT)) v, and its gradient.

    mask: bool (B or 1, 1, T or 1, S), its columns dense, True where a query may look; one that may look nowhere finds
    zeros. n_drop: this many weights of N_CHANCE are dropped; which ones follows from the seed. scale_up: of the others.
    """

    mask: Tensor | Within
    scale: float
    seed: int = 0
    n_drop: int = 0
    scale_up: float = 1.0

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """(B, H, T, d_k), (B, G, S, d_k), (B, G, S, d_v), of one type -> (B, H, T, d_v), in memory (B, T, H, d_v), and
        the weights before dropout, (B, H, T, S or more) fp32, where what is behind S is zero. Sentences that lie end to
        end have their weights one after the other, (H, their queries, keys of the longest or more) each, of which those
        behind their own keys are not to be read."""
        q, k, v = (_dense(x) for x in (q, k, v))
        shape, lanes = self._shape(q, k, v), switched_on().lanes()
        weight = torch.empty(*q.shape[:3], -(-shape.n_key // lanes) * lanes)
        out = _by_place(q, v.size(3))
        failed = switched_on().attend(byref(shape), *(byref(_Heads.of(x)) for x in (q, k, v, out)), place(weight))
        _check(failed)
        return out, weight

    def look_up(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """What `forward` finds, for a few queries that see few of the keys, without dropout and without a gradient."""
        assert not self.n_drop and isinstance(self.mask, Tensor)
        q, k, v = (_dense(x) for x in (q, k, v))
        out = _by_place(q, v.size(3))
        failed = switched_on().look_up(byref(self._shape(q, k, v)), *(byref(_Heads.of(x)) for x in (q, k, v, out)))
        _check(failed)
        return out

    def backward(self, q: Tensor, k: Tensor, v: Tensor, weight: Tensor, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of q, k and v, by the weights of `forward` and the gradient (B, H, T, d_v) of its output."""
        q, k, v, d_out = (_dense(x) for x in (q, k, v, d_out))
        grads = self._room(q, k, v)
        failed = switched_on().attend_backward(
            byref(self._shape(q, k, v)),
            *(byref(_Heads.of(x)) for x in (q, k, v, d_out)),
            place(weight),
            *(byref(_Heads.of(x)) for x in grads),
        )
        _check(failed)
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
        if isinstance(mask, Within):
            size = len(mask.query_start) - 1, mask.n_query, mask.n_key
            where = None, 0, 0, mask.query_start.data_ptr(), mask.key_start.data_ptr(), mask.causal
        else:
            size = q.size(0), q.size(2), k.size(2)
            apart = (mask.stride(dim) if mask.size(dim) > 1 else 0 for dim in (0, 2))
            where = mask.data_ptr(), *apart, None, None, False
        return _Shape(
            size[0],
            q.size(1),
            k.size(1),
            *size[1:],
            q.size(3),
            v.size(3),
            *where,
            self.scale,
            self.seed,
            self.n_drop,
            self.scale_up,
            half(q),
            torch.get_num_threads(),
        )


def _dense(x: Tensor) -> Tensor:
    """x, whose columns lie side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


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
