"""Plan of the batches: pairs of each batch, as arithmetic on (seed, epoch).

Numbers only: no text, no tensors, no files. `batches.py` turns pair numbers into tensors.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays import Ints
from nmt.errors import RecipeError
from nmt.recipe.data_options import DataConfig

Rows = Ints  # numbers of pairs
Order = NDArray[np.integer[Any]]  # numbers of pairs
Lengths = NDArray[np.int32]


@dataclass(frozen=True)
class Mixture:
    """Sizes of concatenated corpora, and how often each corpus is visited in an epoch.

    sizes: number of pairs of each corpus. weights: average number of visits of each of its pairs in an epoch. With 0.25
    each epoch visits another quarter of the corpus; with 2.5 every pair twice, and another half of them a third time.
    """

    sizes: tuple[int, ...]
    weights: tuple[float, ...]

    def rows(self, seed: int, epoch: int) -> Order:
        """The pairs of an epoch, each as often as it is visited, in order of corpora.

        The fractional part of a weight selects a window that moves over the corpus from epoch to epoch, in one random
        order for all epochs. So the numbers of visits of any two pairs of a corpus differ by at most one.
        """
        parts, first, n_pair = list[Order](), 0, sum(self.sizes)
        dtype = np.int32 if n_pair < 1 << 31 else np.int64
        if set(self.weights) == {1.0}:
            return np.arange(n_pair, dtype=dtype)
        for number, (size, weight) in enumerate(zip(self.sizes, self.weights, strict=True)):
            n_visit, share = divmod(weight, 1.0)
            parts += [np.arange(first, first + size, dtype=dtype)] * int(n_visit)
            # Rounded so that the windows of successive epochs touch without overlap.
            begin, end = (round(n * share * size) for n in (epoch, epoch + 1))
            if end > begin:
                order = np.random.default_rng([seed, number, size]).permutation(size)
                parts.append(first + np.sort(order[np.arange(begin, end) % size]))
            first += size
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def mixture_of(data: DataConfig, sizes: Sequence[int]) -> Mixture:
    """The mixture of a recipe. sizes: number of prepared pairs of each corpus. A recipe may name no corpora.

    With temperature T a corpus of n pairs has a share proportional to n^(1/T), as in multilingual BERT and M4
    (Arivazhagan et al. 2019, "Massively multilingual neural machine translation in the wild", section 4): the largest
    corpus is visited once, smaller ones more often. The weight of a corpus multiplies its visits.
    """
    weights = [files.weight for files in data.train] or [1.0] * len(sizes)
    largest, power = max(sizes), 1 / data.temperature - 1
    corpora = zip(weights, sizes, strict=True)
    visits = tuple(weight * (size / largest) ** power if size else 0.0 for weight, size in corpora)
    if not any(int(n_visit * size) for n_visit, size in zip(visits, sizes, strict=True)):
        raise RecipeError(
            f"data.train: with weights of {', '.join(f'{weight:g}' for weight in weights)} an epoch would have no "
            "pair. A weight is the number of visits of each pair of a corpus in an epoch: raise them."
        )
    return Mixture(tuple(sizes), visits)


# Raise it whenever the same lengths, seed and options make other batches: a stored position is then no longer valid.
VERSION = 3
_PACKED_STEP = 64  # the largest number of sentences of a packed batch is a multiple of it
_N_STEP = 16  # padded lengths from one power of two to the next


@dataclass(frozen=True)
class Position:
    """Position of training in the data: the next update is number `update` of `epoch`, both from 0."""

    epoch: int = 0
    update: int = 0


@dataclass(eq=False)
class Plan:
    """The batches of every epoch. An epoch visits every pair exactly once, or as often as the mixture says.

    Pairs are shuffled and divided into pools. Each pool is sorted by length and cut to the token budget, and its
    batches are shuffled. Sides are padded to one of a few lengths, so that work for a new shape, such as oneDNN's
    choice of kernels, is seldom repeated. Pools are cut lazily. Memory holds the order of the pairs, four bytes each.
    """

    src_len: Lengths  # (N,) subwords of each pair, BOS and EOS not counted
    trg_len: Lengths
    _: KW_ONLY
    seed: int
    max_tokens: int  # bound on sentences x longest side, EOS and padding counted; a longer pair is a batch alone
    per_update: int  # batches per update, over all ranks
    pool: int  # number of pairs that are sorted by length together
    # If True, max_tokens bounds the tokens of each side, and most_packed the sentences; nothing is sorted nor padded.
    packed: bool = False
    # If not 0, an update takes batches until it has so many target tokens, EOS counted; the last takes the rest.
    tokens_per_update: int = 0
    mixture: InitVar[Mixture | None] = None  # how often the pairs of each corpus are visited; None: once

    def __post_init__(self, mixture: Mixture | None) -> None:
        assert len(self.src_len) == len(self.trg_len) > 0
        self.visits = mixture or Mixture((len(self.src_len),), (1.0,))
        # Rounding lengths up must make no batch larger than the longest pair or the budget.
        self.most_padded = min(self.max_tokens, 1 + int(max(self.src_len.max(), self.trg_len.max())))
        # Bound on the sentences of a packed batch: a quarter more than it has on average. A batch of short sentences
        # reaches this bound before the token budget, which is rare. A higher bound would cost: all batches have one
        # shape, so attention on a GPU takes time and memory for as many sentences as a batch may hold.
        n_pair = n_src = n_trg = 0.0
        first = 0
        for size, weight in zip(self.visits.sizes, self.visits.weights, strict=True):
            corpus, first = slice(first, first + size), first + size
            n_pair += weight * size
            n_src += weight * int(self.src_len[corpus].sum(dtype=np.int64))
            n_trg += weight * int(self.trg_len[corpus].sum(dtype=np.int64))
        average = self.max_tokens * n_pair / (max(n_src, n_trg) + n_pair)  # EOS counted
        self.most_packed = _PACKED_STEP * math.ceil(1.25 * average / _PACKED_STEP)

    def updates_from(self, position: Position) -> Iterator[tuple[Position, list[Rows]]]:
        """Yield the updates from a position on, without end, each with its position."""
        for epoch in itertools.count(position.epoch):
            for number, batches in enumerate(self.updates(epoch)):
                if epoch > position.epoch or number >= position.update:
                    yield Position(epoch, number), batches

    def updates(self, epoch: int) -> Iterator[list[Rows]]:
        """Yield the updates of an epoch in order. The batches of each are arrays of pair numbers."""
        rng, order = np.random.default_rng([self.seed, epoch]), self.visits.rows(self.seed, epoch)
        rng.shuffle(order)
        update, n_gold, start = list[Rows](), 0, 0  # n_gold: target tokens of the update
        while start < len(order):
            batches = self._cut_packed(order[start:]) if self.packed else self._cut_pool(order[start:], rng)
            for rows in batches:
                if n_gold >= self.tokens_per_update if self.tokens_per_update else len(update) == self.per_update:
                    yield update
                    update, n_gold = [], 0
                update.append(rows.astype(np.int64))
                n_gold += self.n_gold(update[-1:])
                start += len(rows)
        yield update

    def _cut_packed(self, order: Order) -> list[Order]:
        """The next batch, of at most max_tokens a side. order: the pairs that are left."""
        rows = order[: self.most_packed]
        sides = (np.cumsum(side) for side in self.lengths(rows))
        return [rows[: max(1, min(int(np.searchsorted(ends, self.max_tokens, side="right")) for ends in sides))]]

    def _cut_pool(self, order: Order, rng: np.random.Generator) -> list[Order]:
        """The batches of the next pool, shuffled. order: the pairs that are left.

        Pairs are sorted by their longer side, which the budget counts; pairs of one such length by source minus target
        length. So neighbours differ little on both sides. The second order is reversed for every other length, so that
        the last pairs of one length resemble the first ones of the next.
        """
        pool = order[: self.pool]
        src_len, trg_len = (padded(side, self.most_padded) for side in self.lengths(pool))
        longest, difference = np.maximum(src_len, trg_len), src_len - trg_len
        _, number = np.unique(longest, return_inverse=True)
        by_length = np.lexsort((np.where(number % 2, -difference, difference), longest))
        starts = _cut(longest[by_length], self.max_tokens)
        batches = np.split(pool[by_length], starts[1:])
        return [batches[i] for i in rng.permutation(len(batches))]

    def n_update(self, epoch: int) -> int:
        """The number of updates of an epoch."""
        return sum(1 for _ in self.updates(epoch))

    def totals(self, epoch: int) -> tuple[int, float]:
        """The number of updates of an epoch, and the share of padding in its source and target matrices."""
        n_update = n_used = n_held = 0  # tokens, and places with padding counted, of both sides
        for update in self.updates(epoch):
            n_update += 1
            for sides in map(self.lengths, update):
                n_used += sum(int(side.sum()) for side in sides)
                width = sum(self.padded(int(side.max())) for side in sides)
                n_held += 2 * self.max_tokens if self.packed else len(sides[0]) * width
        return n_update, 1 - n_used / n_held

    def lengths(self, rows: Order) -> tuple[Ints, Ints]:
        """Source and target lengths of pairs in subwords, EOS counted."""
        return self.src_len[rows].astype(np.int64) + 1, self.trg_len[rows].astype(np.int64) + 1

    def n_gold(self, update: list[Rows]) -> int:
        """Target tokens an update predicts, EOS counted, padding not. Needs the lengths only, not the data."""
        return sum(int(self.trg_len[rows].sum(dtype=np.int64)) + len(rows) for rows in update)

    def padded(self, length: int) -> int:
        """Padded length of a side. length: subwords of its longest sentence, EOS counted."""
        return int(padded(np.array(length), self.most_padded))


def padded(length: Ints, most: int) -> Ints:
    """Round lengths up to the next padded length, but not above `most`.

    Padded lengths are the powers of two and _N_STEP - 1 evenly spaced lengths between each two of them. Lengths up to
    2 _N_STEP, and those over `most`, stay as they are.
    """
    n_bit = np.maximum(0, np.frexp(length)[1] - _N_STEP.bit_length())
    rounded: Ints = -(-length >> n_bit) << n_bit
    return np.maximum(length, np.minimum(rounded, most))


def _cut(longest: Ints, max_tokens: int) -> list[int]:
    """Starts of batches, such that (sentences x longest) stays within max_tokens. longest: ascending."""
    starts, start = [], 0
    while start < len(longest):
        starts.append(start)
        candidates = longest[start : start + max(1, max_tokens // longest[start])]
        fits = np.arange(1, len(candidates) + 1) * candidates <= max_tokens
        start += max(1, int(fits.sum()))
    return starts
