"""Subword regularisation: each word of a training pair is cut anew into pieces, differently each time the pair is read.

BPE-dropout (Provilkov, Emelianenko, Voita 2020) leaves out merges by chance, so that pieces of other borders come out;
of a unigram vocabulary a way to cut the word is drawn by its probability (Kudo 2018). Ids are enough: they are the
bytes of the text. What comes out depends on (seed, epoch, pair, place in the pair) and on nothing else, so resuming is
exact and any number of ranks gives the same.

A word is looked up rather than cut: of each there are N_WAY ways (`ways.py`), each drawn once from a seed made
of the word and the number of the way; new words are cut together. A batch then costs some array operations. What is
forgotten is drawn again to the same end. Words are told apart by 64 bits of hash: that any two of a million are taken
for one another has a chance of 3 in 10^8.
"""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays.chance import STEP, Ints, Numbers, mixed, seeds_of
from nmt.data.arrays.ragged import Ragged, gathered, places, turns
from nmt.data.resampling.bpe_dropout import Merges
from nmt.data.resampling.unigram_ways import Unigram
from nmt.data.resampling.ways import N_WAY, Ways
from nmt.data.stored.corpus import Ids
from nmt.data.stored.word_starts import WordStarts
from nmt.data.vocabulary.subwords import N_SPECIAL, Codec

_LONGEST = 200  # letters of a word; a longer one stays as it is stored
_AS_STORED = -1

Cut = Callable[[Sequence[str], Numbers], tuple[Ints, Ints]]


class Resampler:
    """Cuts the words of texts anew, which are ids."""

    def __init__(self, codec: Codec, cut: Cut) -> None:
        """cut: from W words, in letters, and (W, N) seeds, one for each way, to the ids of all ways of a word, end to
        end, and how many each way has. Symbols are not given to it, and the word without letters has no ids.
        """
        self._cut = cut
        self._codec = codec
        self.begins = WordStarts(codec)
        self._kept = Ways()

    def __call__(self, rows: Ragged, pairs: NDArray[np.int64], seed: int, most: Ints | None = None) -> Ragged:
        """Ids of texts, without BOS and EOS -> of the same texts.

        pairs: their numbers. seed: of the draws, together with those. most: how many ids each may become, no fewer than
        it has; in a text that would have more, words stay as they are stored, drawn by chance.
        """
        ids, n_id = _wide(rows)
        first, n_in_unit, kept = self._words(ids, n_id)
        of_row = np.repeat(np.arange(len(n_id)), n_id)[first]
        n_unit = np.bincount(of_row, minlength=len(n_id))
        of_pair = mixed(pairs.astype(np.uint64) + mixed(np.array([seed], np.uint64)))
        chance = mixed(of_pair[of_row] + seeds_of(turns(n_unit)))
        way = kept + (chance % np.uint64(N_WAY)).astype(np.int64)
        n_new = self._kept.n_id(way)
        if most is not None:
            too_many = np.bincount(of_row, n_new, minlength=len(n_id)).astype(np.int64) - most
            order = np.lexsort((mixed(chance), of_row))  # the words of each text, in an order of chance
            saved = np.maximum(n_new - n_in_unit, 0)[order]
            before = np.cumsum(saved) - saved
            before -= before[np.repeat(np.cumsum(n_unit) - n_unit, n_unit)]  # in the same text
            stay = order[(before < too_many[of_row]) & (saved > 0)]
            way[stay], n_new[stay] = _AS_STORED, n_in_unit[stay]
        found = self._kept.gathered(way, ids, first, n_new)
        return Ragged(found, np.bincount(of_row, n_new, minlength=len(n_id)).astype(np.int64))

    def meet(self, rows: Ragged) -> None:
        """Draw the ways of all words of some texts that were not met yet."""
        self._words(*_wide(rows))

    def usual(self, pieces: Ints) -> NDArray[np.float64]:
        """How many ids each of some pieces becomes where it is a word, the mean of its ways, which are known then."""
        known = self._known(pieces, np.arange(len(pieces)), np.ones(len(pieces), dtype=np.int64))
        usual: NDArray[np.float64] = self._kept.n_id(known[:, None] + np.arange(N_WAY)).mean(axis=1)
        return usual

    def _words(self, ids: Ids, n_id: Ints) -> tuple[Ints, Ints, Ints]:
        """The words of texts: where each begins in `ids`, how many it has of them, and where its ways begin."""
        first = np.flatnonzero(self.begins(ids, n_id))
        n_in_unit = np.diff(first, append=len(ids))
        return first, n_in_unit, self._known(ids, first, n_in_unit)

    def _known(self, ids: Ints, first: Ints, n_in_unit: Ints) -> Ints:
        """Where the ways of words begin, of new ones too, which are drawn."""
        unit = _numbers_of(ids, first, n_in_unit)
        return self._kept.first(unit, lambda new: self._drawn(ids, first[new], n_in_unit[new], unit[new]))

    def _drawn(self, ids: Ints, first: Ints, n_in_unit: Ints, unit: Numbers) -> tuple[Ints, Ints]:
        """All ways of words: their ids end to end, and how many each has."""
        stored = ids[places(first, n_in_unit)]
        units = self._words_of(stored, np.cumsum(n_in_unit) - n_in_unit)
        n_word = np.array(list(map(len, units)))
        seeds = mixed(unit[:, None] + seeds_of(np.arange(N_WAY)))
        seeds = mixed(np.repeat(seeds, n_word, axis=0) + seeds_of(turns(n_word))[:, None])
        found, n_found = self._cut(list(itertools.chain.from_iterable(units)), seeds)
        # Of each way of a unit those of its words; where none has any ids, the unit as it is stored.
        way = np.repeat(np.tile(np.arange(N_WAY), len(units)), n_in_way := np.repeat(n_word, N_WAY))
        at = places(np.repeat(np.cumsum(n_word) - n_word, N_WAY), n_in_way) * N_WAY + way
        found, n_found = gathered(found, n_found, at)
        n_id = np.add.reduceat(n_found, np.cumsum(n_in_way) - n_in_way)
        at = np.where(n_id, np.arange(len(n_id)), len(n_id) + np.repeat(np.arange(len(units)), N_WAY))
        return gathered(np.append(found, stored), np.append(n_id, n_in_unit), at)

    def _words_of(self, ids: Ints, first: Ints) -> list[Sequence[str]]:
        """The words of units, in letters; one that has none where a unit stays as it is stored."""
        is_word = np.logical_and.reduceat(self.begins.is_letters[ids], first).tolist()
        ends, all_ids, vocab = [*first[1:].tolist(), len(ids)], ids.tolist(), self._codec.vocab
        words: list[Sequence[str]] = []
        for begin, end, is_one in zip(first.tolist(), ends, is_word, strict=True):
            unit = all_ids[begin:end]
            if self.begins.is_symbol[unit[0]]:
                words.append(("",))
                continue
            letters = "".join([vocab[i - N_SPECIAL] for i in unit])
            if len(letters) > _LONGEST:
                words.append(("",))
            elif is_one:
                words.append((letters,))
            else:
                text = b"".join(self._codec.raw(unit)).decode("utf-8")
                words.append(self._codec.letters.words(text))
        return words


