"""What a step of a search on a GPU spends most of its time in, in Triton: hypotheses look at what they and the source
are, and the logits are passed over. No gradients.

Shapes: B sentences, K hypotheses of each, H query heads, G key/value heads (G divides H), S places to look at, R rows,
V columns.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from nmt.native.on_gpu import dense, on_its_device
from nmt.native.tiles_triton import look_further

_FEWEST = 16  # rows of a tile that is multiplied
_N_KEY = 64
_N_COLUMN = 4096  # columns of a row that are looked at together


@triton.jit
def _look(
    q, k, v, mask, out,
    q_sentence, q_head, q_row, k_sentence, k_head, k_place, v_sentence, v_head, v_place,
    mask_sentence, mask_row, mask_place,
    n_row, n_head, n_key, n_share, slope,
    D_K: tl.constexpr, D_V: tl.constexpr, N_ROW: tl.constexpr, N_KEY: tl.constexpr,
):  # fmt: skip
    """All hypotheses of a sentence, all heads that share a key/value head. What none of them looks at is not read."""
    sentence, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    line = tl.arange(0, N_ROW)
    is_line = line < n_share * n_row
    row, head = line % n_row, group * n_share + line // n_row
    at_k, at_v = tl.arange(0, D_K), tl.arange(0, D_V)
    place = sentence * q_sentence + head[:, None] * q_head + row[:, None] * q_row + at_k[None, :]
    queries = tl.load(q + place, mask=is_line[:, None], other=0.0)
    k += sentence * k_sentence + group * k_head
    v += sentence * v_sentence + group * v_head
    mask += sentence * mask_sentence
    top = tl.full((N_ROW,), -float("inf"), tl.float32)
    total = tl.zeros((N_ROW,), tl.float32)
    found = tl.zeros((N_ROW, D_V), tl.float32)
    for start in range(0, n_key, N_KEY):
        key = start + tl.arange(0, N_KEY)
        there = is_line[:, None] & (key[None, :] < n_key)
        seen = tl.load(mask + row[:, None] * mask_row + key[None, :] * mask_place, mask=there, other=0) != 0
        is_seen = tl.max(seen.to(tl.int32), 0) > 0
        if tl.max(is_seen.to(tl.int32), 0) > 0:
            keys = tl.load(k + key[None, :] * k_place + at_k[:, None], mask=is_seen[None, :], other=0.0)
            values = tl.load(v + key[:, None] * v_place + at_v[None, :], mask=is_seen[:, None], other=0.0)
            z = tl.where(seen, tl.dot(queries, keys, input_precision="ieee") * slope, -float("inf"))
            top, total, found = look_further(z, values, top, total, found)
    total = tl.where(total == 0.0, 1.0, total)
    place = ((sentence * n_row + row[:, None]) * n_head + head[:, None]) * D_V + at_v[None, :]
    tl.store(out + place, (found / total[:, None]).to(out.dtype.element_ty), mask=is_line[:, None])


def look(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """softmax(scale · q kT) v where the mask lets look; who may look nowhere finds zeros.

    q: (B, H, K, d_k), k: (B, G, S, d_k), v: (B, G, S, d_v), mask: bool (B or 1, 1, K or 1, S). Returns (B, H, K, d_v),
    in memory (B, K, H, d_v).
    """
    q, k, v, seen = dense(q), dense(k), dense(v), mask.view(torch.uint8)
    (n_sentence, n_head, n_row, width), n_group, n_share = q.shape, k.size(1), q.size(1) // k.size(1)
    out = q.new_empty(n_sentence, n_row, n_head, v.size(3))
    with on_its_device(q):
        _look[n_sentence, n_group](
            q, k, v, seen, out, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
            seen.stride(0) if seen.size(0) > 1 else 0, seen.stride(2) if seen.size(2) > 1 else 0, seen.stride(3),
            n_row, n_head, k.size(2), n_share, scale * math.log2(math.e),
            D_K=width, D_V=v.size(3), N_ROW=max(_FEWEST, triton.next_power_of_2(n_share * n_row)), N_KEY=_N_KEY,
            num_warps=2,
        )  # fmt: skip
    return out.transpose(1, 2)


@triton.jit
def _scan(
    logits, allowed, tops, log_total, row_stride, n_column, n_block, WIDTH: tl.constexpr, N_BLOCK: tl.constexpr
):  # fmt: skip
    """A row. The sum takes every column, the maximum of each block those that are allowed."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
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
    """Which of so many columns are not among `never`: (V,) uint8."""
    return torch.ones(n_column, dtype=torch.uint8, device=never.device).index_fill_(0, never, 0)


def scan(logits: Tensor, allowed: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """One pass over (R, V): the logarithm of the sum of the exponentials of each row, (R,) fp32, and the highest of
    each `width` columns, in the last block maybe fewer, that are allowed: (R, blocks). allowed: (V,) uint8, 0 or 1."""
    logits = dense(logits)
    n_row, n_column = logits.shape
    n_block = triton.cdiv(n_column, width)
    tops, log_total = logits.new_empty(n_row, n_block), logits.new_empty(n_row, dtype=torch.float32)
    with on_its_device(logits):
        _scan[(n_row,)](
            logits, allowed, tops, log_total, logits.stride(0), n_column, n_block,
            WIDTH=width, N_BLOCK=_N_COLUMN // width, num_warps=8,
        )  # fmt: skip
    return log_total, tops
