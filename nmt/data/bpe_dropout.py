"""BPE-dropout (Provilkov, Emelianenko, Voita 2020) of many words at once: merges are left out by chance.

In each turn every merge that could be made is left out with the same probability, and of those that remain each word
makes the earliest learnt, the leftmost of equals; where none remains the word is done. All words take a turn together,
as operations on arrays: a word alone would cost some fifty microseconds of Python.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from nmt.data.chance import Ints, Numbers, mixed, seeds_of

_NONE = np.iinfo(np.int64).max
_PLACES = 1 << 20  # letters of a word, at most: a rank and a place share a number
_HALF = 32  # bits of an id where two share a number


class Merges:
    """The merges of a vocabulary as arrays, with the probability of leaving one out."""

    def __init__(self, merges: Mapping[tuple[int, int], tuple[int, int]], rate: float) -> None:
        """merges: from the ids of two neighbours to (rank, id of both together). rate: from 0 to less than 1."""
        order = sorted(merges)
        pairs = np.array(order, dtype=np.int64).reshape(-1, 2)
        found = np.array([merges[pair] for pair in order], dtype=np.int64).reshape(-1, 2)
        # One more at the end, of no pair, so that every search ends within.
        self._pair = np.append(pairs[:, 0] << _HALF | pairs[:, 1], _NONE)
        self._rank = np.append(found[:, 0], _NONE)
        self._made = np.append(found[:, 1], 0)
        self._threshold = np.uint64(rate * 2.0**64)

    def cut(self, letters: Sequence[Ints], seeds: Numbers) -> tuple[Ints, Ints]:
        """Words cut anew: their ids end to end, and how many each has.

        letters: W arrays of ids. seeds: (W,), from which all that is left out follows.
        """
        n_letter = np.array([len(one) for one in letters], dtype=np.int64)
        if not n_letter.any():
            return np.zeros(0, dtype=np.int64), n_letter
        assert n_letter.max() < _PLACES
        part = np.concatenate(letters).astype(np.int64)
        word = np.repeat(np.arange(len(n_letter)), n_letter)
        place = np.arange(len(part)) - np.repeat(np.cumsum(n_letter) - n_letter, n_letter)
        merge = self._merges_of(part[:-1], part[1:])  # of each part with the next one
        merge[word[:-1] != word[1:]] = len(self._pair) - 1
        merge = np.append(merge, len(self._pair) - 1)
        done: list[tuple[Ints, Ints]] = []
        turn = 0
        while len(part):
            best = self._best(merge, word, place, seeds, turn)
            going = np.zeros(len(n_letter), dtype=bool)
            going[word[best]] = True
            stays = going[word]
            if 2 * np.count_nonzero(stays) < len(part):  # those that are done are carried along while they are few
                done.append((part[~stays], word[~stays]))
                best = np.cumsum(stays)[best] - 1
                part, word, place, merge = part[stays], word[stays], place[stays], merge[stays]
            else:
                merge[~stays] = len(self._pair) - 1
            if not len(best):
                continue
            part[best] = self._made[merge[best]]
            kept = np.ones(len(part), dtype=bool)
            kept[best + 1] = False
            part, word, place, merge = part[kept], word[kept], place[kept], merge[kept]
            self._look_again(part, word, merge, best - np.arange(len(best)))
            turn += 1
        parts, words = (np.concatenate([one[n] for one in done]) for n in (0, 1))
        return parts[np.argsort(words, kind="stable")], np.bincount(words, minlength=len(n_letter))

    def _merges_of(self, left: Ints, right: Ints) -> Ints:
        """Where the merge of two neighbours is in the arrays."""
        pair = left << _HALF | right
        found = np.searchsorted(self._pair, pair)
        return np.where(self._pair[found] == pair, found, len(self._pair) - 1)

    def _best(self, merge: Ints, word: Ints, place: Ints, seeds: Numbers, turn: int) -> Ints:
        """The part that each word merges with its next one, for words that have any that is not left out."""
        possible = np.flatnonzero(merge < len(self._pair) - 1)
        own = seeds[word[possible]] + seeds_of(place[possible] + turn * _PLACES)
        possible = possible[mixed(own) >= self._threshold]
        if not len(possible):
            return possible
        rank = self._rank[merge[possible]] * _PLACES + place[possible]
        words = word[possible]
        starts = np.flatnonzero(np.append(True, words[1:] != words[:-1]))
        least = np.minimum.reduceat(rank, starts)
        best: Ints = possible[rank == np.repeat(least, np.diff(starts, append=len(words)))]
        return best

    def _look_again(self, part: Ints, word: Ints, merge: Ints, at: Ints) -> None:
        """Find the merges of parts that have just been made, and of those before them."""
        none = len(self._pair) - 1
        for here in (at, at - 1):
            here = here[here >= 0]
            ends = here + 1 == len(part)
            after = np.where(ends, here, here + 1)
            apart = ends | (word[here] != word[after])
            merge[here] = np.where(apart, none, self._merges_of(part[here], part[after]))
