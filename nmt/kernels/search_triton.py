"""Kernels for a step of beam search on a GPU, in Triton: attention of hypotheses to their past and to the source,
storing of keys and values, and a pass over logits. No gradients.

Shapes: B sentences, K hypotheses of each, H query heads, G key/value heads (G divides H), S keys, R rows, V columns.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from nmt.kernels.on_gpu import dense, on_its_device
from nmt.kernels.tiles_triton import attend_to_tile

_MIN_TILE_ROWS = 16  # of a product
_N_KEY = 32  # keys of a tile
_N_COLUMN = 4096  # columns of a row that a program reads at a time
_N_MASK = 1024  # elements of a mask that a program reads at a time


class SeenKeys(NamedTuple):
    """The keys of a mask, (B or 1, 1, K or 1, S), that any hypothesis may look at.

    n: (B,) int32, number of these keys; place: (B, S) int32, their places, in order; bits: (B, S), with bit k set if
    hypothesis k may look at the key, and all bits set if the mask is shared. Only the first n entries are valid.
    """

    n: Tensor
    place: Tensor
    bits: Tensor


@triton.jit
def _seen_keys(
    mask, n, place, bits, mask_sentence, mask_row, mask_place, n_row, n_key,
    N_ROW: tl.constexpr, N_KEY: tl.constexpr, IS_SHARED: tl.constexpr,
):  # fmt: skip
    """One program per sentence."""
    sentence = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, N_ROW)
    n_seen = 0
    for start in range(0, n_key, N_KEY):
        key = start + tl.arange(0, N_KEY)
        is_inside = (row[:, None] < n_row) & (key[None, :] < n_key)
        address = mask + sentence * mask_sentence + row[:, None] * mask_row + key[None, :] * mask_place
        seen = (tl.load(address, mask=is_inside, other=0) != 0).to(bits.dtype.element_ty)
        seen_by = tl.sum(seen << row[:, None].to(seen.dtype), 0)
        is_seen = (seen_by != 0).to(tl.int32)
        if IS_SHARED:
            seen_by = -seen_by
        entry = sentence * n_key + n_seen + tl.cumsum(is_seen, 0) - 1
        tl.store(place + entry, key, mask=is_seen != 0)
        tl.store(bits + entry, seen_by, mask=is_seen != 0)
        n_seen += tl.sum(is_seen, 0)
    tl.store(n + sentence, n_seen)


def seen_keys(mask: Tensor) -> SeenKeys:
    """List the keys of a mask, bool, (B or 1, 1, K or 1, S), with K of at most 64."""
    seen = mask.view(torch.uint8)
    n_sentence, _, n_row, n_key = seen.shape
    n = torch.empty(n_sentence, dtype=torch.int32, device=seen.device)
    place = n.new_empty(n_sentence, n_key)
    bits = torch.empty_like(place, dtype=torch.int32 if n_row <= 32 else torch.int64)
    n_tile_row = triton.next_power_of_2(n_row)
    with on_its_device(seen):
        _seen_keys[(n_sentence,)](
            seen, n, place, bits, seen.stride(0), seen.stride(2), seen.stride(3), n_row, n_key,
            N_ROW=n_tile_row, N_KEY=min(triton.next_power_of_2(n_key), _N_MASK // n_tile_row), IS_SHARED=n_row == 1,
            num_warps=1,
        )  # fmt: skip
    return SeenKeys(n, place, bits)


@triton.jit
def _attend(
    q, k, v, n_seen, place, bits, out,
    q_sentence, q_head, q_row, k_sentence, k_head, k_place, v_sentence, v_head, v_place,
    n_stride, list_stride, n_row, n_head, n_share, slope,
    D_K: tl.constexpr, D_V: tl.constexpr, N_ROW: tl.constexpr, N_KEY: tl.constexpr, N_BIT: tl.constexpr,
):  # fmt: skip
    """One program for all hypotheses of a sentence and all heads of a key/value head. Reads only keys that are seen."""
    sentence, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    line = tl.arange(0, N_ROW)
    is_line = line < n_share * n_row
    row, head = line % n_row, group * n_share + line // n_row
    column_k, column_v = tl.arange(0, D_K), tl.arange(0, D_V)
    offset = sentence * q_sentence + head[:, None] * q_head + row[:, None] * q_row + column_k[None, :]
    queries = tl.load(q + offset, mask=is_line[:, None], other=0.0)
    k += sentence * k_sentence + group * k_head
    v += sentence * v_sentence + group * v_head
    place += sentence * list_stride
    bits += sentence * list_stride
    top = tl.full((N_ROW,), -float("inf"), tl.float32)
    total = tl.zeros((N_ROW,), tl.float32)
    weighted = tl.zeros((N_ROW, D_V), tl.float32)
    n = tl.load(n_seen + sentence * n_stride)
    for start in range(0, n, N_KEY):
        entry = start + tl.arange(0, N_KEY)
        is_entry = entry < n
        key, seen_by = tl.load(place + entry, mask=is_entry, other=0), tl.load(bits + entry, mask=is_entry, other=0)
        keys = tl.load(k + key[None, :] * k_place + column_k[:, None], mask=is_entry[None, :], other=0.0)
        values = tl.load(v + key[:, None] * v_place + column_v[None, :], mask=is_entry[:, None], other=0.0)
        # Modulo N_BIT: with a shared mask there may be more hypotheses than bits.
        seen = ((seen_by[None, :] >> (row & (N_BIT - 1))[:, None].to(seen_by.dtype)) & 1) != 0
        z = tl.where(seen, tl.dot(queries, keys, input_precision="ieee") * slope, -float("inf"))
        top, total, weighted = attend_to_tile(z, values, top, total, weighted)
    total = tl.where(total == 0.0, 1.0, total)
    target = ((sentence * n_row + row[:, None]) * n_head + head[:, None]) * D_V + column_v[None, :]
    tl.store(out + target, (weighted / total[:, None]).to(out.dtype.element_ty), mask=is_line[:, None])


def attend(q: Tensor, k: Tensor, v: Tensor, seen: SeenKeys, scale: float) -> Tensor:
    """softmax(scale · q kT) v over the keys that the mask allows; a query that may look nowhere gets zeros.

    q: (B, H, K, d_k), k: (B, G, S, d_k), v: (B, G, S, d_v), seen: of a mask (B or 1, 1, K or 1, S). Returns
    (B, H, K, d_v), in memory (B, K, H, d_v).
    """
    q, k, v = dense(q), dense(k), dense(v)
    (n_sentence, n_head, n_row, width), n_group, n_share = q.shape, k.size(1), q.size(1) // k.size(1)
    out = q.new_empty(n_sentence, n_row, n_head, v.size(3))
    n_line = max(_MIN_TILE_ROWS, triton.next_power_of_2(n_share * n_row))
    # Few warps and keys of a tile, since many small programs hide the latency of memory best.
    n_byte = n_line * max(width, v.size(3)) * v.itemsize
    n_warp = 1 if n_byte <= 4096 else 2 if n_byte <= 8192 else 4
    with on_its_device(q):
        _attend[n_sentence, n_group](
            q, k, v, *seen, out, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
            *((1, seen.place.stride(0)) if len(seen.n) > 1 else (0, 0)), n_row, n_head, n_share,
            scale * math.log2(math.e),
            D_K=width, D_V=v.size(3), N_ROW=n_line, N_KEY=_N_KEY, N_BIT=8 * seen.bits.itemsize,
            num_warps=n_warp, num_stages=2,
        )  # fmt: skip
    return out.transpose(1, 2)


@triton.jit
def _store(
    k, v, new_k, new_v, steps,
    k_sentence, k_head, k_place, v_sentence, v_head, v_place,
    new_k_sentence, new_k_head, new_k_row, new_v_sentence, new_v_head, new_v_row, n_row, n_group,
    D_K: tl.constexpr, D_V: tl.constexpr, N_GROUP: tl.constexpr,
):  # fmt: skip
    """One program per hypothesis."""
    sentence, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(steps) * n_row + row
    group, column_k, column_v = tl.arange(0, N_GROUP)[:, None], tl.arange(0, D_K)[None, :], tl.arange(0, D_V)[None, :]
    is_group = group < n_group
    new = tl.load(new_k + sentence * new_k_sentence + group * new_k_head + row * new_k_row + column_k, mask=is_group)
    tl.store(k + sentence * k_sentence + group * k_head + slot * k_place + column_k, new, mask=is_group)
    new = tl.load(new_v + sentence * new_v_sentence + group * new_v_head + row * new_v_row + column_v, mask=is_group)
    tl.store(v + sentence * v_sentence + group * v_head + slot * v_place + column_v, new, mask=is_group)


def store(k: Tensor, v: Tensor, new_k: Tensor, new_v: Tensor, steps: Tensor) -> None:
    """Store keys and values of the newest token of each hypothesis in the slots of this step: row i in slot
    steps · K + i.

    k, v: (B, G, slots, d), changed; new_k, new_v: (B, G, K, d); steps: (1,) number of steps before.
    """
    new_k, new_v = dense(new_k), dense(new_v)
    n_sentence, n_group, n_row, width = new_k.shape
    with on_its_device(k):
        _store[n_sentence, n_row](
            k, v, new_k, new_v, steps, *k.stride()[:3], *v.stride()[:3], *new_k.stride()[:3], *new_v.stride()[:3],
            n_row, n_group, D_K=width, D_V=v.size(3), N_GROUP=triton.next_power_of_2(n_group), num_warps=1,
        )  # fmt: skip


@triton.jit
def _scan(
    logits, allowed, state, tops, log_total, row_stride, n_column, n_block,
    WIDTH: tl.constexpr, N_BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row. The sum is over all columns, the maximum of each block over allowed ones."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    allowed += tl.load(state + row) * n_column
    top = -float("inf")
    total = 0.0
    for start in range(0, n_block, N_BLOCK):
        block = start + tl.arange(0, N_BLOCK)
        column = block[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
        is_column = column < n_column
        x = tl.load(logits + column, mask=is_column, other=-float("inf")).to(tl.float32)
        is_allowed = tl.load(allowed + column, mask=is_column, other=0) != 0
        best = tl.max(tl.where(is_allowed, x, -float("inf")), 1)
        tl.store(tops + row * n_block + block, best.to(tops.dtype.element_ty), mask=block < n_block)
        higher = tl.maximum(top, tl.max(tl.max(x, 1), 0))
        base = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(top - base) + tl.sum(tl.sum(tl.exp(x - base), 1), 0)
        top = higher
    tl.store(log_total + row, top + tl.log(total))


def scan(logits: Tensor, allowed: Tensor, width: int, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One pass over (R, V): the logsumexp of each row, (R,) fp32, and the maximum of the allowed columns in each block
    of `width` columns: (R, blocks). The last block may be narrower.

    allowed: (V,) uint8, 0 or 1; or (S, V), one line for each state. state: (R,) of each row.
    """
    logits = dense(logits)
    n_row, n_column = logits.shape
    state = torch.zeros(n_row, dtype=torch.int64, device=logits.device) if state is None else state
    n_block = triton.cdiv(n_column, width)
    tops, log_total = logits.new_empty(n_row, n_block), logits.new_empty(n_row, dtype=torch.float32)
    with on_its_device(logits):
        _scan[(n_row,)](
            logits, allowed, state, tops, log_total, logits.stride(0), n_column, n_block,
            WIDTH=width, N_BLOCK=_N_COLUMN // width, num_warps=8,
        )  # fmt: skip
    return log_total, tops
