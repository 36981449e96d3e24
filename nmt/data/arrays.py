"""Rows of different lengths in two arrays, their values end to end and how many each row has; and arrays that grow."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.uint64]
Ints = NDArray[np.int64]

STEP = 0x9E3779B97F4A7C15


def mixed(x: Numbers) -> Numbers:
    """Numbers that look like chance, one for each (the finaliser of splitmix64). Overflow is meant."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def fractions(chance: Numbers) -> NDArray[np.float64]:
    """Numbers from 0 to less than 1."""
    return (chance >> np.uint64(11)) * np.float64(2.0**-53)


def seeds_of(n: NDArray[np.integer]) -> Numbers:
    """A number for each of some small ones, to be added to others and mixed."""
    return (n.astype(np.uint64) + np.uint64(1)) * np.uint64(STEP)


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths: the values of all, end to end, and how many each row has."""

    values: NDArray[Any]
    lengths: NDArray[Any]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], dtype: type[np.integer[Any]] | np.dtype[Any] = np.int64) -> "Ragged":
        """Ragged from lists. dtype: of the values, which must fit."""
        lengths = np.fromiter(map(len, rows), np.int32, len(rows))
        values = np.fromiter(itertools.chain.from_iterable(rows), np.int64, int(lengths.sum(dtype=np.int64)))
        assert not len(values) or values.max() <= np.iinfo(dtype).max, "ids do not fit"
        return cls(values.astype(dtype, copy=False), lengths)

    def some(self, chosen: NDArray[np.bool_]) -> "Ragged":
        """Some of the rows."""
        return self if chosen.all() else Ragged(self.values[np.repeat(chosen, self.lengths)], self.lengths[chosen])

    def parts(self, n_row: Sequence[int]) -> "Iterator[Ragged]":
        """All rows in parts, of so many rows each."""
        last = np.cumsum(n_row)
        ends = np.append(0, np.cumsum(self.lengths, dtype=np.int64))[last]
        start = begin = 0
        for stop, end in zip(last.tolist(), ends.tolist(), strict=True):
            yield Ragged(self.values[begin:end], self.lengths[start:stop])
            start, begin = stop, end

    def rows(self) -> list[NDArray[Any]]:
        """Each row as an array of its own."""
        ends = np.cumsum(self.lengths, dtype=np.int64).tolist()
        return [self.values[begin:end] for begin, end in itertools.pairwise([0, *ends])]


class Grown:
    """An array that grows at its end."""

    def __init__(self, dtype: Any) -> None:
        self._room, self._n = np.empty(0, dtype), 0

    def add(self, values: NDArray[Any]) -> None:
        """Some values more."""
        n = self._n + len(values)
        if n > len(self._room):  # twice as much, or each value would be copied again and again
            self._room = np.concatenate([self.values, np.empty(2 * n - self._n, self._room.dtype)])
        self._room[self._n : n] = values
        self._n = n

    @property
    def values(self) -> NDArray[Any]:
        """All of them."""
        return self._room[: self._n]


class GrownRows:
    """Rows of different lengths, which become more."""

    def __init__(self, dtype: Any) -> None:
        self._values, self._n_of, self._starts = Grown(dtype), Grown(np.int64), Grown(np.int64)

    def add(self, values: NDArray[Any], n_of: NDArray[Any]) -> None:
        """Some rows more: their values, end to end, and how many each has."""
        self._starts.add(len(self._values.values) + np.cumsum(n_of) - n_of)
        self._n_of.add(n_of)
        self._values.add(values)

    def __len__(self) -> int:
        return len(self._n_of.values)

    @property
    def values(self) -> NDArray[Any]:
        """The values of all rows, end to end."""
        return self._values.values

    def place(self, numbers: NDArray[Any]) -> tuple[Ints, Ints]:
        """Starts of some rows in `values`, and how many values each has."""
        return self._starts.values[numbers], self._n_of.values[numbers]

    def of(self, numbers: NDArray[Any]) -> tuple[NDArray[Any], Ints]:
        """Some rows, end to end, and how many values each has."""
        starts, n_of = self.place(numbers)
        return self.values.take(places(starts, n_of)), n_of


def places(starts: Ints, n_of: Ints) -> Ints:
    """The places of rows, end to end, from where each begins and how many places it has."""
    place = np.repeat(starts - (np.cumsum(n_of) - n_of), n_of)
    place += np.arange(len(place))
    return place


def turns(n_of: Ints) -> Ints:
    """0, 1, 2 and so on in each row."""
    return places(np.zeros_like(n_of), n_of)


def in_order(parts: Sequence[Ragged], numbers: Sequence[NDArray[Any]]) -> Ragged:
    """Rows from several parts, in the order of their numbers."""
    values = np.concatenate([part.values for part in parts])
    n_of = np.concatenate([part.lengths for part in parts]).astype(np.int64)
    order = np.argsort(np.concatenate(numbers))
    starts = np.cumsum(n_of) - n_of
    return Ragged(values.take(places(starts[order], n_of[order])), n_of[order])
