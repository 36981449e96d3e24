"""Sequences of ids as a padded matrix, and sentences cut into batches by their length: all that translation needs."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.data.mixture import Rows
from nmt.data.subwords import PAD


def pad(
    sequences: Sequence[NDArray[np.int64]],
    *,
    before: tuple[int, ...] = (),
    after: tuple[int, ...] = (),
    padded: Callable[[int], int] = int,
) -> Tensor:
    """Ids of different lengths -> (B, L) int64, each framed by `before` and `after`, then PAD.

    padded: from the length of the longest to L, which is no less.
    """
    frame = len(before) + len(after)
    length = padded(max(map(len, sequences)) + frame)
    matrix = np.full((len(sequences), length), PAD, dtype=np.int64)
    for row, ids in zip(matrix, sequences, strict=True):
        row[: len(before)] = before
        row[len(before) : len(before) + len(ids)] = ids
        row[len(before) + len(ids) : frame + len(ids)] = after
    return torch.from_numpy(matrix)


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
