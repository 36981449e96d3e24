"""Subword regularisation: each word of a training pair is cut anew into pieces, differently each time the pair is read.

Ids are enough: they are the bytes of the text. What comes out depends on (seed, epoch, pair, place in the pair) alone:
resuming is exact, and any number of ranks gives the same. Each word, told by a hash of 64 bits, has N_WAY ways, each
drawn from a seed made of the word and its number. And noise: words in capitals or mistyped.
"""

import itertools
import math
import operator
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays import STEP, GrownRows, Ints, Numbers, Ragged, fractions, in_order, mixed, places, seeds_of, turns
from nmt.data.corpus import Corpus, Ids
from nmt.data.letters import kind_of
from nmt.data.plan import Rows
from nmt.data.subwords import N_SPECIAL, Codec, Subwords
from nmt.recipe.training_options import NoiseConfig

LONGEST = 200  # letters of a word
_MOST_WAYS_KEPT = 10_000  # words
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
        turn = 0
        while len(number):
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
            turn += 1
        return in_order(done, numbers) if done else words


class Unigram:
    """Unigram pieces: a way to cut a word is drawn by its probability to the power of alpha (Kudo 2018)."""

    def __init__(self, pieces: Mapping[str, tuple[int, float]], alpha: float) -> None:
        """pieces: to id and score, a logarithm; every letter is one. alpha: above 0."""
        self._pieces, self._alpha = pieces, alpha
        self._longest = max(map(len, pieces))
        self._ends = lru_cache(_MOST_WAYS_KEPT)(self._ends_of)

    def cut(self, words: Sequence[str], seeds: Numbers) -> Ragged:
        """A way to cut each word, drawn from its end to its beginning. seeds: one a word."""
        n_letter = np.array(list(map(len, words)), np.int64)
        drawn = mixed(np.repeat(seeds, n_letter) + seeds_of(turns(n_letter)))
        draws = iter(((drawn >> np.uint64(40)) * 2.0**-24).tolist())
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
        total, found = [0.0], []  # total: the logarithm of all ways to cut so many letters
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


# What a piece has bits of: whether it begins a word, its first kind of character, and its last one or that a word ends.
_BEGINS, _FIRST, _ENDS, _KINDS = 0x80, 3, 0x40, 0x07


