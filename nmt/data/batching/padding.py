"""Sequences of ids as a padded matrix, and sentences cut into batches by their length: all that translation needs."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.data.arrays.ragged import Ragged, places
from nmt.data.batching.mixture import Rows
from nmt.data.vocabulary.subwords import PAD


def framed(
    rows: Ragged, starts: NDArray[np.int64], n_place: int, before: tuple[int, ...] = (), after: tuple[int, ...] = ()
) -> NDArray[np.int64]:
    """(n_place,) ids: rows from `starts` on, each framed by `before` and `after`, and PAD elsewhere."""
    ids = np.full(n_place, PAD, dtype=np.int64)
    ids[places(starts + len(before), rows.lengths)] = rows.values
    for n, one in enumerate(before):
        ids[starts + n] = one
    for n, one in enumerate(after, len(before)):
        ids[starts + rows.lengths + n] = one
    return ids


def pad(
    rows: Ragged,
    *,
    before: tuple[int, ...] = (),
    after: tuple[int, ...] = (),
    padded: Callable[[int], int] = int,
) -> Tensor:
    """Ids of different lengths -> (B, L) int64, each framed by `before` and `after`, then PAD.

    padded: from the length of the longest to L, which is no less.
    """
    n_row, length = len(rows.lengths), padded(int(rows.lengths.max()) + len(before) + len(after))
    ids = framed(rows, np.arange(n_row) * length, n_row * length, before, after)
    return torch.from_numpy(ids.reshape(n_row, length))


def length_batches(length: NDArray[np.int64], max_tokens: int) -> list[Rows]:
    """Cut sentences, longest first, into batches of at most max_tokens: for translation and validation.

    length: (N,) what a sentence costs; a batch costs sentences x longest. Longest first, so that memory runs
    out at once or not at all.
    """
    order = np.argsort(-length, kind="stable")
    batches, start = [], 0
    while start < len(order):
        size = max(1, max_tokens // max(1, int(length[order[start]])))
        batches.append(order[start : start + size])
        start += size
    return batches
