"""Batches: ids of pairs to tensors with BOS and EOS, padded or packed; and a thread that makes them in advance."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from nmt.data.arrays import Ints, Ragged, places
from nmt.data.plan import Rows
from nmt.data.subwords import BOS, EOS, PAD
from nmt.device import send


def framed(rows: Ragged, starts: Ints, n_place: int, before: tuple[int, ...] = (), after: tuple[int, ...] = ()) -> Ints:
    """(n_place,) ids: each row begins at its place in `starts`, between `before` and `after`; the rest is PAD."""
    ids = np.full(n_place, PAD, dtype=np.int64)
    ids[places(starts + len(before), rows.lengths)] = rows.values
    for n, token in enumerate(before):
        ids[starts + n] = token
    for n, token in enumerate(after, len(before)):
        ids[starts + rows.lengths + n] = token
    return ids


def pad(
    rows: Ragged, *, before: tuple[int, ...] = (), after: tuple[int, ...] = (), padded: Callable[[int], int] = int
) -> Tensor:
    """Rows of ids of different lengths -> (B, L) int64; each row is `before`, its ids, `after`, then PAD.

    padded: from the length of the longest row to L, which is no less.
    """
    n_row, length = len(rows.lengths), padded(int(rows.lengths.max()) + len(before) + len(after))
    ids = framed(rows, np.arange(n_row) * length, n_row * length, before, after)
    return torch.from_numpy(ids.reshape(n_row, length))


def length_batches(length: Ints, max_tokens: int) -> list[Rows]:
    """Cut sentences, longest first, into batches of at most max_tokens: for translation and validation.

    length: (N,) cost of each sentence; a batch costs sentences x longest. The longest come first, so that memory runs
    out in the first batch or never.
    """
    order = np.argsort(-length, kind="stable")
    batches, start = [], 0
    while start < len(order):
        size = max(1, max_tokens // max(1, int(length[order[start]])))
        batches.append(order[start : start + size])
        start += size
    return batches


STEP = 32  # `end_to_end` makes rows whose lengths are multiples of it

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Batch:
    """Sentences as padded matrices of ids.

    src_seq: (B, S) source and EOS. trg_seq: (B, T) BOS and target, the input of the decoder.
    gold: (B, T) target and EOS, the tokens to predict. n_gold: target tokens, padding not counted.
    Or packed: all sentences in one row (B = 1) without gaps. src_start and trg_start, (N + 1,) int32, hold the start of
    each sentence and the length of the row; the rest of the row is sentences of padding.
    """

    src_seq: Tensor
    trg_seq: Tensor
    gold: Tensor
    n_gold: int
    src_start: Tensor | None = None
    trg_start: Tensor | None = None

    def to(self, device: torch.device) -> "Batch":
        src, trg, gold = (send(tensor, device) for tensor in (self.src_seq, self.trg_seq, self.gold))
        starts = (start if start is None else send(start, device) for start in (self.src_start, self.trg_start))
        return Batch(src, trg, gold, self.n_gold, *starts)


def make_batch(src: Ragged, trg: Ragged, padded: Callable[[int], int] = int) -> Batch:
    """Pad pairs. padded: from the length of the longest sentence of a side, EOS counted, to its padded length."""
    trg_seq, gold = pad(trg, before=(BOS,), padded=padded), pad(trg, after=(EOS,), padded=padded)
    return Batch(pad(src, after=(EOS,), padded=padded), trg_seq, gold, len(trg.values) + len(trg.lengths))


def _starts(lengths: NDArray[np.integer], n_place: int, n_start: int, longest: int) -> NDArray[np.int32]:
    """(n_start,) starts of packed sentences; the last is n_place, the end of the row.

    The rest of the row is cut into sentences of padding of at most `longest`, the last of which may be empty.
    """
    assert lengths.max() <= longest
    ends = np.append(0, np.cumsum(lengths))
    begins = np.concatenate([ends, np.arange(ends[-1] + longest, n_place, longest)])
    starts = np.full(n_start, n_place, dtype=np.int32)
    starts[: len(begins)] = begins
    return starts


def make_packed(src: Ragged, trg: Ragged, n_place: int, n_sentence: int, longest: int) -> Batch:
    """Pack pairs into one row of n_place a side. All batches of at most n_sentence sentences have one shape.

    longest: bound on the length of a sentence with EOS.
    """
    assert len(src.lengths) <= n_sentence
    n_start = n_sentence + n_place // longest + 2
    src_start, trg_start = (_starts(side.lengths + 1, n_place, n_start, longest) for side in (src, trg))

    def row(side: Ragged, start: NDArray[np.int32], **frame: tuple[int, ...]) -> Tensor:
        return torch.from_numpy(framed(side, start[: len(side.lengths)].astype(np.int64), n_place, **frame)[None])

    trg_seq, gold = row(trg, trg_start, before=(BOS,)), row(trg, trg_start, after=(EOS,))
    starts = torch.from_numpy(src_start), torch.from_numpy(trg_start)
    return Batch(row(src, src_start, after=(EOS,)), trg_seq, gold, len(trg.values) + len(trg.lengths), *starts)


def end_to_end(batch: Batch) -> Batch:
    """Pack the sentences of a padded batch into rows whose lengths are multiples of STEP, as short as possible.

    So there are few different shapes. The rest of a row is sentences of padding, no longer than the others.
    """
    lengths = [(seq != PAD).sum(1).cpu().numpy() for seq in (batch.src_seq, batch.gold)]
    n_place = [-(-int(length.sum()) // STEP) * STEP for length in lengths]
    longest = [int(length.max()) for length in lengths]
    n_start = 1 + len(lengths[0]) - (-(STEP - 1) // min(longest))  # the same on both sides
    src_start, trg_start = (
        torch.from_numpy(_starts(length, n, n_start, most)).to(batch.gold.device)
        for length, n, most in zip(lengths, n_place, longest, strict=True)
    )

    def row(seq: Tensor, n: int) -> Tensor:
        ids = seq[seq != PAD]
        return F.pad(ids, (0, n - len(ids)), value=PAD).unsqueeze(0)

    trg_seq, gold = row(batch.trg_seq, n_place[1]), row(batch.gold, n_place[1])
    return Batch(row(batch.src_seq, n_place[0]), trg_seq, gold, batch.n_gold, src_start, trg_start)


def read_ahead(make: Callable[[T], R], todo: Iterable[T]) -> Iterator[R]:
    """Yield make(item) in order. A thread makes up to two items in advance, none of them None; errors are raised when
    they are due."""
    made = map(make, todo)
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead") as thread:
        pending = deque(thread.submit(lambda: next(made, None)) for _ in range(2))
        while (item := pending.popleft().result()) is not None:
            pending.append(thread.submit(lambda: next(made, None)))
            yield item
