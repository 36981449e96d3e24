"""Subword regularisation: each word of a training pair gets a new random segmentation each time the pair is read.

It works on ids, which determine the bytes of the text. The result depends on (seed, epoch, pair, place in the pair)
alone, so resuming is exact and the number of ranks has no effect. A word, identified by a hash of 64 bits, has N_WAY
segmentations, each drawn from a seed of the word and the number of the segmentation. Also noise: capitals and typos.
"""

import itertools
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays import STEP, Ints, Numbers, Ragged, fractions, mixed, positions, seeds_of
from nmt.data.corpus import Corpus, Ids
from nmt.data.letters import BYTE_LETTERS, easy_words, in_words, kind_of, letters_of, spelled
from nmt.data.plan import Rows
from nmt.data.subwords import N_SPECIAL, Codec, Subwords
from nmt.languages import language_of
from nmt.recipe.training_options import BatchConfig, NoiseConfig

LONGEST = 200  # letters of a word
_MOST_WORDS_KEPT = 10_000  # whose possible pieces are remembered

Cut = Callable[[str, Sequence[int]], list[int]]  # from a word, and a random 64-bit number for each letter, to its ids


def dropout_cut(codec: Codec, rate: float) -> Cut:
    """BPE-dropout (Provilkov, Emelianenko, Voita 2020). rate: from 0 to less than 1.

    In each step every possible merge is dropped with the same probability. Of the others the earliest learnt is
    applied, the leftmost of equals; if none is left, the word is done. So one draw gives the number of merges that are
    dropped before the one that is applied.
    """
    id_of = {piece: i for i, piece in enumerate(codec.vocab, N_SPECIAL)}
    # Of equal merges the last one counts, as in the tokenizers library.
    merges = {(id_of[a], id_of[b]): (rank, id_of[a + b]) for rank, (a, b) in enumerate(codec.merges)}
    # A draw below the n-th of these thresholds drops n merges or more.
    thresholds = [int(rate**n * 2.0**64) for n in range(1, LONGEST + 1)]

    def cut(word: str, draws: Sequence[int]) -> list[int]:
        parts = [id_of[letter] for letter in word]
        for draw in draws:
            pairs = enumerate(itertools.pairwise(parts))
            possible = sorted((*merges[pair], place) for place, pair in pairs if pair in merges)
            kept = (merge for merge, threshold in zip(possible, thresholds, strict=False) if draw >= threshold)
            if (first := next(kept, None)) is None:
                break
            _, merged, place = first
            parts[place : place + 2] = [merged]
        return parts

    return cut


def unigram_cut(codec: Codec, alpha: float) -> Cut:
    """Unigram sampling: draws segmentations of a word by their probability to the power of alpha (Kudo 2018).

    codec: of a unigram vocabulary, in which every letter is a piece. alpha: above 0.
    """
    scored = zip(codec.table.vocab, codec.scores, strict=True)
    id_and_score = {piece: (i, score) for i, (piece, score) in enumerate(scored, N_SPECIAL)}
    longest = max(map(len, id_and_score))

    @lru_cache(_MOST_WORDS_KEPT)
    def last_pieces_of(word: str) -> list[tuple[list[float], list[tuple[int, int]]]]:
        """Possible last pieces of the first 1, 2, 3 and so on letters of a word.

        Of each prefix: the cumulative probabilities of these pieces; of each piece its id and the letters before it.
        """
        total, prefixes = [0.0], []  # total: log of the summed weights of all segmentations of so many letters
        for end in range(1, len(word) + 1):
            begins = [begin for begin in range(max(0, end - longest), end) if word[begin:end] in id_and_score]
            pieces = [id_and_score[word[begin:end]] for begin in begins]
            weights = [total[begin] + alpha * score for begin, (_, score) in zip(begins, pieces, strict=True)]
            highest = max(weights)
            shares = [math.exp(weight - highest) for weight in weights]
            share_sum = sum(shares)
            total.append(highest + math.log(share_sum))
            cumulative = [share / share_sum for share in itertools.accumulate(shares)]
            cumulative[-1] = 1.0
            prefixes.append((cumulative, [(piece, begin) for begin, (piece, _) in zip(begins, pieces, strict=True)]))
        return prefixes

    def cut(word: str, draws: Sequence[int]) -> list[int]:
        ids, end, last_pieces = list[int](), len(word), last_pieces_of(word)
        for draw in draws:  # from the end of the word to its beginning
            if end:
                cumulative, pieces = last_pieces[end - 1]
                piece, end = pieces[bisect_right(cumulative, (draw >> 40) * 2.0**-24)]
                ids.append(piece)
        return ids[::-1]

    return cut


