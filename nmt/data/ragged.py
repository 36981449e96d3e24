"""Rows of different lengths in two arrays, their values end to end and how many each row has; and arrays that grow."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.data.chance import Ints


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
        """Those of all rows, end to end."""
        return self._values.values

    def starts(self, numbers: NDArray[Any]) -> Ints:
        """Where some rows begin in `values`."""
        starts: Ints = self._starts.values[numbers]
        return starts

    def n_of(self, numbers: NDArray[Any]) -> Ints:
        """How many values some rows have."""
        n_of: Ints = self._n_of.values[numbers]
        return n_of

    def of(self, numbers: NDArray[Any]) -> tuple[NDArray[Any], Ints]:
        """Some rows, end to end, and how many values each has."""
        n_of = self.n_of(numbers)
        return self.values.take(places(self.starts(numbers), n_of)), n_of


def gathered(values: NDArray[Any], n_of: NDArray[Any], at: NDArray[Any]) -> tuple[NDArray[Any], Ints]:
    """Rows of different lengths, end to end, in another order and number: their values, and how many each has.

    values: of all rows, end to end; n_of: how many each row has; at: the rows that are wanted.
    """
    n_of = n_of.astype(np.int64)
    return values.take(places((np.cumsum(n_of) - n_of)[at], n_of[at])), n_of[at]


def places(starts: Ints, n_of: Ints) -> Ints:
    """The places of rows, end to end, from where each begins and how many places it has."""
    place = np.repeat(starts - (np.cumsum(n_of) - n_of), n_of)
    place += np.arange(len(place))
    return place


def turns(n_of: Ints) -> Ints:
    """0, 1, 2 and so on in each row."""
    return places(np.zeros_like(n_of), n_of)


def in_order(
    parts: Sequence[tuple[NDArray[Any], NDArray[Any]]], numbers: Sequence[NDArray[Any]]
) -> tuple[NDArray[Any], Ints]:
    """Rows from several parts, each of values end to end and how many each row has, in the order of their numbers."""
    values, n_of = (np.concatenate(column) for column in zip(*parts, strict=True))
    return gathered(values, n_of, np.argsort(np.concatenate(numbers)))
