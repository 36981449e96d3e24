"""Subword regularisation: each word of a training pair is cut anew into pieces, differently each time the pair is read.

BPE-dropout (Provilkov, Emelianenko, Voita 2020) leaves out merges by chance, so that pieces of other borders come out;
of a unigram vocabulary a way to cut the word is drawn by its probability (Kudo 2018). Ids are enough: they are the
bytes of the text. What comes out depends on (seed, epoch, pair, place in the pair) and on nothing else, so resuming is
exact and any number of ranks gives the same.

A word is looked up rather than cut: of each there are at most N_WAY ways, each drawn once, when it is first needed,
from a seed made of the word and the number of the way; new words are cut together. A batch then costs some array
operations. Memory: at most _MOST_WAYS ways, some 100 MB; beyond that all are drawn again, to the same end. Words
are told apart by 64 bits of hash: that any two of a million are taken for one another has a chance of 3 in 10^8.
"""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from nmt.data.bpe_dropout import Merges
from nmt.data.chance import STEP, Ints, Numbers, mixed, seeds_of
from nmt.data.corpus import Ids
from nmt.data.letters import BYTE_OF, in_words
from nmt.data.number_table import NumberTable
from nmt.data.subwords import N_SPECIAL, Codec

N_WAY = 16
_MOST_WAYS = 1_000_000
_MOST_REMEMBERED = 100_000
_LONGEST = 200  # bytes of a word; a longer one stays as it is stored

Cut = Callable[[Sequence[str], Numbers], tuple[Ints, Ints]]


class Resampler:
    """Cuts the words of sequences of ids anew."""

    def __init__(self, codec: Codec, cut: Cut) -> None:
        """cut: from words, in letters, and a seed each to their ids, end to end, and how many each has. Symbols are not
        given to it, and the word without letters has no ids.
        """
        self._cut = cut
        pre_tokenizer = in_words()

        @lru_cache(_MOST_REMEMBERED)
        def words_of(unit: bytes) -> Sequence[str]:
            """In letters; of ids that stay as they are the word that has none."""
            ids = np.frombuffer(unit, np.int64).tolist()
            raw = b"".join(codec.raw(ids))
            if self._is_symbol[ids[0]] or len(raw) > _LONGEST:
                return ("",)
            return [word for word, _ in pre_tokenizer.pre_tokenize_str(raw.decode("utf-8"))]

        self._words_of = words_of
        space = next(letter for letter, byte in BYTE_OF.items() if byte == 0x20)
        self._is_symbol = np.zeros(codec.size, dtype=bool)
        self._is_symbol[N_SPECIAL + len(codec.plain_vocab()) :] = True  # and placeholders, and tags
        begins = [False] * N_SPECIAL + [piece[0] == space for piece in codec.vocab] + [False] * len(codec.tags)
        self._begins = np.array(begins) | self._is_symbol
        self._slot_of = NumberTable()
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
        ids = np.concatenate(sequences).astype(np.int64, copy=False)
        n_id = np.array([len(one) for one in sequences])
        first, of_sequence = self._units(ids, n_id)
        n_in_unit = np.diff(first, append=len(ids))
        place = np.arange(len(ids)) - np.repeat(first, n_in_unit)
        unit = np.add.reduceat(mixed(ids.astype(np.uint64) * np.uint64(STEP) + place.astype(np.uint64)), first)
        n_unit = np.bincount(of_sequence, minlength=len(sequences))
        turn = np.arange(len(first)) - np.repeat(np.cumsum(n_unit) - n_unit, n_unit)
        draw = mixed(mixed(pairs.astype(np.uint64) + mixed(np.array([seed], np.uint64)))[of_sequence] + seeds_of(turn))
        way = draw % np.uint64(N_WAY)
        key = np.maximum(mixed(unit + seeds_of(way)), np.uint64(1))  # the table knows no 0
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
        slots = self._slot_of.find(key)
        if len(new := np.flatnonzero(slots < 0)):
            different, places = np.unique(key[new], return_index=True)
            places = new[places]
            begins, ends = first[places].tolist(), (first[places] + n_in_unit[places]).tolist()
            units = [ids[begin:end].tobytes() for begin, end in zip(begins, ends, strict=True)]
            self._slot_of.add(different, self._keep(*self._ways(units, different)))
            slots[new] = self._slot_of.find(key[new])
        return slots

    def _ways(self, units: list[bytes], seeds: Numbers) -> tuple[Ints, Ints]:
        """Some words cut anew: their ids end to end, and how many each has. seeds: of the draws of each."""
        words = list(map(self._words_of, units))
        n_word = np.array(list(map(len, words)))
        found, n_found = self._cut(list(itertools.chain.from_iterable(words)), _of_words(seeds, n_word))
        n_id = np.add.reduceat(n_found, np.cumsum(n_word) - n_word)
        if all(n_id):
            return found, n_id
        cut = np.split(found, np.cumsum(n_id)[:-1])
        ways = [way if len(way) else np.frombuffer(unit, np.int64) for unit, way in zip(units, cut, strict=True)]
        return np.concatenate(ways), np.array(list(map(len, ways)))

    def _keep(self, ids: Ints, n_id: Ints) -> Ints:
        """Remember ways, of n_id ids each. Returns where they are."""
        n_way, end = self._n_way + len(n_id), self._n_kept + len(ids)
        while n_way > len(self._n):
            self._n, self._start = np.resize(self._n, 2 * len(self._n)), np.resize(self._start, 2 * len(self._n))
        while end > len(self._ids):
            self._ids = np.resize(self._ids, 2 * len(self._ids))
        self._ids[self._n_kept : end] = ids
        slots = np.arange(self._n_way, n_way)
        self._n[slots] = n_id
        self._start[slots] = self._n_kept + np.cumsum(n_id) - n_id
        self._n_way, self._n_kept = n_way, end
        return slots


def _of_words(seeds: Numbers, n_word: Ints) -> Numbers:
    """A seed for each of the words that some units are made of, from one for each unit."""
    turn = np.arange(int(n_word.sum())) - np.repeat(np.cumsum(n_word) - n_word, n_word)
    return mixed(np.repeat(seeds, n_word) + seeds_of(turn))


def with_dropout(codec: Codec, rate: float) -> Resampler:
    """BPE in which each merge is left out with probability `rate`, each time it could be made."""
    id_of = {piece: i for i, piece in enumerate(codec.vocab, N_SPECIAL)}
    known: dict[tuple[int, int], tuple[int, int]] = {}
    for rank, (a, b) in enumerate(codec.merges):
        known.setdefault((id_of[a], id_of[b]), (rank, id_of[a + b]))
    merges = Merges(known, rate)

    @lru_cache(_MOST_REMEMBERED)
    def letters(word: str) -> Ints:
        return np.array([id_of[letter] for letter in word], dtype=np.int64)

    def cut(words: Sequence[str], seeds: Numbers) -> tuple[Ints, Ints]:
        return merges.cut([letters(word) for word in words], seeds)

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

    def cut_one(word: str, uniform: Callable[[], float]) -> list[int]:
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

    def cut(words: Sequence[str], seeds: Numbers) -> tuple[Ints, Ints]:
        ways = [cut_one(word, random.Random(seed).random) for word, seed in zip(words, seeds.tolist(), strict=True)]
        return np.array([i for way in ways for i in way], dtype=np.int64), np.array([len(way) for way in ways])

    return Resampler(codec, cut)