def _draws(seeds: Numbers, rows: Sequence[Sequence[Any]]) -> Numbers:
    """Draw a number for each item of each row, such as for each letter of each word. seeds: one a row."""
    n_item = np.array(list(map(len, rows)), np.int64)
    return mixed(np.repeat(seeds, n_item) + seeds_of(positions(n_item)))


class WordStarts:
    """Starts of the words that `in_words` splits a text into, as far as pieces show them.

    Symbols, placeholders and tags are words. A piece that begins with a space begins a word, and so does one whose kind
    of character differs from the piece before. Words that pieces do not separate count as one.
    """

    def __init__(self, codec: Codec) -> None:
        self.is_symbol = np.arange(codec.size) >= codec.first_symbol
        self._begins = self.is_symbol.copy()
        self._first_kind, self._last_kind = np.zeros((2, codec.size), dtype=np.uint8)  # 0: unknown
        for i, piece in enumerate(codec.table.vocab, N_SPECIAL):
            self._begins[i] = piece.startswith(" ")
            self._first_kind[i] = kind_of(piece[0])
            if piece[-1] != "'":  # which belongs to some of the letters that may follow it, as in "it's"
                self._last_kind[i] = kind_of(piece[-1])

    def __call__(self, ids: Ids, n_id: NDArray[np.integer]) -> NDArray[np.bool_]:
        """True at each id that begins a word. n_id: length of each sequence."""
        begins = self._begins.take(ids)
        last, first = self._last_kind.take(ids[:-1]), self._first_kind.take(ids[1:])
        begins[1:] |= self.is_symbol.take(ids[:-1])
        begins[1:] |= (last != first) & (last != 0) & (first != 0)
        begins[(np.cumsum(n_id) - n_id)[n_id > 0]] = True
        return begins


N_WAY = 16  # segmentations of a word
_MOST_REMEMBERED = 1_000_000  # segmentations, some 250 MB

Floats = NDArray[np.float64]


