"""Subword regularisation: each word of a training pair is cut anew into pieces, differently each time the pair is read.

BPE-dropout (Provilkov, Emelianenko, Voita 2020) leaves out merges by chance, so that pieces of other borders come out;
of a unigram vocabulary a way to cut the word is drawn by its probability (Kudo 2018). Ids are enough: they are the
bytes of the text. What comes out depends on (seed, epoch, pair, place in the pair) and on nothing else, so resuming is
exact and any number of ranks gives the same.

A word is looked up rather than cut: of each there are N_WAY ways (nmt/data/ways.py), each drawn once from a seed made
of the word and the number of the way; new words are cut together. A batch then costs some array operations. What is
forgotten is drawn again to the same end. Words are told apart by 64 bits of hash: that any two of a million are taken
for one another has a chance of 3 in 10^8.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from nmt.data.bpe_dropout import Merges
from nmt.data.chance import STEP, Ints, Numbers, mixed, seeds_of
from nmt.data.corpus import Ids
from nmt.data.letters import BYTE_OF, in_words
from nmt.data.steer import Lengths, steer
from nmt.data.subwords import N_SPECIAL, Codec
from nmt.data.unigram_ways import Unigram
from nmt.data.ways import N_WAY, Ways

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
        self._kept = Ways()

    def __call__(
        self, sequences: Sequence[Ids], pairs: NDArray[np.int64], seed: int, wanted: Ints | None = None
    ) -> list[Ids]:
        """Sequences of ids, without BOS and EOS -> as many of the same texts.

        pairs: their numbers. seed: of the draws, together with those. wanted: how many ids each shall become, no fewer
        than it has: none becomes more, and few become fewer.
        """
        ids = np.concatenate(sequences).astype(np.int64, copy=False)
        n_id = np.array([len(one) for one in sequences])
        first = np.flatnonzero(self.begins(ids, n_id))
        of_sequence = np.repeat(np.arange(len(n_id)), n_id)[first]
        n_in_unit = np.diff(first, append=len(ids))
        unit = _numbers_of(ids, first, n_in_unit)
        kept = self._kept.first(unit, lambda new: self._drawn(ids, first[new], n_in_unit[new], unit[new], N_WAY))
        n_unit = np.bincount(of_sequence, minlength=len(sequences))
        turn = np.arange(len(first)) - np.repeat(np.cumsum(n_unit) - n_unit, n_unit)
        chance = mixed(
            mixed(pairs.astype(np.uint64) + mixed(np.array([seed], np.uint64)))[of_sequence] + seeds_of(turn)
        )

        def draw(some: Ints, chance: Numbers) -> tuple[Ints, Ints]:
            ways = kept[some] + (chance % np.uint64(N_WAY)).astype(np.int64)
            return ways, self._kept.n_id(ways)

        way, n_new = draw(np.arange(len(first)), chance)
        if wanted is not None:
            steer(way, Lengths(of_sequence, n_new, n_in_unit, wanted), chance, draw)
        found = self._kept.gathered(way, ids, first, n_new)
        ends = np.cumsum(np.bincount(of_sequence, n_new, minlength=len(sequences)).astype(np.int64)).tolist()
        return [found[begin:end] for begin, end in itertools.pairwise([0, *ends])]

    def usual(self, pieces: Ints, n_way: int) -> NDArray[np.float64]:
        """How many ids each of some pieces becomes where it is a word, as the mean of n_way of its ways."""
        first, n_in_unit = np.arange(len(pieces)), np.ones(len(pieces), dtype=np.int64)
        _, n_id = self._drawn(pieces, first, n_in_unit, _numbers_of(pieces, first, n_in_unit), n_way)
        usual: NDArray[np.float64] = n_id.reshape(-1, n_way).mean(axis=1)
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

    def _drawn(self, ids: Ints, first: Ints, n_in_unit: Ints, unit: Numbers, n_way: int) -> tuple[Ints, Ints]:
        """The first ways of words: their ids end to end, and how many each has."""
        ends = (first + n_in_unit).tolist()
        units = [ids[begin:end].tobytes() for begin, end in zip(first.tolist(), ends, strict=True)]
        seeds = mixed((unit[:, None] + seeds_of(np.arange(n_way))).ravel())
        words = [some for unit in units for some in itertools.repeat(self._words_of(unit), n_way)]
        n_word = np.array(list(map(len, words)))
        found, n_found = self._cut(list(itertools.chain.from_iterable(words)), _of_words(seeds, n_word))
        n_id = np.add.reduceat(n_found, np.cumsum(n_word) - n_word)
        if n_id.all():
            return found, n_id
        cut = np.split(found, np.cumsum(n_id)[:-1])
        of_way = [way if len(way) else np.frombuffer(units[n // n_way], np.int64) for n, way in enumerate(cut)]
        return np.concatenate(of_way), np.array(list(map(len, of_way)))


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
    scored = zip(codec.plain_vocab(), codec.scores, strict=True)
    pieces = {piece: (i, score) for i, (piece, score) in enumerate(scored, N_SPECIAL)}
    return Resampler(codec, Unigram(pieces, alpha).cut)
