"""BPE-dropout (Provilkov, Emelianenko, Voita 2020) of many words at once: merges are left out by chance.

In each turn every merge that could be made is left out with the same probability, and of those that remain each word
makes the earliest learnt, the leftmost of equals; where none remains the word is done. So the number of merges that a
way leaves out before the one it makes is drawn at once, and ways of a word that have made the same merges until now are
one: most leave out none, or one or two. All words take a turn together, as operations on arrays: a word alone would
cost some fifty microseconds of Python.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays import GrownRows, Ints, Numbers, NumberTable, mixed, places, seeds_of, turns

_NONE = np.iinfo(np.int64).max
_HALF = 32  # bits of an id where two share a number
_MOST = 1 << 20  # merges that a way leaves out at once: no word has so many


class _Words(NamedTuple):
    """Words with the merges made so far, as parts end to end.

    part: ids. merge: of each part with the next one, a place in the arrays of merges. n_part: of each word.
    """

    part: Ints
    merge: Ints
    n_part: Ints


class Merges:
    """The merges of a vocabulary as arrays, with the probability of leaving one out."""

    def __init__(self, merges: Mapping[tuple[int, int], tuple[int, int]], rate: float) -> None:
        """merges: from the ids of two neighbours to (rank, id of both together). rate: from 0 to less than 1."""
        order = sorted(merges)
        pairs = np.array(order, dtype=np.int64).reshape(-1, 2)
        found = np.array([merges[pair] for pair in order], dtype=np.int64).reshape(-1, 2)
        # One more at the end, of no pair, so that every search ends within.
        self._pair = np.append(pairs[:, 0] << _HALF | pairs[:, 1], _NONE)
        self._rank = np.append(found[:, 0], 0)
        self._made = np.append(found[:, 1], 0)
        self._none = len(order)
        below = [rate * 2.0**64]  # n merges or more are left out where a number is below the n-th of these
        while below[-1] >= 1 and len(below) < _MOST:
            below.append(below[-1] * rate)
        self._below = np.array([int(one) for one in reversed(below)], dtype=np.uint64)

    def cut(self, letters: Ints, n_letter: Ints, seeds: Numbers) -> tuple[Ints, Ints]:
        """Ways to cut words: their ids, those of all ways of a word end to end, and how many each way has.

        letters: ids of W words, end to end. n_letter: (W,) of each. seeds: (W, N), one for each way, from which all
        that it leaves out follows.
        """
        n_bit = int(n_letter.max(initial=0)).bit_length()
        merge = np.append(self._merges_of(letters[:-1], letters[1:]), self._none)[: len(letters)]
        merge[np.cumsum(n_letter)[n_letter > 0] - 1] = self._none
        words = _Words(letters, merge, n_letter)
        way = np.arange(seeds.size)  # those that go on
        word = np.repeat(np.arange(len(n_letter)), seeds.shape[1])  # of each of them
        start, n_id = np.zeros_like(way), np.zeros_like(way)  # of each way, in what is done
        done, n_done, turn = [letters[:0]], 0, 0
        while len(way):
            possible, n_possible = self._possible(words, n_bit)
            left_out = np.minimum(self._n_left_out(seeds.ravel()[way], turn), n_possible[word])
            # Ways of a word part where they leave out another number, up to all that are possible.
            first = np.cumsum(n_possible + 1) - n_possible - 1
            choice = first[word] + left_out
            is_taken = np.zeros(len(possible) + len(n_possible), dtype=bool)
            is_taken[choice] = True
            taken = np.flatnonzero(is_taken)
            came_of = np.repeat(np.arange(len(n_possible)), n_possible + 1)[taken]
            ends = taken - first[came_of] == n_possible[came_of]
            word = (np.cumsum(is_taken) - 1)[choice]

            ended = came_of[ends]
            n_part = words.n_part[ended]
            start_of, n_of = np.zeros((2, len(taken)), dtype=np.int64)
            start_of[ends], n_of[ends] = n_done + np.cumsum(n_part) - n_part, n_part
            is_done = ends[word]
            start[way[is_done]], n_id[way[is_done]] = start_of[word[is_done]], n_of[word[is_done]]
            done.append(words.part[places((np.cumsum(words.n_part) - words.n_part)[ended], n_part)])
            n_done += len(done[-1])

            way, word = way[~is_done], (np.cumsum(~ends) - 1)[word[~is_done]]
            words = self._merged(words, came_of[~ends], possible[(taken - came_of)[~ends]])
            turn += 1
        return np.concatenate(done)[places(start, n_id)], n_id

    def _n_left_out(self, seeds: Numbers, turn: int) -> Ints:
        """Number of merges that each way leaves out before the one that it makes, were there enough of them."""
        drawn = mixed(seeds + seeds_of(np.array([turn])))
        n_left_out = np.zeros(len(drawn), dtype=np.int64)
        some = np.flatnonzero(drawn < self._below[-1])
        n_left_out[some] = len(self._below) - np.searchsorted(self._below, drawn[some], side="right")
        return n_left_out

    def _possible(self, words: _Words, n_bit: int) -> tuple[Ints, Ints]:
        """The merges that words could make, those of each from the earliest learnt on, as the places of their left
        parts, and how many each word has. n_bit: of a place in a word.
        """
        at = np.flatnonzero(words.merge < self._none)
        word = np.repeat(np.arange(len(words.n_part)), words.n_part)[at]
        start = np.cumsum(words.n_part) - words.n_part
        rank = self._rank[words.merge[at]]
        order = np.sort((word << self._none.bit_length() | rank) << n_bit | (at - start[word]))
        return start[word] + (order & (1 << n_bit) - 1), np.bincount(word, minlength=len(words.n_part))

    def _merged(self, words: _Words, of: Ints, at: Ints) -> _Words:
        """Some words with one merge more each. of: which; at: where the left part is."""
        start = np.cumsum(words.n_part) - words.n_part
        n_part = words.n_part[of] - 1
        new_start = np.cumsum(n_part) - n_part
        left = at - start[of]
        # The right part is left out.
        kept = places(start[of], n_part) + (turns(n_part) > np.repeat(left, n_part))
        part, merge = words.part[kept], words.merge[kept]
        left += new_start
        part[left] = self._made[words.merge[at]]
        merge[left] = self._none
        for here in (left[left + 1 < new_start + n_part], left[left > new_start] - 1):
            merge[here] = self._merges_of(part[here], part[here + 1])
        return _Words(part, merge, n_part)

    def _merges_of(self, left: Ints, right: Ints) -> Ints:
        """Places of the merges of neighbours in the arrays."""
        pair = left << _HALF | right
        found = np.searchsorted(self._pair, pair)
        return np.where(self._pair[found] == pair, found, self._none)


# Ways to cut words into the pieces of a unigram vocabulary (Kudo 2018), drawn for many words at once.
_MOST_REMEMBERED = 10_000  # words that come with others, like a comma: of one the ways are drawn once
_BITS = np.uint64(24)  # of chance in a draw: a place and such a number are exact together


class _Ends(NamedTuple):
    """Pieces that the first n letters of a word may end in, by n and then in any order.

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


# The ways to cut words, of all words that were met so far, in a few arrays.
N_WAY = 16
_MOST_WORDS = 200_000


class Ways:
    """Ways to cut words, each some ids. Those of a word have N_WAY places in a row."""

    def __init__(self) -> None:
        self._word_of = NumberTable()
        self._ways = GrownRows(np.int32)

    def first(self, words: Numbers, draw: Callable[[Ints], tuple[Ints, Ints]]) -> Ints:
        """Starts of the ways of words. words: a number for each, its own.

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
        """Number of ids of ways, by their places."""
        return self._ways.n_of(ways)

    def gathered(self, ways: Ints, ids: Ints, first: Ints, n_id: Ints) -> Ints:
        """The ids of ways, end to end. Of one below 0 they are n_id ids of `ids` instead, from `first` on."""
        elsewhere = ways < 0
        place = places(np.where(elsewhere, first, self._ways.starts(ways)), n_id)
        elsewhere = np.repeat(elsewhere, n_id)
        found = self._ways.values[np.where(elsewhere, 0, place)].astype(np.int64)
        found[elsewhere] = ids[place[elsewhere]]
        return found
