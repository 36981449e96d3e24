"""End of a step of beam search on a GPU, in Triton: from logits to the hypotheses that continue, in two kernels.

Shapes: B sentences, K hypotheses of each, R = B·K rows, V columns, T allocated steps.
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
_PER_WARP = 2048  # numbers in registers at a time


@triton.jit
def _end_of_step(
    logits, allowed, state, tops, log_total, score, max_len, last_divisor, n_ended, best, done, last, rows, steps,
    divisors, token, parent, ended, forced,
    row_stride, n_column, n_block, n_step, eos, n_best,
    K: tl.constexpr, N_ROW: tl.constexpr, N_EACH: tl.constexpr, WIDTH: tl.constexpr, N_BLOCK: tl.constexpr,
    N_CANDIDATE: tl.constexpr, N_BEST: tl.constexpr,
):  # fmt: skip
    """One program per sentence. NaN ranks as the highest value, so that no column is chosen twice; scores keep it."""
    sentence = tl.program_id(0).to(tl.int64)
    row, nth, block = tl.arange(0, N_ROW), tl.arange(0, N_EACH), tl.arange(0, N_BLOCK)
    is_row = row < K
    line = sentence * K + row

    # The K + 1 best columns of each row are in the K + 1 blocks with the highest maxima.
    mask = is_row[:, None] & (block[None, :] < n_block)
    top = tl.load(tops + line[:, None] * n_block + block[None, :], mask=mask, other=-float("inf")).to(tl.float32)
    top = tl.where(top != top, float("inf"), top)
    best_block = tl.full((N_ROW, N_EACH), -1, tl.int32)
    for i in range(K + 1):
        highest, where = tl.max(top, 1, return_indices=True)
        is_nth = (nth[None, :] == i) & (highest > -float("inf"))[:, None]
        best_block = tl.where(is_nth, where[:, None], best_block)
        top = tl.where(block[None, :] == where[:, None], -float("inf"), top)
    column = best_block[:, :, None] * WIDTH + tl.arange(0, WIDTH)[None, None, :]
    mask = (best_block[:, :, None] >= 0) & (column < n_column)
    column, mask = tl.reshape(column, (N_ROW, N_EACH * WIDTH)), tl.reshape(mask, (N_ROW, N_EACH * WIDTH))
    x = tl.load(logits + line[:, None] * row_stride + column, mask=mask, other=-float("inf")).to(tl.float32)
    state_offset = tl.load(state + line, mask=is_row, other=0) * n_column
    is_allowed = tl.load(allowed + state_offset[:, None] + column, mask=mask, other=0) != 0
    x = tl.where(is_allowed, tl.where(x != x, float("inf"), x), -float("inf"))
    place = tl.arange(0, N_EACH * WIDTH)[None, :]
    value, entry = tl.full((N_ROW, N_EACH), -float("inf"), tl.float32), tl.full((N_ROW, N_EACH), 0, tl.int32)
    for i in range(K + 1):
        highest, where = tl.max(x, 1, return_indices=True)
        best_column = tl.sum(tl.where(place == where[:, None], column, 0), 1)
        value = tl.where(nth[None, :] == i, highest[:, None], value)
        entry = tl.where(nth[None, :] == i, best_column[:, None], entry)
        x = tl.where(place == where[:, None], -float("inf"), x)
    entry = tl.minimum(tl.maximum(entry, 0), n_column - 1)  # also where there is no column

    # The 2 K best continuations of the sentence; of equals the first.
    normaliser = tl.load(log_total + line, mask=is_row, other=0.0)
    old = tl.load(score + line, mask=is_row, other=-float("inf"))
    total = (value - normaliser[:, None]) + old[:, None]
    total = tl.where(is_row[:, None] & (nth[None, :] <= K), total, -float("inf"))
    rank = tl.reshape(total, (N_ROW * N_EACH,))
    rank = tl.where(rank != rank, float("inf"), rank)
    total, entry = tl.reshape(total, (N_ROW * N_EACH,)), tl.reshape(entry, (N_ROW * N_EACH,))
    continuation, candidate = tl.arange(0, N_ROW * N_EACH), tl.arange(0, N_CANDIDATE)
    new_score = tl.full((N_CANDIDATE,), -float("inf"), tl.float32)
    new_token, new_parent = tl.full((N_CANDIDATE,), 0, tl.int32), tl.full((N_CANDIDATE,), 0, tl.int32)
    for i in range(2 * K):
        highest, where = tl.max(rank, 0, return_indices=True)
        is_best = continuation == where
        best_total = tl.where(highest > -float("inf"), tl.sum(tl.where(is_best, total, 0.0), 0), -float("inf"))
        new_score = tl.where(candidate == i, best_total, new_score)
        new_token = tl.where(candidate == i, tl.sum(tl.where(is_best, entry, 0), 0), new_token)
        new_parent = tl.where(candidate == i, where // N_EACH, new_parent)
        rank = tl.where(is_best, -float("inf"), rank)

    # Candidates with EOS among the K best end; at the length limit all hypotheses end.
    is_candidate, is_eos = candidate < 2 * K, new_token == eos
    ends = is_eos & (candidate < K) & (new_score > -float("inf"))
    ends_row = ends[None, :] & (new_parent[None, :] == row[:, None])
    end = tl.max(tl.where(ends_row, new_score[None, :], -float("inf")), 1)
    step = tl.load(steps)
    at_limit = tl.load(max_len + sentence) <= step
    eos_logit = tl.load(logits + line * row_stride + eos, mask=is_row, other=0.0).to(tl.float32)
    is_forced = at_limit & (end == -float("inf"))
    is_inside = tl.load(state + line, mask=is_row, other=1) != 0  # a character
    is_whole = (is_row & ~is_inside & (old > -float("inf"))).to(tl.int32)
    has_whole = (tl.load(n_ended + sentence) > 0) | (tl.max(is_whole, 0) > 0)
    end = tl.where(is_forced & ~(is_inside & has_whole), old + (eos_logit - normaliser), end)
    note = (sentence * n_step + step) * K
    tl.store(ended + note + row, end, mask=is_row)
    tl.store(forced + note + row, is_forced.to(tl.uint8), mask=is_row)
    count = tl.load(n_ended + sentence) + tl.sum((is_row & (end > -float("inf"))).to(tl.int64), 0)
    tl.store(n_ended + sentence, count)

    # The K best of the other candidates continue.
    continues = (is_candidate & (new_token != eos)).to(tl.int32)
    behind = tl.sum(continues, 0) + tl.cumsum((is_candidate & is_eos).to(tl.int32), 0) - 1
    slot = tl.where(continues != 0, tl.cumsum(continues, 0) - 1, behind)
    is_kept = is_candidate & (slot < K)
    new_score = tl.where(is_eos, -float("inf"), new_score)
    tl.store(token + note + slot, new_token.to(tl.int64), mask=is_kept)
    tl.store(parent + note + slot, new_parent.to(tl.int64), mask=is_kept)
    tl.store(last + sentence * K + slot, new_token.to(tl.int64), mask=is_kept)
    tl.store(rows + sentence * K + slot, sentence * K + new_parent, mask=is_kept)

    # Update the best ended scores of the sentence, and test if its search is done.
    normalised = tl.where(is_row, end.to(tl.float64) / tl.load(divisors + step + 1), -float("inf"))
    nth_best = tl.arange(0, N_BEST)
    known = tl.load(best + sentence * n_best + nth_best, mask=nth_best < n_best, other=-float("inf"))
    worst = tl.max(known, 0)
    for i in range(n_best):
        best_known, where_known = tl.max(known, 0, return_indices=True)
        best_new, where_new = tl.max(normalised, 0, return_indices=True)
        worst = tl.maximum(best_known, best_new)
        tl.store(best + sentence * n_best + i, worst)
        known = tl.where(nth_best == tl.where(best_known >= best_new, where_known, -1), -float("inf"), known)
        normalised = tl.where(row == tl.where(best_known < best_new, where_new, -1), -float("inf"), normalised)
    best_live = tl.max(tl.where(is_kept, new_score, -float("inf")), 0).to(tl.float64)
    is_done = count >= K
    if K > 1:
        is_done = is_done & (best_live / tl.load(divisors + step + 2) <= worst)
    is_done = is_done | at_limit | (worst >= best_live / tl.load(last_divisor + sentence))
    tl.store(done + sentence, is_done.to(tl.uint8))
    tl.store(score + sentence * K + slot, tl.where(is_done, -float("inf"), new_score), mask=is_kept)


def end_of_step(
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
    """`fixed_search.Table.finish_step` of logits (R, V), which counts neither the step nor the finished sentences.

    Returns the rows that hypotheses continue, (R,).

    allowed: (S, V) uint8, 0 where a column may not be chosen in a state; state: (R,) of each row. step: (1,) number of
    steps before. divisors: (T + 2,).
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
        _end_of_step[(n_sentence,)](
            logits, allowed, state, tops, log_total, score, of["max_len"], of["last_divisor"], of["n_ended"],
            of["best"], of["done"].view(torch.uint8), last, rows, step, divisors,
            notes["token"], notes["parent"], notes["ended"], notes["forced"].view(torch.uint8),
            logits.stride(0), n_column, tops.size(1), notes["token"].size(1), eos, of["best"].size(1),
            K=beam, N_ROW=n_row, N_EACH=n_each, WIDTH=width, N_BLOCK=n_block,
            N_CANDIDATE=triton.next_power_of_2(2 * beam), N_BEST=triton.next_power_of_2(of["best"].size(1)),
            num_warps=min(8, max(1, n_warp)),
        )  # fmt: skip
    return rows
