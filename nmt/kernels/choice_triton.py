"""The end of a step of a search on a GPU, in Triton: from logits to the hypotheses that go on, in two kernels.

Shapes: B sentences, K hypotheses of each, R = B·K rows, V columns, T steps that there is room for.
"""

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from nmt.kernels.on_gpu import dense, on_its_device
from nmt.kernels.search_triton import scan

_WIDTH = 64  # columns of a block
_MOST_BLOCKS = 512
_PER_WARP = 2048  # numbers that are looked at together


@triton.jit
def _go_on(
    logits, allowed, state, tops, log_total, score, max_len, last_divisor, n_ended, best, done, last, rows, steps,
    divisors, token, parent, ended, forced,
    row_stride, n_column, n_block, room, eos, n_best,
    K: tl.constexpr, ROWS: tl.constexpr, EACH: tl.constexpr, WIDTH: tl.constexpr, BLOCKS: tl.constexpr,
    PLACES: tl.constexpr, BEST: tl.constexpr,
):  # fmt: skip
    """A sentence. NaN counts as the highest there is, so that nothing is found twice; scores stay what they are."""
    sentence = tl.program_id(0).to(tl.int64)
    row, turn, block = tl.arange(0, ROWS), tl.arange(0, EACH), tl.arange(0, BLOCKS)
    is_row = row < K
    line = sentence * K + row

    # The K + 1 best columns of each row lie in the K + 1 blocks with the highest maxima.
    there = is_row[:, None] & (block[None, :] < n_block)
    top = tl.load(tops + line[:, None] * n_block + block[None, :], mask=there, other=-float("inf")).to(tl.float32)
    top = tl.where(top != top, float("inf"), top)
    found = tl.full((ROWS, EACH), -1, tl.int32)
    for i in range(K + 1):
        highest, where = tl.max(top, 1, return_indices=True)
        is_found = (turn[None, :] == i) & (highest > -float("inf"))[:, None]
        found = tl.where(is_found, where[:, None], found)
        top = tl.where(block[None, :] == where[:, None], -float("inf"), top)
    column = found[:, :, None] * WIDTH + tl.arange(0, WIDTH)[None, None, :]
    there = (found[:, :, None] >= 0) & (column < n_column)
    column, there = tl.reshape(column, (ROWS, EACH * WIDTH)), tl.reshape(there, (ROWS, EACH * WIDTH))
    x = tl.load(logits + line[:, None] * row_stride + column, mask=there, other=-float("inf")).to(tl.float32)
    of_row = tl.load(state + line, mask=is_row, other=0) * n_column
    may = tl.load(allowed + of_row[:, None] + column, mask=there, other=0) != 0
    x = tl.where(may, tl.where(x != x, float("inf"), x), -float("inf"))
    inside = tl.arange(0, EACH * WIDTH)[None, :]
    value, entry = tl.full((ROWS, EACH), -float("inf"), tl.float32), tl.full((ROWS, EACH), 0, tl.int32)
    for i in range(K + 1):
        highest, where = tl.max(x, 1, return_indices=True)
        its = tl.sum(tl.where(inside == where[:, None], column, 0), 1)
        value = tl.where(turn[None, :] == i, highest[:, None], value)
        entry = tl.where(turn[None, :] == i, its[:, None], entry)
        x = tl.where(inside == where[:, None], -float("inf"), x)
    entry = tl.minimum(tl.maximum(entry, 0), n_column - 1)  # of what is not there, too

    # The 2 K best of the sentence; of equals the first.
    normaliser = tl.load(log_total + line, mask=is_row, other=0.0)
    old = tl.load(score + line, mask=is_row, other=-float("inf"))
    total = (value - normaliser[:, None]) + old[:, None]
    total = tl.where(is_row[:, None] & (turn[None, :] <= K), total, -float("inf"))
    rank = tl.reshape(total, (ROWS * EACH,))
    rank = tl.where(rank != rank, float("inf"), rank)
    total, entry = tl.reshape(total, (ROWS * EACH,)), tl.reshape(entry, (ROWS * EACH,))
    candidate, at = tl.arange(0, ROWS * EACH), tl.arange(0, PLACES)
    its_score = tl.full((PLACES,), -float("inf"), tl.float32)
    its_token, its_parent = tl.full((PLACES,), 0, tl.int32), tl.full((PLACES,), 0, tl.int32)
    for i in range(2 * K):
        highest, where = tl.max(rank, 0, return_indices=True)
        is_it = candidate == where
        one = tl.where(highest > -float("inf"), tl.sum(tl.where(is_it, total, 0.0), 0), -float("inf"))
        its_score = tl.where(at == i, one, its_score)
        its_token = tl.where(at == i, tl.sum(tl.where(is_it, entry, 0), 0), its_token)
        its_parent = tl.where(at == i, where // EACH, its_parent)
        rank = tl.where(is_it, -float("inf"), rank)

    # Those with EOS among the K best end, and at the cap all.
    is_there, is_eos = at < 2 * K, its_token == eos
    ends = is_eos & (at < K) & (its_score > -float("inf"))
    mine = ends[None, :] & (its_parent[None, :] == row[:, None])
    end = tl.max(tl.where(mine, its_score[None, :], -float("inf")), 1)
    step = tl.load(steps)
    at_cap = tl.load(max_len + sentence) <= step
    eos_logit = tl.load(logits + line * row_stride + eos, mask=is_row, other=0.0).to(tl.float32)
    is_forced = at_cap & (end == -float("inf"))
    is_inside = tl.load(state + line, mask=is_row, other=1) != 0
    ends_well = (is_row & ~is_inside & (old > -float("inf"))).to(tl.int32)
    is_fine = (tl.load(n_ended + sentence) > 0) | (tl.max(ends_well, 0) > 0)
    end = tl.where(is_forced & ~(is_inside & is_fine), old + (eos_logit - normaliser), end)
    note = (sentence * room + step) * K
    tl.store(ended + note + row, end, mask=is_row)
    tl.store(forced + note + row, is_forced.to(tl.uint8), mask=is_row)
    count = tl.load(n_ended + sentence) + tl.sum((is_row & (end > -float("inf"))).to(tl.int64), 0)
    tl.store(n_ended + sentence, count)

    # The K best of the others go on.
    goes = (is_there & (its_token != eos)).to(tl.int32)
    behind = tl.sum(goes, 0) + tl.cumsum((is_there & is_eos).to(tl.int32), 0) - 1
    to = tl.where(goes != 0, tl.cumsum(goes, 0) - 1, behind)
    stays = is_there & (to < K)
    its_score = tl.where(is_eos, -float("inf"), its_score)
    tl.store(token + note + to, its_token.to(tl.int64), mask=stays)
    tl.store(parent + note + to, its_parent.to(tl.int64), mask=stays)
    tl.store(last + sentence * K + to, its_token.to(tl.int64), mask=stays)
    tl.store(rows + sentence * K + to, sentence * K + its_parent, mask=stays)

    # What is known of the sentence.
    normalised = tl.where(is_row, end.to(tl.float64) / tl.load(divisors + step + 1), -float("inf"))
    nth = tl.arange(0, BEST)
    known = tl.load(best + sentence * n_best + nth, mask=nth < n_best, other=-float("inf"))
    worst = tl.max(known, 0)
    for i in range(n_best):
        of_known, where_known = tl.max(known, 0, return_indices=True)
        of_new, where_new = tl.max(normalised, 0, return_indices=True)
        worst = tl.maximum(of_known, of_new)
        tl.store(best + sentence * n_best + i, worst)
        known = tl.where(nth == tl.where(of_known >= of_new, where_known, -1), -float("inf"), known)
        normalised = tl.where(row == tl.where(of_known < of_new, where_new, -1), -float("inf"), normalised)
    best_live = tl.max(tl.where(stays, its_score, -float("inf")), 0).to(tl.float64)
    is_done = count >= K
    if K > 1:
        is_done = is_done & (best_live / tl.load(divisors + step + 2) <= worst)
    is_done = is_done | at_cap | (worst >= best_live / tl.load(last_divisor + sentence))
    tl.store(done + sentence, is_done.to(tl.uint8))
    tl.store(score + sentence * K + to, tl.where(is_done, -float("inf"), its_score), mask=stays)


def go_on(
    logits: Tensor,
    allowed: Tensor,
    state: Tensor,
    of: Mapping[str, Tensor],
    notes: Mapping[str, Tensor],
    last: Tensor,
    step: Tensor,
    divisors: Tensor,
    eos: int,
) -> Tensor:
    """`fixed_search.Table.finish_step` of logits (R, V), but for the numbers of steps and of sentences that
    are done: the rows that hypotheses continue, (R,).

    allowed: (S, V) uint8, 0 where a column may not be chosen in a state; state: (R,) of each row. step: (1,) how many
    have been made. divisors: (T + 2,).
    """
    logits, score = dense(logits), of["score"]
    (n_sentence, beam), n_column = score.shape, logits.size(1)
    width = max(_WIDTH, triton.next_power_of_2(triton.cdiv(n_column, _MOST_BLOCKS)))
    log_total, tops = scan(logits, allowed, width, state)
    n_row, n_each = triton.next_power_of_2(beam), triton.next_power_of_2(beam + 1)
    n_block = triton.next_power_of_2(tops.size(1))
    n_warp = n_row * max(n_block, n_each * width) // _PER_WARP
    rows = torch.empty_like(last)
    with on_its_device(logits):
        _go_on[(n_sentence,)](
            logits, allowed, state, tops, log_total, score, of["max_len"], of["last_divisor"], of["n_ended"],
            of["best"], of["done"].view(torch.uint8), last, rows, step, divisors,
            notes["token"], notes["parent"], notes["ended"], notes["forced"].view(torch.uint8),
            logits.stride(0), n_column, tops.size(1), notes["token"].size(1), eos, of["best"].size(1),
            K=beam, ROWS=n_row, EACH=n_each, WIDTH=width, BLOCKS=n_block, PLACES=triton.next_power_of_2(2 * beam),
            BEST=triton.next_power_of_2(of["best"].size(1)), num_warps=min(8, max(1, n_warp)),
        )  # fmt: skip
    return rows