class Resampler:
    """Draws new segmentations of texts, given as ids. Words that `WordStarts` does not separate form one unit."""

    def __init__(self, codec: Codec, cut: Cut) -> None:
        self._codec, self._cut, self.begins = codec, cut, WordStarts(codec)
        self._letters, self._in_words = letters_of(codec.table.vocab), in_words()
        self._ways = dict[int, tuple[int, ...]]()  # segmentations by a hash of the unit and of the number of its way

    def __call__(self, rows: Ragged, pairs: Ints, seed: int, most: NDArray[np.integer] | None = None) -> Ragged:
        """Ids of texts, without BOS and EOS -> ids of the same texts.

        pairs: their numbers. seed: of the draws, together with those numbers. most: bound on the ids of each text, no
        less than it has; in a text that would exceed it, random units keep their stored ids.
        """
        ids, n_id = (array.astype(np.int64, copy=False) for array in (rows.values, rows.lengths))
        first = np.flatnonzero(self.begins(ids, n_id))
        n_in_unit = np.diff(first, append=len(ids))
        row = np.repeat(np.arange(len(n_id)), n_id)[first]  # of each unit
        n_unit = np.bincount(row, minlength=len(n_id))
        row_seeds = mixed(pairs.astype(np.uint64) + mixed(np.array([seed], np.uint64)))
        chance = mixed(row_seeds[row] + seeds_of(positions(n_unit)))
        ways = self._ways_of(Ragged(ids, n_in_unit), chance % np.uint64(N_WAY))
        chosen = np.arange(len(row))  # numbers of the units in `both`: new ones, then stored ones
        if most is not None:
            excess = np.bincount(row, ways.lengths, minlength=len(n_id)).astype(np.int64) - most
            order = np.lexsort((mixed(chance), row))  # the units of each text in random order
            saved = np.maximum(ways.lengths - n_in_unit, 0)[order]
            saved_before = np.cumsum(saved) - saved
            saved_before -= saved_before[np.repeat(np.cumsum(n_unit) - n_unit, n_unit)]  # in the same text
            chosen[order[(saved_before < excess[row]) & (saved > 0)]] += len(row)
        both = Ragged(np.concatenate([ways.values, ids]), np.concatenate([ways.lengths, n_in_unit]))
        units = both.picked(chosen)
        return Ragged(units.values, np.bincount(row, units.lengths, minlength=len(n_id)).astype(np.int64))

    def growth(self, sample: Ragged) -> Floats:
        """Expected number of ids of each piece as a part of a word, then of each as a whole word, for `lengths`.

        For a word of one piece it is the mean over the segmentations of that piece. For a word of several pieces it is
        the sum over those, times a factor measured on a sample of texts, since borders of pieces move.
        """
        length, vocab = np.ones(self._codec.size), enumerate(self._codec.table.vocab, N_SPECIAL)
        # A byte of a longer character is no text by itself.
        pieces = np.array([i for i, piece in vocab if piece.isascii() or piece not in BYTE_LETTERS])
        units = Ragged(np.repeat(pieces, N_WAY), np.ones(len(pieces) * N_WAY, dtype=np.int64))
        ways = self._ways_of(units, np.tile(np.arange(N_WAY, dtype=np.uint64), len(pieces)))
        length[pieces] = ways.lengths.reshape(-1, N_WAY).mean(axis=1)
        begins = np.flatnonzero(self.begins(sample.values, sample.lengths))
        words = Ragged(sample.values, np.diff(begins, append=len(sample.values)))
        words = words.some(words.lengths > 1)
        factor = 1.0
        if n_word := len(words.lengths):
            factor = len(self(words, np.arange(n_word), 0).values) / length[words.values].sum()
        return np.concatenate([length * factor, length])

    def lengths(self, rows: Ragged, growth: Floats) -> Floats:
        """Expected number of ids of each text after resampling, no less than it has."""
        ids, n_id = rows.values.astype(np.intp), rows.lengths.astype(np.int64)
        begins = self.begins(ids, n_id)
        is_word = begins & np.append(begins[1:], True)
        expected, has_ids = np.zeros(len(n_id)), n_id > 0
        starts = (np.cumsum(n_id) - n_id)[has_ids]
        expected[has_ids] = np.add.reduceat(growth.take(ids + is_word * self._codec.size), starts)
        lengths: Floats = np.maximum(expected, n_id)
        return lengths

    def _ways_of(self, units: Ragged, way: Numbers) -> Ragged:
        """Segmentations of units. way: number of the segmentation of each unit. New ones are drawn."""
        if len(self._ways) > _MOST_REMEMBERED:
            self._ways.clear()
        id_hashes = mixed(units.values.astype(np.uint64) * np.uint64(STEP) + positions(units.lengths).astype(np.uint64))
        hashes = np.add.reduceat(id_hashes, np.cumsum(units.lengths) - units.lengths)
        seeds = mixed(hashes + seeds_of(way))
        keys = (hashes & ~np.uint64(N_WAY - 1) | way).tolist()
        new = {key: n for n, key in enumerate(keys) if key not in self._ways}
        numbers = np.array(list(new.values()), np.int64)
        new_units = units.picked(numbers).rows()
        words_of = list(map(self._words_of, new_units))
        words = list(itertools.chain.from_iterable(words_of))
        draws = iter(_draws(_draws(seeds[numbers], words_of), words).tolist())
        for key, unit, unit_words in zip(new, new_units, words_of, strict=True):
            cut = (self._cut(word, list(itertools.islice(draws, len(word)))) for word in unit_words)
            # A unit without words keeps its ids.
            self._ways[key] = tuple(itertools.chain.from_iterable(cut)) or tuple(unit.tolist())
        return Ragged.of([self._ways[key] for key in keys])

    def _words_of(self, unit: Ids) -> list[str]:
        """The words of a unit, in letters; none if it must stay as it is: a symbol, or too long."""
        letters = "".join([self._codec.vocab[i - N_SPECIAL] for i in unit.tolist() if not self.begins.is_symbol[i]])
        if not letters or len(letters) > LONGEST:
            return []
        text = b"".join(self._codec.raw(unit.tolist())).decode("utf-8")
        words = easy_words(text) or [word for word, _ in self._in_words.pre_tokenize_str(text)]
        return [spelled(word, self._letters) for word in words]


