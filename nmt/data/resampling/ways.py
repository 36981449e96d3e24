"""The ways to cut words, of all words that were met so far, in a few arrays.

A word has N_WAY ways, which are all drawn when it is met first: many are cut at once in little more time than a few,
and a word that was met once is met again.
"""

from collections.abc import Callable

import numpy as np

from nmt.data.arrays.chance import Ints, Numbers
from nmt.data.arrays.number_table import NumberTable
from nmt.data.arrays.ragged import GrownRows, places

N_WAY = 16
_MOST_WORDS = 200_000


class Ways:
    """Ways to cut words, each some ids. Those of a word have N_WAY places in a row."""

    def __init__(self) -> None:
        self._word_of = NumberTable()
        self._ways = GrownRows(np.int32)

    def first(self, words: Numbers, draw: Callable[[Ints], tuple[Ints, Ints]]) -> Ints:
        """Where the ways of words begin, each of which is told by a number that is its own.

        draw: makes the ways of new words. From where they are in `words` to the ids of all their ways, end to end, and
        how many each way has.
        """
        if len(self._word_of) > _MOST_WORDS:  # some 100 MB
            self._word_of.clear()
            self._ways = GrownRows(np.int32)
        words = np.maximum(words, np.uint64(1))  # the table knows no 0
        found = self._word_of.find(words)
        if len(new := np.flatnonzero(found < 0)):
            different, where = np.unique(words[new], return_index=True)
            begin = len(self._ways)
            self._ways.add(*draw(new[where]))
            self._word_of.add(different, np.arange(begin, len(self._ways), N_WAY))
            found[new] = self._word_of.find(words[new])
        return found

    def n_id(self, ways: Ints) -> Ints:
        """How many ids ways have, told by their places."""
        return self._ways.n_of(ways)

    def gathered(self, ways: Ints, ids: Ints, first: Ints, n_id: Ints) -> Ints:
        """The ids of ways, end to end. Of one below 0 they are n_id ids of `ids` instead, from `first` on."""
        elsewhere = ways < 0
        place = places(np.where(elsewhere, first, self._ways.starts(ways)), n_id)
        elsewhere = np.repeat(elsewhere, n_id)
        found = self._ways.values[np.where(elsewhere, 0, place)].astype(np.int64)
        found[elsewhere] = ids[place[elsewhere]]
        return found
