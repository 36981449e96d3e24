"""The ways to cut words, of all words that were met so far, in a few arrays.

A word has N_WAY ways, which are all drawn when it is met first: many are cut at once in little more time than a few,
and a word that was met once is met again.
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from nmt.data.chance import Ints, Numbers
from nmt.data.number_table import NumberTable

Number = TypeVar("Number", bound=np.number)

N_WAY = 16
_MOST_WORDS = 200_000


class Ways:
    """Ways to cut words, each some ids. Those of a word have N_WAY places in a row."""

    def __init__(self) -> None:
        self._word_of = NumberTable()
        self._n, self._start = np.zeros((2, 1024), dtype=np.int64)
        self._ids = np.zeros(4096, dtype=np.int32)
        self._n_id = 0

    def first(self, words: Numbers, draw: Callable[[Ints], tuple[Ints, Ints]]) -> Ints:
        """Where the ways of words begin, each of which is told by a number that is its own.

        draw: makes the ways of new words. From where they are in `words` to the ids of all their ways, end to end, and
        how many each way has.
        """
        if len(self._word_of) > _MOST_WORDS:  # some 100 MB
            self._word_of.clear()
            self._n_id = 0
        words = np.maximum(words, np.uint64(1))  # the table knows no 0
        found = self._word_of.find(words)
        if len(new := np.flatnonzero(found < 0)):
            different, where = np.unique(words[new], return_index=True)
            self._word_of.add(different, self._keep(*draw(new[where])))
            found[new] = self._word_of.find(words[new])
        return found

    def n_id(self, ways: Ints) -> Ints:
        """How many ids ways have, told by their places."""
        return self._n[ways]

    def gathered(self, ways: Ints, ids: Ints, first: Ints, n_id: Ints) -> Ints:
        """The ids of ways, end to end. Of one below 0 they are n_id ids of `ids` instead, from `first` on."""
        elsewhere = ways < 0
        start = np.where(elsewhere, first, self._start[ways])
        place = np.repeat(start - (np.cumsum(n_id) - n_id), n_id) + np.arange(int(n_id.sum()))
        elsewhere = np.repeat(elsewhere, n_id)
        found = self._ids[np.where(elsewhere, 0, place)].astype(np.int64)
        found[elsewhere] = ids[place[elsewhere]]
        return found

    def _keep(self, ids: Ints, n_id: Ints) -> Ints:
        """Remember all ways of some words. Returns where those of each word begin."""
        before, begin = self._n_id, len(self._word_of) * N_WAY
        self._n_id, end = before + len(ids), begin + len(n_id)
        self._n, self._start = _with_room(self._n, end), _with_room(self._start, end)
        self._ids = _with_room(self._ids, self._n_id)
        self._ids[before : self._n_id] = ids
        self._n[begin:end] = n_id
        self._start[begin:end] = before + np.cumsum(n_id) - n_id
        return np.arange(begin, end, N_WAY)


def _with_room(array: NDArray[Number], n_row: int) -> NDArray[Number]:
    """The array, or a longer one that begins with it."""
    if n_row <= len(array):
        return array
    return np.resize(array, (max(n_row, 2 * len(array)), *array.shape[1:]))