class WordStarts:
    """Starts of the words that `in_words` cuts a text into, as far as pieces tell.

    Symbols, placeholders and tags are words. A piece with a space before it begins one, and so does one that goes on
    with another kind of character. Words that nothing tells apart are taken for one: no piece reaches over a beginning.
    """

    def __init__(self, codec: Codec) -> None:
        plain = range(N_SPECIAL, N_SPECIAL + len(codec.given.vocab))
        self.is_symbol = np.zeros(codec.size, dtype=bool)
        self.is_symbol[plain.stop :] = True
        self._bits = np.where(self.is_symbol, _BEGINS | _ENDS, 0).astype(np.uint8)
        for i in plain:
            raw = codec.raw([i])[0]
            if raw.startswith(b" "):
                self._bits[i] = _BEGINS
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError:  # it begins or ends within a character
                continue
            self._bits[i] |= kind_of(text[0]) << _FIRST
            if text[-1] != "'":  # which belongs to some of the letters that may follow it, as in "it's"
                self._bits[i] |= kind_of(text[-1])

    def __call__(self, ids: Ids, n_id: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return True at each id that begins a word. n_id: of each sequence."""
        bits = self._bits.take(ids)
        begins = bits >= _BEGINS
        last, first = bits[:-1] & _KINDS, (bits[1:] >> np.uint8(_FIRST)) & _KINDS
        begins[1:] |= (bits[:-1] & _ENDS) != 0
        begins[1:] |= (last != first) & (last != 0) & (first != 0)
        begins[(np.cumsum(n_id) - n_id)[n_id > 0]] = True
        return begins


N_WAY = 16  # ways to cut a word
_MOST_REMEMBERED = 1_000_000  # ways, some 150 MB

Cut = Callable[[Sequence[str], Numbers], Ragged]  # from words, in letters, and a seed for each to a way to cut each


class Resampler:
    """Cuts the words of texts anew, which are ids."""

    def __init__(self, codec: Codec, cut: Cut) -> None:
        self._codec, self._cut, self.begins = codec, cut, WordStarts(codec)
        self._number = dict[int, int]()  # by a hash of the word and the number of its way, a row of these:
        self._ways = GrownRows(np.int32)

    def __call__(self, rows: Ragged, pairs: NDArray[np.int64], seed: int, most: Ints | None = None) -> Ragged:
        """Ids of texts, without BOS and EOS -> of the same texts.

        pairs: their numbers. seed: of the draws, together with those. most: how many ids each may become, no fewer than
        it has; in a text that would have more, words stay as they are stored, drawn by chance.
        """
        ids, n_id = (one.astype(np.int64, copy=False) for one in (rows.values, rows.lengths))
        first = np.flatnonzero(self.begins(ids, n_id))
        n_in_unit = np.diff(first, append=len(ids))
        of_row = np.repeat(np.arange(len(n_id)), n_id)[first]
        n_unit = np.bincount(of_row, minlength=len(n_id))
        of_pair = mixed(pairs.astype(np.uint64) + mixed(np.array([seed], np.uint64)))
        chance = mixed(of_pair[of_row] + seeds_of(turns(n_unit)))
        way = self._known(ids, first, n_in_unit, chance % np.uint64(N_WAY))
        starts, n_new = self._ways.place(way)
        stored = np.zeros(len(way), dtype=bool)
        if most is not None:
            too_many = np.bincount(of_row, n_new, minlength=len(n_id)).astype(np.int64) - most
            order = np.lexsort((mixed(chance), of_row))  # the words of each text, in an order of chance
            saved = np.maximum(n_new - n_in_unit, 0)[order]
            before = np.cumsum(saved) - saved
            before -= before[np.repeat(np.cumsum(n_unit) - n_unit, n_unit)]  # in the same text
            stay = order[(before < too_many[of_row]) & (saved > 0)]
            stored[stay], n_new[stay] = True, n_in_unit[stay]
        place = places(np.where(stored, first, starts), n_new)
        is_stored = np.repeat(stored, n_new)
        found = self._ways.values[np.where(is_stored, 0, place)].astype(np.int64)
        found[is_stored] = ids[place[is_stored]]
        return Ragged(found, np.bincount(of_row, n_new, minlength=len(n_id)).astype(np.int64))

    def usual(self, pieces: Ints) -> NDArray[np.float64]:
        """Mean number of ids of each of some pieces where it is a word, over its ways."""
        every, once = np.repeat(pieces, N_WAY), np.ones(len(pieces) * N_WAY, dtype=np.int64)
        known = self._known(every, np.arange(len(every)), once, np.tile(np.arange(N_WAY, dtype=np.uint64), len(pieces)))
        usual: NDArray[np.float64] = self._ways.place(known)[1].reshape(-1, N_WAY).mean(axis=1)
        return usual

    def _known(self, ids: Ints, first: Ints, n_in_unit: Ints, way: Numbers) -> Ints:
        """Rows of ways of words; those that are new are drawn."""
        if len(self._number) > _MOST_REMEMBERED:
            self._number.clear()
            self._ways = GrownRows(np.int32)
        in_word = np.arange(len(ids)) - np.repeat(first, n_in_unit)
        hashes = np.add.reduceat(mixed(ids.astype(np.uint64) * np.uint64(STEP) + in_word.astype(np.uint64)), first)
        seeds = mixed(hashes + seeds_of(way))
        keys = (hashes & ~np.uint64(N_WAY - 1) | way).tolist()
        new = {key: n for n, key in enumerate(keys) if key not in self._number}
        self._number.update(zip(new, itertools.count(len(self._number)), strict=False))
        where = np.array(list(new.values()), np.int64)
        ways = self._drawn(Ragged(ids[places(first[where], n_in_unit[where])], n_in_unit[where]), seeds[where])
        self._ways.add(ways.values, ways.lengths)
        return np.fromiter(map(self._number.__getitem__, keys), np.int64, len(keys))

    def _drawn(self, units: Ragged, seeds: Numbers) -> Ragged:
        """A way to cut each unit: those of its words."""
        words = list(map(self._words_of, units.rows()))
        n_word = np.array(list(map(len, words)), np.int64)
        seeds = mixed(np.repeat(seeds, n_word) + seeds_of(turns(n_word)))
        ways = self._cut([word for its in words for word in its], seeds)
        unit = np.repeat(np.repeat(np.arange(len(words)), n_word), ways.lengths)
        of_units = Ragged(ways.values, np.bincount(unit, minlength=len(words)))
        cut, others = np.flatnonzero(n_word), np.flatnonzero(n_word == 0)
        return in_order([of_units.some(n_word > 0), units.some(n_word == 0)], [cut, others])

    def _words_of(self, unit: Ids) -> list[str]:
        """The words of a unit, in letters, of which nothing tells several apart; none where it stays as it is."""
        letters = "".join([self._codec.vocab[i - N_SPECIAL] for i in unit.tolist() if not self.begins.is_symbol[i]])
        if not letters or len(letters) > LONGEST:
            return []
        return self._codec.letters.words(b"".join(self._codec.raw(unit.tolist())).decode("utf-8"))


# Ways to cut the words of a vocabulary anew.


def with_dropout(codec: Codec, rate: float) -> Resampler:
    """BPE in which each merge is left out with probability `rate`, each time it could be made."""
    id_of = {piece: i for i, piece in enumerate(codec.vocab, N_SPECIAL)}
    known: dict[tuple[int, int], tuple[int, int]] = {}
    for rank, (a, b) in enumerate(codec.merges):
        known.setdefault((id_of[a], id_of[b]), (rank, id_of[a + b]))
    merges = Merges(known, rate)
    return Resampler(
        codec, lambda words, seeds: merges.cut(Ragged.of([[id_of[one] for one in word] for word in words]), seeds)
    )


def with_probabilities(codec: Codec, alpha: float) -> Resampler:
    """Unigram pieces drawn by the probability of the whole way to cut a word, to the power of `alpha`."""
    scored = zip(codec.given.vocab, codec.scores, strict=True)
    pieces = {piece: (i, score or 0.0) for i, (piece, score) in enumerate(scored, N_SPECIAL)}
    return Resampler(codec, Unigram(pieces, alpha).cut)


class Growth:
    """Expected number of ids of a text whose words are cut anew.

    Of a piece that is a word its ways tell; a word of several pieces becomes what those would, times a factor that is
    measured, since its borders move.
    """

    def __init__(self, codec: Codec, resampler: Resampler, sample: Ragged) -> None:
        """sample: of the texts that will be asked for."""
        self._begins, self._n_piece = resampler.begins, codec.size
        usual, plain = np.ones(codec.size), range(N_SPECIAL, N_SPECIAL + len(codec.given.vocab))
        # One that ends within a character is no text by itself.
        is_text = [raw.decode(errors="ignore").encode() == raw for raw in codec.raw(plain)]
        pieces = np.array(plain)[np.array(is_text)]
        usual[pieces] = resampler.usual(pieces)
        begins = np.flatnonzero(self._begins(sample.values, sample.lengths))
        words = Ragged(sample.values, np.diff(begins, append=len(sample.values)))
        words = words.some(words.lengths > 1)
        factor = 1.0
        if n_word := len(words.lengths):
            factor = len(resampler(words, np.arange(n_word), 0).values) / usual[words.values].sum()
        # Of a piece that is part of a word, and then of one that is a word.
        self._usual = np.concatenate([usual * factor, usual])

    def lengths(self, rows: Ragged) -> NDArray[np.float64]:
        """Expected number of ids of each text, no fewer than it has."""
        ids, n_id = rows.values.astype(np.intp), rows.lengths.astype(np.int64)
        begins = self._begins(ids, n_id)
        is_whole = begins & np.append(begins[1:], True)
        becomes, some = np.zeros(len(n_id)), n_id > 0
        starts = (np.cumsum(n_id) - n_id)[some]
        becomes[some] = np.add.reduceat(self._usual.take(ids + is_whole * self._n_piece), starts)
        grown: NDArray[np.float64] = np.maximum(becomes, n_id)
        return grown


_N_MEASURED = 1000  # pairs
_N_AT_ONCE = 10_000  # pairs


class Resampled:
    """Pairs of a corpus, cut anew in each epoch; src_len and trg_len are the subwords that all will have at most."""

    def __init__(
        self, corpus: Corpus, subwords: Subwords, *, bpe_dropout: float, unigram_alpha: float, seed: int, most: int
    ) -> None:
        """most: ids of a side, which none grows over."""
        make, rate = (with_dropout, bpe_dropout) if bpe_dropout else (with_probabilities, unigram_alpha)
        self._src = make(subwords.src, rate)
        self._trg = self._src if subwords.joint else make(subwords.trg, rate)
        self._seed = seed
        sample = corpus.picked(np.unique(np.linspace(0, corpus.n_pair - 1, _N_MEASURED).astype(np.int64)))
        growths = Growth(subwords.src, self._src, sample[0]), Growth(subwords.trg, self._trg, sample[1])
        self.src_len, self.trg_len = lengths = [np.empty(corpus.n_pair, dtype=np.int32) for _ in growths]
        for start in range(0, corpus.n_pair, _N_AT_ONCE):
            stop = min(start + _N_AT_ONCE, corpus.n_pair)
            sides = corpus.picked(np.arange(start, stop))
            for rows, growth, all_lengths, own in zip(sides, growths, lengths, self._seeds(), strict=True):
                chance = mixed(np.arange(start, stop, dtype=np.uint64) * np.uint64(STEP) + np.uint64(own))
                # Up or down by chance, so that many pairs together grow as they should.
                whole = np.floor(growth.lengths(rows) + fractions(chance)).astype(np.int32)
                all_lengths[start:stop] = np.clip(whole, rows.lengths, np.maximum(most, rows.lengths))

    def cut(self, src: Ragged, trg: Ragged, rows: Rows, epoch: int) -> tuple[Ragged, Ragged]:
        """The ids of some pairs as they are in an epoch. rows: their numbers."""
        seeds = self._seeds(epoch)
        src_len, trg_len = (lengths[rows].astype(np.int64) for lengths in (self.src_len, self.trg_len))
        return self._src(src, rows, seeds[0], src_len), self._trg(trg, rows, seeds[1], trg_len)

    def _seeds(self, *epoch: int) -> list[int]:
        return [int(seed) for seed in np.random.SeedSequence([self._seed, *epoch]).generate_state(2, np.uint64)]


# Noise: pairs in capitals, in Title Case, in small letters, without an end, mistyped. Which pairs, and how, follows
# from (seed, epoch, pair). The text of the few pairs that are changed is made of their ids and encoded again.

_END = re.compile(r"\s*[.!?…。！？｡।॥؟۔։።]+$")
_WORD = re.compile(r"\w+")
_MISTYPED = re.compile(r"[^\W\d_]{4,}")  # a shorter word would often become another
_TURKIC = ("tr", "tur", "az", "aze")  # whose capital of i has a dot
_ONE_TYPO_IN = 60  # characters, or one in a shorter text


class Noise:
    """Changes some pairs, each epoch others."""

    def __init__(
        self, config: NoiseConfig, subwords: Subwords, corpora: Sequence[tuple[str, str, int]], *, seed: int, most: int
    ) -> None:
        """corpora: languages of both sides, and pairs. most: subwords of a side; a pair that would have more stays."""
        self._subwords, self._seed, self._most = subwords, seed, most
        shares = config.shares()
        self._kinds, self._ends = list(shares), np.cumsum(list(shares.values()))
        self._ends_of_corpora = np.cumsum([size for *_, size in corpora])
        self._dotted = [[re.split("[-_]", lang.lower())[0] in _TURKIC for lang in langs] for *langs, _ in corpora]

    def __call__(self, src: Ragged, trg: Ragged, rows: Rows, epoch: int) -> tuple[Ragged, Ragged]:
        """The ids of some pairs as they are in an epoch. rows: their numbers."""
        (seed,) = np.random.SeedSequence([self._seed, epoch, len(self._kinds)]).generate_state(1, np.uint64)
        chance = mixed(rows.astype(np.uint64) * np.uint64(STEP) + seed)
        kind = np.searchsorted(self._ends, fractions(chance), side="right")
        changed = np.flatnonzero(kind < len(self._kinds))
        if not len(changed):
            return src, trg
        sides = src.rows(), trg.rows()
        corpus = np.searchsorted(self._ends_of_corpora, rows, side="right")
        for place, own in zip(changed.tolist(), mixed(chance[changed]), strict=True):
            pair = self._changed(self._kinds[kind[place]], corpus[place], sides[0][place], sides[1][place], own)
            sides[0][place], sides[1][place] = pair
        found = []
        for side, before in zip(sides, (src, trg), strict=True):
            lengths = np.array(list(map(len, side)), before.lengths.dtype)
            found.append(Ragged(np.concatenate(side).astype(before.values.dtype, copy=False), lengths))
        return found[0], found[1]

    def _changed(self, kind: str, corpus: int, src_ids: Ids, trg_ids: Ids, chance: np.uint64) -> tuple[Ids, Ids]:
        """The ids of both sides of a pair with one kind of noise; as they were where that is not possible."""
        pair = (self._subwords.src, src_ids), (self._subwords.trg, trg_ids)
        dotted = self._dotted[corpus]
        for codec, ids in pair:
            first = codec.n_text - len(codec.symbols) - len(codec.placeholders)
            if ((ids >= first) & (ids < codec.n_text)).any():  # a symbol or placeholder, which no change may touch
                return src_ids, trg_ids
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
        found = []
        for (codec, ids), text, other in zip(pair, texts, (src, trg), strict=True):
            tags = ids[: int((ids < codec.n_text).argmax())] if len(ids) and ids[0] >= codec.n_text else ids[:0]
            found.append(ids if other == text else np.append(tags, codec.encode([other])[0]).astype(ids.dtype))
        return (found[0], found[1]) if max(map(len, found)) <= self._most else (src_ids, trg_ids)


def in_capitals(text: str, *, dotted: bool = False) -> str:
    """A text in capitals. dotted: the capital of i is İ."""
    return (text.replace("i", "İ") if dotted else text).upper()


def mistyped(text: str, chance: np.uint64) -> str:
    """A text in which letters of some words are swapped, left out or doubled; never the first of a word."""
    words = list(_MISTYPED.finditer(text))
    if not words:
        return text
    n = 1 + len(text) // _ONE_TYPO_IN
    draws: Numbers = mixed(np.arange(3 * n, dtype=np.uint64) * np.uint64(STEP) + chance)
    picked = {int(draw % np.uint64(len(words))): at for at, draw in enumerate(draws[:n])}
    for word, at in sorted(picked.items(), reverse=True):  # from the end, so that places before stay
        begin, end = words[word].span()
        i = begin + 1 + int(draws[n + at] % np.uint64(end - begin - 2))
        a, b = text[i], text[i + 1]
        text = text[:i] + (b + a, b, a + a + b)[int(draws[2 * n + at] % np.uint64(3))] + text[i + 2 :]
    return text
