"""Kernels of a step of a search on a GPU, in Triton: hypotheses attend to their past and to the source, and logits are
passed over. No gradients.

Shapes: B sentences, K hypotheses of each, H query heads, G key/value heads (G divides H), S places to look at, R rows,
V columns.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from nmt.kernels.on_gpu import dense, on_its_device
from nmt.kernels.tiles_triton import look_further

_FEWEST = 16  # rows of a tile that is multiplied
_N_COLUMN = 4096  # columns of a row that are looked at together
_N_LISTED = 1024  # places and rows of a mask that are looked at together


class Listed(NamedTuple):
    """The places of a mask, (B or 1, 1, K or 1, S), without those where none may look.

    n: (B,) int32, how many places are left; place: (B, S) int32, which, in their order; bits: (B, S), bit k of them
    whether hypothesis k may look there, all bits where that is asked of all alike. Only the first n count.
    """

    n: Tensor
    place: Tensor
    bits: Tensor


@triton.jit
def _list(
    mask, n, place, bits, mask_sentence, mask_row, mask_place, n_row, n_key,
    N_ROW: tl.constexpr, N_KEY: tl.constexpr, ALIKE: tl.constexpr,
):  # fmt: skip
    """A sentence."""
    sentence = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, N_ROW)
    n_listed = 0
    for start in range(0, n_key, N_KEY):
        key = start + tl.arange(0, N_KEY)
        there = (row[:, None] < n_row) & (key[None, :] < n_key)
        at = mask + sentence * mask_sentence + row[:, None] * mask_row + key[None, :] * mask_place
        seen = (tl.load(at, mask=there, other=0) != 0).to(bits.dtype.element_ty)
        seen_by = tl.sum(seen << row[:, None].to(seen.dtype), 0)
        is_seen = (seen_by != 0).to(tl.int32)
        if ALIKE:
            seen_by = -seen_by
        to = sentence * n_key + n_listed + tl.cumsum(is_seen, 0) - 1
        tl.store(place + to, key, mask=is_seen != 0)
        tl.store(bits + to, seen_by, mask=is_seen != 0)
        n_listed += tl.sum(is_seen, 0)
    tl.store(n + sentence, n_listed)


def listed(mask: Tensor) -> Listed:
    """Of a mask, bool, (B or 1, 1, K or 1, S) with K of at most 64."""
    seen = mask.view(torch.uint8)
    n_sentence, _, n_row, n_key = seen.shape
    n = torch.empty(n_sentence, dtype=torch.int32, device=seen.device)
    place = n.new_empty(n_sentence, n_key)
    bits = torch.empty_like(place, dtype=torch.int32 if n_row <= 32 else torch.int64)
    n_rows = triton.next_power_of_2(n_row)
    with on_its_device(seen):
        _list[(n_sentence,)](
            seen, n, place, bits, seen.stride(0), seen.stride(2), seen.stride(3), n_row, n_key,
            N_ROW=n_rows, N_KEY=min(triton.next_power_of_2(n_key), _N_LISTED // n_rows), ALIKE=n_row == 1,
            num_warps=1,
        )  # fmt: skip
    return Listed(n, place, bits)


@triton.jit
def _look(
    q, k, v, n_listed, place, bits, out,
    q_sentence, q_head, q_row, k_sentence, k_head, k_place, v_sentence, v_head, v_place,
    n_stride, list_stride, n_row, n_head, n_share, slope,
    D_K: tl.constexpr, D_V: tl.constexpr, N_ROW: tl.constexpr, N_KEY: tl.constexpr, N_BIT: tl.constexpr,
):  # fmt: skip
    """All hypotheses of a sentence, all heads that share a key/value head. What none of them looks at is not read."""
    sentence, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    line = tl.arange(0, N_ROW)
    is_line = line < n_share * n_row
    row, head = line % n_row, group * n_share + line // n_row
    at_k, at_v = tl.arange(0, D_K), tl.arange(0, D_V)
    its = sentence * q_sentence + head[:, None] * q_head + row[:, None] * q_row + at_k[None, :]
    queries = tl.load(q + its, mask=is_line[:, None], other=0.0)
    k += sentence * k_sentence + group * k_head
    v += sentence * v_sentence + group * v_head
    place += sentence * list_stride
    bits += sentence * list_stride
    top = tl.full((N_ROW,), -float("inf"), tl.float32)
    total = tl.zeros((N_ROW,), tl.float32)
    found = tl.zeros((N_ROW, D_V), tl.float32)
    n = tl.load(n_listed + sentence * n_stride)
    for start in range(0, n, N_KEY):
        entry = start + tl.arange(0, N_KEY)
        there = entry < n
        key, seen_by = tl.load(place + entry, mask=there, other=0), tl.load(bits + entry, mask=there, other=0)
        keys = tl.load(k + key[None, :] * k_place + at_k[:, None], mask=there[None, :], other=0.0)
        values = tl.load(v + key[:, None] * v_place + at_v[None, :], mask=there[:, None], other=0.0)
        # Where all hypotheses look alike there may be more of them than bits.
        seen = ((seen_by[None, :] >> (row & (N_BIT - 1))[:, None].to(seen_by.dtype)) & 1) != 0
        z = tl.where(seen, tl.dot(queries, keys, input_precision="ieee") * slope, -float("inf"))
        top, total, found = look_further(z, values, top, total, found)
    total = tl.where(total == 0.0, 1.0, total)
    to = ((sentence * n_row + row[:, None]) * n_head + head[:, None]) * D_V + at_v[None, :]
    tl.store(out + to, (found / total[:, None]).to(out.dtype.element_ty), mask=is_line[:, None])


def look(q: Tensor, k: Tensor, v: Tensor, where: Listed, scale: float) -> Tensor:
    """softmax(scale · q kT) v where the mask lets look; who may look nowhere finds zeros.

    q: (B, H, K, d_k), k: (B, G, S, d_k), v: (B, G, S, d_v), where: of (B or 1, 1, K or 1, S). Returns
    (B, H, K, d_v), in memory (B, K, H, d_v).
    """
    q, k, v = dense(q), dense(k), dense(v)
    (n_sentence, n_head, n_row, width), n_group, n_share = q.shape, k.size(1), q.size(1) // k.size(1)
    out = q.new_empty(n_sentence, n_row, n_head, v.size(3))
    n_line = max(_FEWEST, triton.next_power_of_2(n_share * n_row))
    n_key, n_warp = _tile(n_line, max(width, v.size(3)) * v.itemsize)
    with on_its_device(q):
        _look[n_sentence, n_group](
            q, k, v, *where, out, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
            *((1, where.place.stride(0)) if len(where.n) > 1 else (0, 0)), n_row, n_head, n_share,
            scale * math.log2(math.e),
            D_K=width, D_V=v.size(3), N_ROW=n_line, N_KEY=n_key, N_BIT=8 * where.bits.itemsize,
            num_warps=n_warp, num_stages=2,
        )  # fmt: skip
    return out.transpose(1, 2)


def _tile(n_line: int, n_byte: int) -> tuple[int, int]:
    """Number of keys of so many bytes that so many rows look at together, and of warps: few, so that there are many
    programs at a time, for each mostly waits for memory."""
    return 32, 1 if n_line * n_byte <= 4096 else 2 if n_line * n_byte <= 8192 else 4


@triton.jit
def _write(
    k, v, new_k, new_v, steps,
    k_sentence, k_head, k_place, v_sentence, v_head, v_place,
    new_k_sentence, new_k_head, new_k_row, new_v_sentence, new_v_head, new_v_row, n_row, n_group,
    D_K: tl.constexpr, D_V: tl.constexpr, N_GROUP: tl.constexpr,
):  # fmt: skip
    """A hypothesis."""
    sentence, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(steps) * n_row + row
    group, at_k, at_v = tl.arange(0, N_GROUP)[:, None], tl.arange(0, D_K)[None, :], tl.arange(0, D_V)[None, :]
    there = group < n_group
    new = tl.load(new_k + sentence * new_k_sentence + group * new_k_head + row * new_k_row + at_k, mask=there)
    tl.store(k + sentence * k_sentence + group * k_head + slot * k_place + at_k, new, mask=there)
    new = tl.load(new_v + sentence * new_v_sentence + group * new_v_head + row * new_v_row + at_v, mask=there)
    tl.store(v + sentence * v_sentence + group * v_head + slot * v_place + at_v, new, mask=there)


def write(k: Tensor, v: Tensor, new_k: Tensor, new_v: Tensor, steps: Tensor) -> None:
    """Keys and values of the hypotheses' newest words into the slots of this step: row i into slot steps · K + i.

    k, v: (B, G, slots, d), changed; new_k, new_v: (B, G, K, d); steps: (1,) how many have been made.
    """
    new_k, new_v = dense(new_k), dense(new_v)
    n_sentence, n_group, n_row, width = new_k.shape
    with on_its_device(k):
        _write[n_sentence, n_row](
            k, v, new_k, new_v, steps, *k.stride()[:3], *v.stride()[:3], *new_k.stride()[:3], *new_v.stride()[:3],
            n_row, n_group, D_K=width, D_V=v.size(3), N_GROUP=triton.next_power_of_2(n_group), num_warps=1,
        )  # fmt: skip


@triton.jit
def _scan(
    logits, allowed, state, tops, log_total, row_stride, n_column, n_block,
    WIDTH: tl.constexpr, N_BLOCK: tl.constexpr,
):  # fmt: skip
    """A row. The sum takes every column, the maximum of each block those that are allowed."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    allowed += tl.load(state + row) * n_column
    top = -float("inf")
    total = 0.0
    for start in range(0, n_block, N_BLOCK):
        block = start + tl.arange(0, N_BLOCK)
        column = block[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
        there = column < n_column
        x = tl.load(logits + column, mask=there, other=-float("inf")).to(tl.float32)
        may = tl.load(allowed + column, mask=there, other=0) != 0
        best = tl.max(tl.where(may, x, -float("inf")), 1)
        tl.store(tops + row * n_block + block, best.to(tops.dtype.element_ty), mask=block < n_block)
        higher = tl.maximum(top, tl.max(tl.max(x, 1), 0))
        base = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(top - base) + tl.sum(tl.sum(tl.exp(x - base), 1), 0)
        top = higher
    tl.store(log_total + row, top + tl.log(total))


def allowed(n_column: int, never: Tensor) -> Tensor:
    """Mask of columns that are not among `never`: (V,) uint8."""
    return torch.ones(n_column, dtype=torch.uint8, device=never.device).index_fill_(0, never, 0)


def scan(logits: Tensor, allowed: Tensor, width: int, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One pass over (R, V): the logarithm of the sum of the exponentials of each row, (R,) fp32, and the highest of
    each `width` columns, in the last block maybe fewer, that are allowed: (R, blocks).

    allowed: (V,) uint8, 0 or 1; or (S, V), a line for each state, which a row has one of: (R,).
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
