"""Subword regularisation: each word of a training pair is cut anew into pieces, differently each time the pair is read.

BPE-dropout (Provilkov, Emelianenko, Voita 2020) leaves out merges by chance, so that pieces of other borders come out;
of a unigram vocabulary a way to cut the word is drawn by its probability (Kudo 2018). Ids are enough: they are the
bytes of the text. What comes out depends on (seed, epoch, pair, place in the pair) and on nothing else, so resuming is
exact and any number of ranks gives the same.

A word is looked up rather than cut: of each there are at most N_WAY ways, each drawn once, when it is first needed,
from a seed made of the word and the number of the way. A batch then costs some array operations, and new words some
microseconds each. Memory: at most _MOST_WAYS ways, some 150 MB; beyond that all are drawn again, to the same end. Words
are told apart by 64 bits of hash: that any two of a million are taken for one another has a chance of 3 in 10^8.
"""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from nmt.data.corpus import Ids
from nmt.data.letters import BYTE_OF, in_words
from nmt.data.subwords import N_SPECIAL, Codec

N_WAY = 16
_MOST_WAYS = 1_000_000
_MOST_REMEMBERED = 100_000
_LONGEST = 200  # bytes of a word; a longer one stays as it is stored
_STEP = 0x9E3779B97F4A7C15

Numbers = NDArray[np.uint64]
Cut = Callable[[str, Callable[[], float]], list[int]]


