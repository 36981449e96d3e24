"""Which pairs make up which batch, as arithmetic on (seed, epoch).

Numbers only: no text, no tensors, no files. `batches.py` turns the answer into tensors.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from nmt.data.mixture import Mixture, Rows


@dataclass(frozen=True)
class Position:
    """Where training stands in the data: the next update to be made is number `update` of `epoch`, both from 0."""

    epoch: int = 0
    update: int = 0


class Plan:
    """The batches of every epoch. Each epoch visits every pair exactly once, or as often as a mixture says.

    Pairs are shuffled, taken a pool at a time, sorted by length within the pool, cut to the token
    budget, and the batches mixed. The answer does not depend on workers, ranks or what was asked before.

    src_len, trg_len: (N,) subwords of each pair, BOS and EOS not counted.
    max_tokens: bound on sentences x longest side (EOS counted) of a batch; a longer pair is a batch alone.
    packed: max_tokens bounds the tokens of each side instead; nothing is sorted, since nothing is padded.
    per_update: batches per update, over all ranks. tokens_per_update: if not 0, an update takes batches until their
    target tokens (EOS counted) are so many instead; the last of an epoch takes what is left.
    mixture: how often the pairs of each corpus are visited; None: once.
    """

    def __init__(
        self,
        src_len: NDArray[np.int32],
        trg_len: NDArray[np.int32],
        *,
        seed: int,
        max_tokens: int,
        per_update: int,
        pool: int,
        packed: bool = False,
        tokens_per_update: int = 0,
        mixture: Mixture | None = None,
    ) -> None:
        assert len(src_len) == len(trg_len) > 0
        self.src_len = np.asarray(src_len, dtype=np.int64) + 1  # with EOS
        self.trg_len = np.asarray(trg_len, dtype=np.int64) + 1
        self.seed = seed
        self.max_tokens = max_tokens
        self.per_update = per_update
        self.tokens_per_update = tokens_per_update
        self.pool = pool
        self.packed = packed
        self.mixture = None if mixture is None or mixture.is_even else mixture
        # As many sentences as a packed batch may hold: with fewer tokens each it is cut before it is full.
        self.most_packed = max(1, max_tokens // 8)
        self._epoch_cached = lru_cache(maxsize=2)(self._epoch)

    def updates(self, epoch: int) -> list[list[Rows]]:
        """The updates of an epoch in order; an update is a list of batches, a batch an array of pair numbers."""
        return self._epoch_cached(epoch)

    def at(self, position: Position) -> tuple[list[Rows], Position]:
        """The batches of the update at `position`, and the position after it."""
        updates = self.updates(position.epoch)
        after = position.update + 1
        following = Position(position.epoch, after) if after < len(updates) else Position(position.epoch + 1, 0)
        return updates[position.update], following

    def n_gold(self, update: list[Rows]) -> int:
        """Target tokens an update predicts, EOS counted, padding not: known without looking at the data."""
        return int(sum(self.trg_len[rows].sum() for rows in update))

    def padding_share(self, epoch: int) -> float:
        """Share of padding in the source and target matrices of an epoch, from 0 to 1."""
        batches = [rows for update in self.updates(epoch) for rows in update]
        used = sum(self.src_len[rows].sum() + self.trg_len[rows].sum() for rows in batches)
        if self.packed:
            return float(1 - used / (2 * len(batches) * self.max_tokens))
        held = sum(len(rows) * (self.src_len[rows].max() + self.trg_len[rows].max()) for rows in batches)
        return float(1 - used / held)

    def _epoch(self, epoch: int) -> list[list[Rows]]:
        rng = np.random.default_rng([self.seed, epoch])
        if self.mixture is None:
            order = rng.permutation(len(self.src_len))
        else:
            order = rng.permutation(self.mixture.rows(self.seed, epoch))
        if self.packed:
            cut = _cut_packed(self.src_len[order], self.trg_len[order], self.max_tokens, self.most_packed)
            return self._in_updates(np.split(order, cut[1:]))
        batches: list[Rows] = []
        for start in range(0, len(order), self.pool):
            pool = order[start : start + self.pool]
            longest = np.maximum(self.src_len[pool], self.trg_len[pool])
            # Both sides count in the cost, so both decide the order: the longer side first, then the target.
            pool = pool[np.lexsort((self.src_len[pool], self.trg_len[pool], longest))]
            cut = _cut(np.maximum(self.src_len[pool], self.trg_len[pool]), self.max_tokens)
            pieces = np.split(pool, cut[1:])
            batches.extend(pieces[i] for i in rng.permutation(len(pieces)))
        return self._in_updates(batches)

    def _in_updates(self, batches: list[Rows]) -> list[list[Rows]]:
        return [batches[first:end] for first, end in pairwise([*self._update_starts(batches), len(batches)])]

    def _update_starts(self, batches: list[Rows]) -> list[int]:
        """Which batches begin an update."""
        if not self.tokens_per_update:
            return list(range(0, len(batches), self.per_update))
        starts, n_gold = [0], 0
        for number, rows in enumerate(batches):
            if n_gold >= self.tokens_per_update:
                starts.append(number)
                n_gold = 0
            n_gold += int(self.trg_len[rows].sum())
        return starts


def _cut(longest: NDArray[np.int64], max_tokens: int) -> list[int]:
    """Where batches start, such that (sentences x longest) stays within max_tokens. longest: ascending."""
    starts = []
    start = 0
    while start < len(longest):
        starts.append(start)
        reach = longest[start : start + max(1, max_tokens // longest[start])]
        fits = np.arange(1, len(reach) + 1) * reach <= max_tokens
        start += max(1, int(fits.sum()))
    return starts


def _cut_packed(src_len: NDArray[np.int64], trg_len: NDArray[np.int64], most: int, n_most: int) -> list[int]:
    """Where batches start, such that each has at most `most` tokens a side and n_most pairs."""
    starts = [0]
    src_end, trg_end = np.cumsum(src_len), np.cumsum(trg_len)
    while True:
        first = starts[-1]
        src_before, trg_before = (end[first - 1] if first else 0 for end in (src_end, trg_end))
        following = min(
            int(np.searchsorted(src_end, src_before + most, side="right")),
            int(np.searchsorted(trg_end, trg_before + most, side="right")),
            first + n_most,
        )
        if following >= len(src_len):
            return starts
        starts.append(following)
