"""Words cut anew by chance, such that a text still becomes as long as it was planned to.

Chance alone makes texts of like length unlike ones, and a batch of them a fifth padding. So each text has a length that
it usually grows to, by which batches are planned. Where the first draw gives another, words are drawn once more, and
draws that bring the text nearer are kept, in a random order, until it is there; for the last ones longer ways are
looked for. A word so has the ways that it would have, and nearly as often: a text has a little less of chance, its
words have as much.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays.chance import STEP, Ints, Numbers, mixed

AS_STORED = -1
_N_TURN = 4  # draws after the first one: nine in ten texts then have their length
_N_SOUGHT = 2  # turns in which longer ways are looked for, in the others


class Lengths:
    """How many ids the words of some texts have by now, and how many each text has too few; below 0: too many."""

    def __init__(self, text: Ints, n_id: Ints, stored: Ints, wanted: Ints) -> None:
        """text, n_id, stored: (W,) the text of each word, in order, how many ids it has, and how many as it is stored.
        wanted: (T,) how many each text shall have, no fewer than stored.
        """
        self.text, self.n_id, self.stored = text, n_id, stored
        self._missing = wanted - _sums(text, n_id, len(wanted))
        self._n_bit = np.uint64(len(wanted).bit_length())  # of the number of a text

    def missing(self, words: Ints) -> Ints:
        """How many ids the text of each of some words has too few."""
        return self._missing[self.text[words]]

    def set(self, words: Ints, n_id: Ints) -> None:
        """Some words have so many ids now."""
        self._missing -= _sums(self.text[words], n_id - self.n_id[words], len(self._missing))
        self.n_id[words] = n_id

    def nearer(self, words: Ints, change: Ints, chance: Numbers, *, beyond: bool = False) -> NDArray[np.int64]:
        """Which of some words, as places in `words`, to change by so many ids: those that bring their text nearer to
        its length, in the order of `chance`, until it is there. beyond: the last may reach over it.
        """
        missing = self.missing(words)
        helps = np.flatnonzero(change * np.sign(missing) > 0)
        # By text, and there by chance: in one number, which is sorted faster than two.
        text = self.text[words[helps]].astype(np.uint64)
        order = np.argsort(text << (np.uint64(64) - self._n_bit) | chance[helps] >> self._n_bit)
        helps, text = helps[order], text[order]
        gain = np.abs(change[helps])
        begins = np.flatnonzero(np.append(True, text[1:] != text[:-1])[: len(text)])
        sums = np.cumsum(gain)
        sums -= np.repeat((sums - gain)[begins], np.diff(begins, append=len(text)))  # of its text alone
        return helps[(sums - gain if beyond else sums - 1) < np.abs(missing[helps])]


def _sums(text: Ints, n_id: Ints, n_text: int) -> Ints:
    return np.bincount(text, n_id, minlength=n_text).astype(np.int64)


Draw = Callable[[Ints, Numbers], tuple[Ints, Ints]]
Longer = Callable[[Ints, Ints, Ints, Numbers], tuple[Ints, Ints]]


def steer(way: Ints, lengths: Lengths, chance: Numbers, draw: Draw, longer: Longer) -> None:
    """Draw some words again, and leave some as they are stored, in place: no text is then longer than it shall be, and
    nearly none shorter.

    way: (W,) the way each word is cut, AS_STORED where it stays. chance: (W,) a number for each word. draw: from words
    and a number for each to ways and how many ids they have. longer: from words, how many ids each has, how many it may
    have and a number for each to such ways, of more ids than it has; any way where there is none.
    """
    words = np.arange(len(way))
    for turn in range(1, _N_TURN + 1):
        missing = lengths.missing(words)
        # A word that is whole makes no text shorter. Who cannot help now cannot later: no text passes its length.
        words = words[(missing > 0) | (missing < 0) & (lengths.n_id[words] > lengths.stored[words])]
        if not len(words):
            return
        again = mixed(chance[words] + np.uint64(turn * STEP % 2**64))
        _change(way, lengths, words, again, draw(words, again))
    words = words[lengths.missing(words) < 0]
    taken = words[lengths.nearer(words, (lengths.stored - lengths.n_id)[words], chance[words], beyond=True)]
    way[taken] = AS_STORED
    lengths.set(taken, lengths.stored[taken])
    words = np.arange(len(way))
    for turn in range(_N_TURN + 1, _N_TURN + _N_SOUGHT + 1):
        words = words[lengths.missing(words) > 0]
        again, n_id = mixed(chance[words] + np.uint64(turn * STEP % 2**64)), lengths.n_id[words]
        _change(way, lengths, words, again, longer(words, n_id, n_id + lengths.missing(words), again))


def _change(way: Ints, lengths: Lengths, words: Ints, chance: Numbers, found: tuple[Ints, Ints]) -> None:
    """Take the ways that were found for some words, where they bring a text nearer to its length."""
    other, n_other = found
    taken = lengths.nearer(words, n_other - lengths.n_id[words], chance)
    way[words[taken]] = other[taken]
    lengths.set(words[taken], n_other[taken])
