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

from nmt.data.chance import STEP, Ints, Numbers, mixed

AS_STORED = -1
_N_TURN = 4  # draws after the first one: nine in ten texts then have their length
_N_SOUGHT = 2  # turns in which longer ways are looked for, in the others


class Lengths:
    """How many ids the words of some texts have by now."""

    def __init__(self, text: Ints, n_id: Ints, stored: Ints, wanted: Ints) -> None:
        """text, n_id, stored: (W,) the text of each word, in order, how many ids it has, and how many as it is stored.
        wanted: (T,) how many each text shall have, no fewer than stored.
        """
        self.text, self.n_id, self.stored, self.wanted = text, n_id, stored, wanted

    def missing(self) -> Ints:
        """(W,) for each word: how many ids its text has too few; below 0, how many too many."""
        have = np.bincount(self.text, self.n_id, minlength=len(self.wanted)).astype(np.int64)
        return (self.wanted - have)[self.text]

    def nearer(self, words: Ints, change: Ints, chance: Numbers, *, beyond: bool = False) -> NDArray[np.int64]:
        """Which of some words, as places in `words`, to change by so many ids: those that bring their text nearer to
        its length, in the order of `chance`, until it is there. beyond: the last may reach over it.
        """
        missing = self.missing()[words]
        helps = np.flatnonzero(change * np.sign(missing) > 0)
        helps = helps[np.lexsort((chance[helps], self.text[words[helps]]))]
        gain, text = np.abs(change[helps]), self.text[words[helps]]
        begins = np.flatnonzero(np.append(True, text[1:] != text[:-1])[: len(text)])
        sums = np.cumsum(gain)
        sums -= np.repeat((sums - gain)[begins], np.diff(begins, append=len(text)))  # of its text alone
        return helps[(sums - gain if beyond else sums - 1) < np.abs(missing[helps])]


Draw = Callable[[Ints, Numbers], tuple[Ints, Ints]]
Longer = Callable[[Ints, Ints, Ints, Numbers], tuple[Ints, Ints]]


def steer(way: Ints, lengths: Lengths, chance: Numbers, draw: Draw, longer: Longer) -> None:
    """Draw some words again, and leave some as they are stored, in place: no text is then longer than it shall be, and
    nearly none shorter.

    way: (W,) the way each word is cut, AS_STORED where it stays. chance: (W,) a number for each word. draw: from words
    and a number for each to ways and how many ids they have. longer: from words, how many ids each has, how many it may
    have and a number for each to such ways, of more ids than it has; any way where there is none.
    """
    for turn in range(1, _N_TURN + 1):
        missing = lengths.missing()
        # A word that is whole makes no text shorter.
        words = np.flatnonzero((missing > 0) | (missing < 0) & (lengths.n_id > lengths.stored))
        if not len(words):
            return
        again = mixed(chance[words] + np.uint64(turn * STEP % 2**64))
        _change(way, lengths, words, again, draw(words, again))
    words = np.flatnonzero(lengths.missing() < 0)
    taken = words[lengths.nearer(words, (lengths.stored - lengths.n_id)[words], chance[words], beyond=True)]
    way[taken], lengths.n_id[taken] = AS_STORED, lengths.stored[taken]
    for turn in range(_N_TURN + 1, _N_TURN + _N_SOUGHT + 1):
        missing = lengths.missing()
        words = np.flatnonzero(missing > 0)
        again, n_id = mixed(chance[words] + np.uint64(turn * STEP % 2**64)), lengths.n_id[words]
        _change(way, lengths, words, again, longer(words, n_id, n_id + missing[words], again))


def _change(way: Ints, lengths: Lengths, words: Ints, chance: Numbers, found: tuple[Ints, Ints]) -> None:
    """Take the ways that were found for some words, where they bring a text nearer to its length."""
    other, n_other = found
    taken = lengths.nearer(words, n_other - lengths.n_id[words], chance)
    way[words[taken]], lengths.n_id[words[taken]] = other[taken], n_other[taken]
