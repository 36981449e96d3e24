"""Ways to cut words into the pieces of a unigram vocabulary (Kudo 2018), drawn for many words at once.

The probability of a way is that of its pieces, to the power of alpha, over that of all ways to cut the word. A way is
drawn from the end of the word on: the last piece by the share of the ways that end in it, then the one before it. All
words take such a step together, as operations on arrays: a word alone would cost some microseconds of Python.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays.chance import Ints, Numbers, mixed, seeds_of

_MOST_REMEMBERED = 10_000  # words that come with others, like a comma: of one the ways are drawn once
_BITS = np.uint64(24)  # of chance in a draw: a place and such a number are exact together


class _Ends(NamedTuple):
    """What the first letters of a word end in: of each piece, by the number of letters and then any order.

    n_letter: in how many letters. below: the share of the ways with this piece or with one before it in order. piece:
    its id. begin: how many letters are before it.
    """

    n_letter: Ints
    below: NDArray[np.float64]
    piece: Ints
    begin: Ints


class Unigram:
    """The pieces of a vocabulary with their scores."""

    def __init__(self, pieces: Mapping[str, tuple[int, float]], alpha: float) -> None:
        """pieces: to id and score, a logarithm; every letter is one. alpha: above 0."""
        self._pieces, self._alpha = pieces, alpha
        self._longest = max(map(len, pieces))
        self._ends = lru_cache(_MOST_REMEMBERED)(self._ends_of)

    def cut(self, words: Sequence[str], seeds: Numbers) -> tuple[Ints, Ints]:
        """Ways to cut words: their ids, those of all ways of a word end to end, and how many each way has.

        seeds: (W, N), one for each way, from which all that is drawn for it follows.
        """
        number = {word: n for n, word in enumerate(dict.fromkeys(words))}
        n_letter = np.array(list(map(len, number)), dtype=np.int64)
        first = np.cumsum(n_letter + 1) - n_letter - 1  # the place of each word's beginning
        ends = list(map(self._ends, number))
        n_end = np.array([len(one.piece) for one in ends], dtype=np.int64)
        n_before, below, piece, begin = map(np.concatenate, zip(*ends, strict=True))
        shift = np.repeat(first, n_end)
        # Sorted, for it grows with the place and within one: so a search finds a place's piece.
        share, begin = below + (n_before + shift), begin + shift

        word = np.repeat(np.array([number[one] for one in words], dtype=np.int64), seeds.shape[1])
        way, at, seeds = np.arange(seeds.size), (first + n_letter)[word], seeds.ravel()
        home = first[word]
        steps: list[tuple[Ints, Ints]] = []
        while len(going := np.flatnonzero(at > home)):
            way, at, home = way[going], at[going], home[going]
            drawn = mixed(seeds[way] + seeds_of(np.array([len(steps)]))) >> (np.uint64(64) - _BITS)
            found = np.searchsorted(share, at + drawn * 2.0 ** -float(_BITS), side="right")
            steps.append((way, piece[found]))
            at = begin[found]
        ways, ids = (np.concatenate([step[n] for step in steps[::-1]] or [way[:0]]) for n in (0, 1))
        return ids[np.argsort(ways, kind="stable")], np.bincount(ways, minlength=len(seeds))

    def _ends_of(self, word: str) -> _Ends:
        total = [0.0]  # of the ways to cut so many letters, as a logarithm
        found: list[tuple[int, float, int, int]] = []
        for end in range(1, len(word) + 1):
            here = []
            for begin in range(max(0, end - self._longest), end):
                if (piece := self._pieces.get(word[begin:end])) is not None:
                    here.append((total[begin] + self._alpha * piece[1], piece[0], begin))
            most = max(weight for weight, _, _ in here)
            shares = [math.exp(weight - most) for weight, _, _ in here]
            whole = sum(shares)
            total.append(most + math.log(whole))
            below = [share / whole for share in itertools.accumulate(shares)]
            below[-1] = 1.0
            found += [(end, share, i, begin) for share, (_, i, begin) in zip(below, here, strict=True)]
        n_letter, below_all, ids, begins = zip(*found, strict=True) if found else ((), (), (), ())
        return _Ends(
            np.array(n_letter, np.int64), np.array(below_all), np.array(ids, np.int64), np.array(begins, np.int64)
        )
