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
from nmt.data.steer import AS_STORED, Lengths, steer
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
        self._has_symbols = bool(self._is_symbol.any())
        begins = [False] * N_SPECIAL + [piece[0] == space for piece in codec.vocab] + [False] * len(codec.tags)
        self._begins = np.array(begins) | self._is_symbol
        self._slot_of = NumberTable()
        self._n_way = self._n_kept = 0
        self._n, self._start = np.zeros((2, 1024), dtype=np.int64)
        self._ids = np.zeros(4096, dtype=np.int32)

    def __call__(
        self, sequences: Sequence[Ids], pairs: NDArray[np.int64], seed: int, wanted: Ints | None = None
    ) -> list[Ids]:
        """Sequences of ids, without BOS and EOS -> as many of the same texts.

        pairs: their numbers. seed: of the draws, together with those. wanted: how many ids each shall become, no fewer
        than it has: none becomes more, and few become fewer.
        """
        if len(self._slot_of) > _MOST_WAYS:
            self._slot_of.clear()
            self._n_way = self._n_kept = 0
        ids = np.concatenate(sequences).astype(np.int64, copy=False)
        n_id = np.array([len(one) for one in sequences])
        first = np.flatnonzero(self.begins(ids, n_id))
        of_sequence = np.repeat(np.arange(len(n_id)), n_id)[first]
        n_in_unit = np.diff(first, append=len(ids))
        unit = _numbers_of(ids, first, n_in_unit)
        n_unit = np.bincount(of_sequence, minlength=len(sequences))
        turn = np.arange(len(first)) - np.repeat(np.cumsum(n_unit) - n_unit, n_unit)
        chance = mixed(
            mixed(pairs.astype(np.uint64) + mixed(np.array([seed], np.uint64)))[of_sequence] + seeds_of(turn)
        )

        def draw(some: Ints, chance: Numbers) -> tuple[Ints, Ints]:
            slots = self._slots(ids, first[some], n_in_unit[some], unit[some], chance % np.uint64(N_WAY))
            return slots, self._n[slots]

        slot, n_new = draw(np.arange(len(first)), chance)
        if wanted is not None:
            steer(slot, Lengths(of_sequence, n_new, n_in_unit, wanted), chance, draw)
        found = self._gathered(ids, first, slot, n_new)
        ends = np.cumsum(np.bincount(of_sequence, n_new, minlength=len(sequences)).astype(np.int64))
        return np.split(found, ends[:-1])

    def usual(self, pieces: Ints, n_way: int) -> NDArray[np.float64]:
        """How many ids each of some pieces becomes where it is a word, as the mean of n_way of its ways."""
        first, n_in_unit = np.arange(len(pieces)), np.ones(len(pieces), dtype=np.int64)
        unit = _numbers_of(pieces, first, n_in_unit)
        ways = [np.full(len(pieces), way, dtype=np.uint64) for way in range(n_way)]
        slots = [self._slots(pieces, first, n_in_unit, unit, way) for way in ways]
        usual: NDArray[np.float64] = np.mean(self._n[np.array(slots)], axis=0)
        return usual

    def begins(self, ids: Ids, n_id: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Whether a word begins at each id. Symbols are words; no piece reaches over a beginning.

        n_id: of each sequence.
        """
        begins = self._begins[ids]
        if self._has_symbols:
            begins[1:] |= self._is_symbol[ids[:-1]]
        begins[(np.cumsum(n_id) - n_id)[n_id > 0]] = True
        return begins

    def _slots(self, ids: Ids, first: Ints, n_in_unit: Ints, unit: Numbers, way: Numbers) -> Ints:
        """Where ways of words are kept; those that are needed for the first time are drawn."""
        key = np.maximum(mixed(unit + seeds_of(way)), np.uint64(1))  # the table knows no 0
        slots = self._slot_of.find(key)
        if len(new := np.flatnonzero(slots < 0)):
            different, places = np.unique(key[new], return_index=True)
            places = new[places]
            begins, ends = first[places].tolist(), (first[places] + n_in_unit[places]).tolist()
            units = [ids[begin:end].tobytes() for begin, end in zip(begins, ends, strict=True)]
            self._slot_of.add(different, self._keep(*self._ways(units, different)))
            slots[new] = self._slot_of.find(key[new])
        return slots

    def _gathered(self, ids: Ids, first: Ints, slot: Ints, n_new: Ints) -> Ids:
        """The ids of all words end to end, of a way each or as they are stored in `ids`, from `first` on."""
        stored = slot == AS_STORED
        start = np.where(stored, first, self._start[slot])
        place = np.repeat(start - (np.cumsum(n_new) - n_new), n_new) + np.arange(int(n_new.sum()))
        stored = np.repeat(stored, n_new)
        found = self._ids[np.where(stored, 0, place)].astype(np.int64)
        found[stored] = ids[place[stored]]
        return found

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


def _numbers_of(ids: Ids, first: Ints, n_in_unit: Ints) -> Numbers:
    """A number for each word, by which it is known: made of its ids and their order."""
    place = np.arange(len(ids)) - np.repeat(first, n_in_unit)
    return np.add.reduceat(mixed(ids.astype(np.uint64) * np.uint64(STEP) + place.astype(np.uint64)), first)


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