_N_MEASURED = 1000  # pairs of the sample
_N_AT_ONCE = 10_000  # pairs


class Resampled:
    """Pairs of a corpus, resampled in each epoch; src_len and trg_len are upper bounds of their lengths in subwords."""

    def __init__(self, corpus: Corpus, subwords: Subwords, batch: BatchConfig, *, seed: int, most: int) -> None:
        """most: bound on the ids of a side; a longer side keeps its length."""
        self._seed = seed
        make, rate = (dropout_cut, batch.bpe_dropout) if batch.bpe_dropout else (unigram_cut, batch.unigram_alpha)
        self._src = Resampler(subwords.src, make(subwords.src, rate))
        self._trg = self._src if subwords.joint else Resampler(subwords.trg, make(subwords.trg, rate))
        sample = corpus.picked(np.unique(np.linspace(0, corpus.n_pair - 1, _N_MEASURED).astype(np.int64)))
        resamplers = self._src, self._trg
        growths = [resampler.growth(rows) for resampler, rows in zip(resamplers, sample, strict=True)]
        self.src_len, self.trg_len = lengths = [np.empty(corpus.n_pair, dtype=np.int32) for _ in growths]
        for start in range(0, corpus.n_pair, _N_AT_ONCE):
            stop = min(start + _N_AT_ONCE, corpus.n_pair)
            sides = zip(resamplers, corpus.picked(np.arange(start, stop)), growths, lengths, self._seeds(), strict=True)
            for resampler, rows, growth, side_lengths, side_seed in sides:
                chance = mixed(np.arange(start, stop, dtype=np.uint64) * np.uint64(STEP) + np.uint64(side_seed))
                # Rounded up or down at random, so that the sum over many pairs is as expected.
                rounded = np.floor(resampler.lengths(rows, growth) + fractions(chance)).astype(np.int32)
                side_lengths[start:stop] = np.clip(rounded, rows.lengths, np.maximum(most, rows.lengths))

    def cut(self, src: Ragged, trg: Ragged, rows: Rows, epoch: int) -> tuple[Ragged, Ragged]:
        """Resample pairs for an epoch. src, trg: their stored ids. rows: their numbers."""
        src_seed, trg_seed = self._seeds(epoch)
        return self._src(src, rows, src_seed, self.src_len[rows]), self._trg(trg, rows, trg_seed, self.trg_len[rows])

    def _seeds(self, *epoch: int) -> list[int]:
        return [int(seed) for seed in np.random.SeedSequence([self._seed, *epoch]).generate_state(2, np.uint64)]


# Noise: pairs in capitals, in Title Case, in lower case, without final punctuation, or with typos. The choice of pairs
# and changes depends on (seed, epoch, pair). The few pairs that are changed are decoded and encoded again.

_END = re.compile(r"\s*[.!?…。！？｡।॥؟۔։።]+$")
_WORD = re.compile(r"\w+")
_MISTYPED = re.compile(r"[^\W\d_]{4,}")  # a typo in a shorter word would often make another word
_TURKIC = ("tr", "az")  # languages in which the capital of i has a dot
_ONE_TYPO_IN = 60  # characters; a shorter text gets one, too


