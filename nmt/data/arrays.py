"""Ragged arrays (rows of different lengths as concatenated values and lengths), and hashes of integers."""

import itertools
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.uint64]
Ints = NDArray[np.int64]

STEP = 0x9E3779B97F4A7C15


def mixed(x: Numbers) -> Numbers:
    """Pseudo-random numbers, one for each (the finaliser of splitmix64). Overflow is intended."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def fractions(chance: Numbers) -> NDArray[np.float64]:
    """Convert random integers to numbers from 0 to less than 1."""
    return (chance >> np.uint64(11)) * np.float64(2.0**-53)


def seeds_of(n: NDArray[np.integer]) -> Numbers:
    """Spread small numbers over 64 bits, to be added to others and mixed."""
    return (n.astype(np.uint64) + np.uint64(1)) * np.uint64(STEP)


class Ragged(NamedTuple):
    """Rows of different lengths: their concatenated values, and the length of each row."""

    values: NDArray[Any]
    lengths: NDArray[Any]

    @classmethod
    def of(cls, rows: Sequence[Collection[int]], dtype: type[np.integer[Any]] | np.dtype[Any] = np.int64) -> "Ragged":
        """Convert lists. dtype: of the values, which must fit."""
        lengths = np.fromiter(map(len, rows), np.int32, len(rows))
        values = np.fromiter(itertools.chain.from_iterable(rows), np.int64, int(lengths.sum(dtype=np.int64)))
        assert not len(values) or values.max() <= np.iinfo(dtype).max, "ids do not fit"
        return cls(values.astype(dtype, copy=False), lengths)

    def some(self, chosen: NDArray[np.bool_]) -> "Ragged":
        """The chosen rows."""
        return self if chosen.all() else Ragged(self.values[np.repeat(chosen, self.lengths)], self.lengths[chosen])

    def picked(self, numbers: NDArray[np.integer]) -> "Ragged":
        """The rows of some numbers, in their order; a number may occur several times."""
        lengths = self.lengths.astype(np.int64)
        starts = np.cumsum(lengths) - lengths
        return Ragged(self.values.take(places(starts[numbers], lengths[numbers])), lengths[numbers])

    def rows(self) -> list[NDArray[Any]]:
        """One array for each row."""
        ends = np.cumsum(self.lengths, dtype=np.int64).tolist()
        return [self.values[begin:end] for begin, end in itertools.pairwise([0, *ends])]


def places(starts: Ints, lengths: Ints) -> Ints:
    """The concatenated indices of rows, each of which begins at its start and has its length."""
    place = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    place += np.arange(len(place))
    return place


def positions(lengths: Ints) -> Ints:
    """The position of each value in its row, from 0."""
    return places(np.zeros_like(lengths), lengths)
