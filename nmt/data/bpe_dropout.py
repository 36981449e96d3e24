"""Ways to cut words into pieces, drawn by chance: BPE-dropout, and unigram pieces by their probabilities.

Words are cut together, one way each: a word alone would take longer than it is trained on.
"""

import itertools
import math
import operator
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from nmt.data.arrays import Ints, Numbers, Ragged, in_order, mixed, seeds_of, turns

LONGEST = 200  # letters of a word
_MOST_REMEMBERED = 10_000  # words
_BITS = np.uint64(24)  # of chance in a draw
_HALF = 32  # bits of an id where two share a number
_NO_PAIR = np.iinfo(np.int64).max


class Merges:
    """BPE-dropout (Provilkov, Emelianenko, Voita 2020).

    In each turn every merge that could be made is left out with the same probability, and of those that remain the
    earliest learnt is made, the leftmost of equals; where none remains the word is done. So the number of merges that
    are left out before the one that is made is drawn at once.
    """

    def __init__(self, merges: Mapping[tuple[int, int], tuple[int, int]], rate: float) -> None:
        """merges: from the ids of two neighbours to (rank, id of both together). rate: from 0 to less than 1."""
        found = np.array([(a << _HALF | b, *merges[a, b]) for a, b in sorted(merges)], np.int64).reshape(-1, 3)
        # One more at the end, of no pair, so that every search ends within.
        self._pair, self._rank, self._made = np.append(found, [[_NO_PAIR, 0, 0]], axis=0).T.copy()
        # n merges or more are left out where a number is below the n-th last of these.
        below = list(itertools.accumulate(itertools.repeat(rate, LONGEST), operator.mul, initial=2.0**64))
        self._below = np.array(below[:0:-1]).astype(np.uint64)

    def cut(self, words: Ragged, seeds: Numbers) -> Ragged:
        """A way to cut each word. words: ids of letters, LONGEST at most. seeds: one a word."""
        part, n_part, number = words.values, words.lengths, np.arange(len(seeds))  # of the words that go on
        done, numbers = list[Ragged](), list[Ints]()
        for turn in itertools.count():
            if not len(number):
                return Ragged(*in_order(done, numbers)) if done else words
            word = np.repeat(np.arange(len(number)), n_part)
            pair = np.where(word[:-1] == word[1:], part[:-1] << _HALF | part[1:], _NO_PAIR - 1)
            merge = np.searchsorted(self._pair, pair)
            at = np.flatnonzero(self._pair[merge] == pair)
            at = at[np.lexsort((self._rank[merge[at]], word[at]))]
            n_possible = np.bincount(word[at], minlength=len(number))
            drawn = mixed(seeds[number] + seeds_of(np.array([turn])))
            n_left_out = len(self._below) - np.searchsorted(self._below, drawn, side="right")
            goes_on = n_left_out < n_possible
            done.append(Ragged(part, n_part).some(~goes_on))
            numbers.append(number[~goes_on])
            at = at[(np.cumsum(n_possible) - n_possible + n_left_out)[goes_on]]
            stays = np.repeat(goes_on, n_part)
            stays[at + 1] = False
            part = part.copy()
            part[at] = self._made[merge[at]]
            part, n_part, number = part[stays], n_part[goes_on] - 1, number[goes_on]
        raise AssertionError


class Unigram:
    """Unigram pieces: a way to cut a word is drawn by its probability to the power of alpha (Kudo 2018)."""

    def __init__(self, pieces: Mapping[str, tuple[int, float]], alpha: float) -> None:
        """pieces: to id and score, a logarithm; every letter is one. alpha: above 0."""
        self._pieces, self._alpha = pieces, alpha
        self._longest = max(map(len, pieces))
        self._ends = lru_cache(_MOST_REMEMBERED)(self._ends_of)

    def cut(self, words: Sequence[str], seeds: Numbers) -> Ragged:
        """A way to cut each word, drawn from its end to its beginning. seeds: one a word."""
        n_letter = np.array(list(map(len, words)), np.int64)
        drawn = mixed(np.repeat(seeds, n_letter) + seeds_of(turns(n_letter))) >> (np.uint64(64) - _BITS)
        draws = iter((drawn * 2.0 ** -float(_BITS)).tolist())
        ways = []
        for word in words:
            ends, at, ids = self._ends(word), len(word), list[int]()
            for draw in itertools.islice(draws, len(word)):
                if at:
                    below, last = ends[at - 1]
                    piece, at = last[bisect_right(below, draw)]
                    ids.append(piece)
            ways.append(ids[::-1])
        return Ragged.of(ways)

    def _ends_of(self, word: str) -> list[tuple[list[float], list[tuple[int, int]]]]:
        """Last pieces of the first 1, 2, 3 and so on letters: the share of the ways that end in each or one before it;
        and of each its id and how many letters are before it.
        """
        total = [0.0]  # of the ways to cut so many letters, as a logarithm
        found = []
        for end in range(1, len(word) + 1):
            begins = [at for at in range(max(0, end - self._longest), end) if word[at:end] in self._pieces]
            pieces = [self._pieces[word[at:end]] for at in begins]
            weights = [total[at] + self._alpha * score for at, (_, score) in zip(begins, pieces, strict=True)]
            most = max(weights)
            shares = [math.exp(weight - most) for weight in weights]
            whole = sum(shares)
            total.append(most + math.log(whole))
            below = [share / whole for share in itertools.accumulate(shares)]
            below[-1] = 1.0
            found.append((below, [(piece, at) for at, (piece, _) in zip(begins, pieces, strict=True)]))
        return found