class Resampler:
    """Cuts the words of sequences of ids anew."""

    def __init__(self, codec: Codec, cut: Cut) -> None:
        """cut: from a word, in letters, and random numbers from 0 to 1 to ids; no symbol is ever given to it."""
        self._codec, self._cut = codec, cut
        pre_tokenizer = in_words()

        @lru_cache(_MOST_REMEMBERED)
        def words_of(raw: bytes) -> list[str]:
            return [word for word, _ in pre_tokenizer.pre_tokenize_str(raw.decode("utf-8"))]

        self._words_of = words_of
        space = next(letter for letter, byte in BYTE_OF.items() if byte == 0x20)
        self._is_symbol = np.zeros(codec.size, dtype=bool)
        self._is_symbol[N_SPECIAL + len(codec.plain_vocab()) :] = True  # and placeholders, and tags
        begins = [False] * N_SPECIAL + [piece[0] == space for piece in codec.vocab] + [False] * len(codec.tags)
        self._begins = np.array(begins) | self._is_symbol
        self._slot_of: dict[int, int] = {}
        self._n_way = self._n_kept = 0
        self._n, self._start = np.zeros((2, 1024), dtype=np.int64)
        self._ids = np.zeros(4096, dtype=np.int32)

    def __call__(self, sequences: Sequence[Ids], pairs: NDArray[np.int64], seed: int) -> list[Ids]:
        """Sequences of ids, without BOS and EOS -> as many of the same texts.

        pairs: their numbers. seed: of the draws, together with those.
        """
        if len(self._slot_of) > _MOST_WAYS:
            self._slot_of.clear()
            self._n_way = self._n_kept = 0
        ids = np.concatenate(sequences)
        n_id = np.array([len(one) for one in sequences])
        first, of_sequence = self._units(ids, n_id)
        n_in_unit = np.diff(first, append=len(ids))
        place = np.arange(len(ids)) - np.repeat(first, n_in_unit)
        unit = np.add.reduceat(_mixed(ids.astype(np.uint64) * np.uint64(_STEP) + place.astype(np.uint64)), first)
        n_unit = np.bincount(of_sequence, minlength=len(sequences))
        turn = np.arange(len(first)) - np.repeat(np.cumsum(n_unit) - n_unit, n_unit)
        draw = _mixed(_mixed(pairs.astype(np.uint64) + _mixed(np.array([seed], np.uint64)))[of_sequence] + _seeds(turn))
        way = draw % np.uint64(N_WAY)
        key = _mixed(unit + _seeds(way))
        slot = self._slots(ids, first, n_in_unit, key)
        n_new, start = self._n[slot], self._start[slot]
        found = self._ids[np.repeat(start - (np.cumsum(n_new) - n_new), n_new) + np.arange(int(n_new.sum()))]
        ends = np.cumsum(np.bincount(of_sequence, n_new, minlength=len(sequences)).astype(np.int64))
        return np.split(found.astype(np.int64), ends[:-1])

    def _units(self, ids: Ids, n_id: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where words begin, and the sequence that each is in. Symbols are words; no piece reaches over a beginning."""
        begins = self._begins[ids]
        begins[1:] |= self._is_symbol[ids[:-1]]
        sequence_starts = np.cumsum(n_id) - n_id
        begins[sequence_starts[n_id > 0]] = True
        first = np.flatnonzero(begins)
        return first, np.repeat(np.arange(len(n_id)), n_id)[first]

    def _slots(
        self, ids: Ids, first: NDArray[np.int64], n_in_unit: NDArray[np.int64], key: Numbers
    ) -> NDArray[np.int64]:
        """Where the way of each word is kept; those that are needed for the first time are drawn."""
        keys, example, inverse = np.unique(key, return_index=True, return_inverse=True)
        known, slots = self._slot_of, []
        for number, each in zip(keys.tolist(), example.tolist(), strict=True):
            if (slot := known.get(number)) is None:
                begin = int(first[each])
                way = self._way(ids[begin : begin + int(n_in_unit[each])].tolist(), number)
                slot = known[number] = self._keep(way)
            slots.append(slot)
        return np.array(slots)[inverse]

    def _way(self, ids: list[int], seed: int) -> list[int]:
        """One word cut anew. seed: of the draws."""
        raw = b"".join(self._codec.raw(ids))
        if self._is_symbol[ids[0]] or len(raw) > _LONGEST:
            return ids
        uniform = random.Random(seed).random
        return [i for word in self._words_of(raw) for i in self._cut(word, uniform)]

    def _keep(self, way: list[int]) -> int:
        slot, begin = self._n_way, self._n_kept
        self._n_way, self._n_kept = slot + 1, begin + len(way)
        if slot == len(self._n):
            self._n, self._start = np.resize(self._n, 2 * slot), np.resize(self._start, 2 * slot)
        while self._n_kept > len(self._ids):
            self._ids = np.resize(self._ids, 2 * len(self._ids))
        self._ids[begin : self._n_kept] = way
        self._n[slot], self._start[slot] = len(way), begin
        return slot


def with_dropout(codec: Codec, rate: float) -> Resampler:
    """BPE in which each merge is left out with probability `rate`, each time it could be made."""
    id_of = {piece: i for i, piece in enumerate(codec.vocab, N_SPECIAL)}
    merges: dict[tuple[int, int], tuple[int, int]] = {}
    for rank, (a, b) in enumerate(codec.merges):
        merges.setdefault((id_of[a], id_of[b]), (rank, id_of[a + b]))

    none = len(merges)

    def cut(word: str, uniform: Callable[[], float]) -> list[int]:
        parts = [id_of[letter] for letter in word]
        ranks = [merges.get(pair, (none, 0))[0] for pair in itertools.pairwise(parts)]
        while True:
            best, at = none, 0
            for place, rank in enumerate(ranks):
                if rank < best and uniform() >= rate:
                    best, at = rank, place
            if best == none:
                return parts
            parts[at : at + 2] = [merges[parts[at], parts[at + 1]][1]]
            ranks[max(0, at - 1) : at + 2] = [
                merges.get((parts[n], parts[n + 1]), (none, 0))[0] for n in (at - 1, at) if 0 <= n < len(parts) - 1
            ]

    return Resampler(codec, cut)


def with_probabilities(codec: Codec, alpha: float) -> Resampler:
    """Unigram pieces drawn by the probability of the whole way to cut a word, to the power of `alpha`."""
    piece_of = {
        piece: (i, alpha * score)
        for i, (piece, score) in enumerate(zip(codec.plain_vocab(), codec.scores, strict=True), N_SPECIAL)
    }
    longest = max(map(len, piece_of))

    @lru_cache(_MOST_REMEMBERED)
    def last_pieces(word: str) -> list[list[tuple[float, int, int]]]:
        """Of the first letters, for any number of them: (probability, id, where it begins) of each last piece."""
        total = [0.0]  # of the ways to cut so many letters, as a logarithm
        steps: list[list[tuple[float, int, int]]] = [[]]
        for end in range(1, len(word) + 1):
            found = []
            for begin in range(max(0, end - longest), end):
                if (piece := piece_of.get(word[begin:end])) is not None:
                    found.append((total[begin] + piece[1], piece[0], begin))
            most = max(weight for weight, _, _ in found)
            total.append(most + math.log(sum(math.exp(weight - most) for weight, _, _ in found)))
            steps.append([(math.exp(weight - total[end]), i, begin) for weight, i, begin in found])
        return steps

    def cut(word: str, uniform: Callable[[], float]) -> list[int]:
        steps, end, ids = last_pieces(word), len(word), list[int]()
        while end:
            left, last = uniform(), steps[end][-1]
            for step in steps[end]:
                left -= step[0]
                if left < 0:
                    last = step
                    break
            ids.append(last[1])
            end = last[2]
        return ids[::-1]

    return Resampler(codec, cut)


def _mixed(x: Numbers) -> Numbers:
    """Numbers that look like chance, one for each (the finaliser of splitmix64). Overflow is meant."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _seeds(n: NDArray[np.integer]) -> Numbers:
    return (n.astype(np.uint64) + np.uint64(1)) * np.uint64(_STEP)