def _wide(rows: Ragged) -> tuple[Ints, Ints]:
    """Ids and how many each row has, to reckon with."""
    return rows.values.astype(np.int64, copy=False), rows.lengths.astype(np.int64, copy=False)


def _numbers_of(ids: Ids, first: Ints, n_in_unit: Ints) -> Numbers:
    """A number for each word, by which it is known: made of its ids and their order."""
    place = np.arange(len(ids)) - np.repeat(first, n_in_unit)
    return np.add.reduceat(mixed(ids.astype(np.uint64) * np.uint64(STEP) + place.astype(np.uint64)), first)


def with_dropout(codec: Codec, rate: float) -> Resampler:
    """BPE in which each merge is left out with probability `rate`, each time it could be made."""
    id_of = {piece: i for i, piece in enumerate(codec.vocab, N_SPECIAL)}
    known: dict[tuple[int, int], tuple[int, int]] = {}
    for rank, (a, b) in enumerate(codec.merges):
        known.setdefault((id_of[a], id_of[b]), (rank, id_of[a + b]))
    merges = Merges(known, rate)

    letters = [piece for piece in codec.plain_vocab() if len(piece) == 1]
    id_of_code = np.zeros(max(map(ord, letters)) + 1, dtype=np.int64)
    id_of_code[list(map(ord, letters))] = [id_of[letter] for letter in letters]

    def cut(words: Sequence[str], seeds: Numbers) -> tuple[Ints, Ints]:
        letters = id_of_code[np.frombuffer("".join(words).encode("utf-32-le"), np.uint32)]
        return merges.cut(letters, np.array(list(map(len, words)), dtype=np.int64), seeds)

    return Resampler(codec, cut)


def with_probabilities(codec: Codec, alpha: float) -> Resampler:
    """Unigram pieces drawn by the probability of the whole way to cut a word, to the power of `alpha`."""
    scored = zip(codec.plain_vocab(), codec.scores, strict=True)
    pieces = {piece: (i, score) for i, (piece, score) in enumerate(scored, N_SPECIAL)}
    return Resampler(codec, Unigram(pieces, alpha).cut)