class Noise:
    """Changes some pairs, other ones in each epoch."""

    def __init__(
        self, config: NoiseConfig, subwords: Subwords, corpora: Sequence[tuple[str, str, int]], *, seed: int, most: int
    ) -> None:
        """corpora: languages of both sides, and number of pairs. most: subwords of a side; no change may exceed it."""
        self._subwords, self._seed, self._most = subwords, seed, most
        shares = config.shares()
        self._kinds, self._cumulative_shares = list(shares), np.cumsum(list(shares.values()))
        self._ends_of_corpora = np.cumsum([size for *_, size in corpora])
        self._dotted = [[language_of(lang).primary in _TURKIC for lang in langs] for *langs, _ in corpora]

    def __call__(self, src: Ragged, trg: Ragged, rows: Rows, epoch: int) -> tuple[Ragged, Ragged]:
        """Change pairs for an epoch. src, trg: their ids. rows: their numbers."""
        (seed,) = np.random.SeedSequence([self._seed, epoch, len(self._kinds)]).generate_state(1, np.uint64)
        chance = mixed(rows.astype(np.uint64) * np.uint64(STEP) + seed)
        kind = np.searchsorted(self._cumulative_shares, fractions(chance), side="right")
        changed = np.flatnonzero(kind < len(self._kinds))
        if not len(changed):
            return src, trg
        src_rows, trg_rows = src.rows(), trg.rows()
        corpus = np.searchsorted(self._ends_of_corpora, rows, side="right")
        for n, pair_chance in zip(changed.tolist(), mixed(chance[changed]), strict=True):
            pair = self._changed(self._kinds[kind[n]], corpus[n], src_rows[n], trg_rows[n], pair_chance)
            src_rows[n], trg_rows[n] = pair
        return Ragged.of(src_rows, src.values.dtype), Ragged.of(trg_rows, trg.values.dtype)

    def _changed(self, kind: str, corpus: int, src_ids: Ids, trg_ids: Ids, chance: np.uint64) -> tuple[Ids, Ids]:
        """The ids of both sides of a pair with one kind of noise; the given ids if the change is not possible."""
        pair = (self._subwords.src, src_ids), (self._subwords.trg, trg_ids)
        dotted = self._dotted[corpus]
        if any(((ids >= codec.first_symbol) & (ids < codec.n_text)).any() for codec, ids in pair):
            return src_ids, trg_ids  # a symbol or placeholder must not change
        src, trg = texts = [codec.decode(ids.tolist()) for codec, ids in pair]
        if kind == "upper":
            src = in_capitals(src, dotted=dotted[0])
            trg = in_capitals(trg, dotted=dotted[1]) if src != texts[0] else trg
        elif kind == "title":
            src = _WORD.sub(lambda word: in_capitals(word[0][0], dotted=dotted[0]) + word[0][1:], src)
        elif kind == "lower":
            src = (src.replace("İ", "i").replace("I", "ı") if dotted[0] else src).lower()
        elif kind == "no_end":
            src, trg = (_END.sub("", text) or text for text in texts)
        else:
            src = mistyped(src, chance)
        noisy = []
        for (codec, ids), old, new in zip(pair, texts, (src, trg), strict=True):
            tags = ids[ids >= codec.n_text]
            noisy.append(ids if new == old else np.append(tags, codec.encode([new])[0]).astype(ids.dtype))
        return (noisy[0], noisy[1]) if max(map(len, noisy)) <= self._most else (src_ids, trg_ids)


def in_capitals(text: str, *, dotted: bool = False) -> str:
    """A text in capitals. dotted: the capital of i is İ."""
    return (text.replace("i", "İ") if dotted else text).upper()


def mistyped(text: str, chance: np.uint64) -> str:
    """A text in which letters of some words are swapped, left out or doubled; never the first of a word."""
    words = list(_MISTYPED.finditer(text))
    if not words:
        return text
    n_typo = 1 + len(text) // _ONE_TYPO_IN
    draws: Numbers = mixed(np.arange(3 * n_typo, dtype=np.uint64) * np.uint64(STEP) + chance)
    typo_of_word = {int(draw % np.uint64(len(words))): typo for typo, draw in enumerate(draws[:n_typo])}
    for word, typo in sorted(typo_of_word.items(), reverse=True):  # from the end, since a typo moves later words
        begin, end = words[word].span()
        i = begin + 1 + int(draws[n_typo + typo] % np.uint64(end - begin - 2))
        a, b = text[i], text[i + 1]
        text = text[:i] + (b + a, b, a + a + b)[int(draws[2 * n_typo + typo] % np.uint64(3))] + text[i + 2 :]
    return text
