"""Learning the pieces of a vocabulary from text: what it is learnt from, and how each kind is.

Text is never held: what grows with it is the number of different words, of which at most some millions are counted.
The answer depends on the text and the seed, not on threads.
"""

import itertools
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

from nmt.data.text.placeholders import PLACEHOLDER
from nmt.data.vocabulary.letters import BYTE_OF, in_characters, in_words, is_easy, normalised, units_of
from nmt.data.vocabulary.merges import merges_of
from nmt.data.vocabulary.unigram import learn_scores
from nmt.recipe.subword_options import SubwordsConfig

# BPE looks at every symbol of a word for every merge in it: one endless word would take minutes. What is cut off
# here is only not learned from; encoding sees whole lines.
LINE_CAP = 10_000
WORD_CAP = 100
_ENDLESS = re.compile(rf"\S{{{WORD_CAP + 1},}}|\s{{{WORD_CAP + 1},}}")
_PART = re.compile(rf"\s{{0,{WORD_CAP}}}\S{{1,{WORD_CAP}}}|\s{{1,{WORD_CAP}}}")
# Different words that are counted, some 100 bytes each; with more, those that occurred once are forgotten.
MOST_COUNTED = 2_000_000
# Words that a process remembers the parts of, some 300 bytes each: a process that works on blocks finds four of five
# words of a block among half as many of a language already, and with more of them hardly more.
MOST_REMEMBERED = 200_000
# A unigram vocabulary begins with so many times the pieces that are wanted, and drops the least useful ones.
SEED_PIECES = 4

# A text: what gives its lines, or how often each of its words occurs, in letters.
Lines = Callable[[], Iterable[str]] | Counter[str]


@dataclass(frozen=True)
class Learnt:
    """The pieces of a vocabulary in the order of their ids, in letters; merges for BPE, scores for unigram."""

    vocab: list[str]
    merges: list[tuple[str, str]]
    scores: list[float]
    cut: "CutWords | None" = None


class CutWords(NamedTuple):
    """Words that were learnt from, in letters, and the numbers of the pieces that each is cut into, end to end."""

    words: list[str]
    values: NDArray[np.int32]
    lengths: NDArray[np.int64]


def learn(
    sides: Sequence[Lines],
    config: SubwordsConfig,
    seed: int,
    *,
    n_piece: int,
    longest: int,
    notes: Counter[str] | None = None,
) -> Learnt:
    """Learn n_piece pieces, or fewer where the text has no more, none of over `longest` bytes.

    sides: give their lines anew at each call, without line feeds. notes: counts what was too long to be looked at.
    """
    words = _count(sides, config, seed, notes)
    if config.kind == "word":
        # All other words are spelled with the bytes.
        return Learnt([*BYTE_OF, *most_frequent(words, n_piece - len(BYTE_OF), longest)], [], [])
    if config.kind == "unigram":
        pieces = merges_of(words, list(BYTE_OF), n_piece * SEED_PIECES, longest).vocab
        vocab, scores = learn_scores(words, pieces, list(BYTE_OF), n_piece)
        return Learnt(vocab, [], scores)
    vocab, merges, values, lengths = merges_of(words, list(BYTE_OF), n_piece, longest)
    cut = None
    if values is not None and lengths is not None and config.kind == "bpe" and not config.symbols:
        cut = _often_cut(words, values, lengths)
    return Learnt(vocab, merges, [], cut)


def _often_cut(words: Counter[str], values: NDArray[np.int32], lengths: NDArray[np.int64]) -> CutWords:
    """The words that occur most, cut. values, lengths: as in `CutWords`, of all words."""
    order = np.argsort(-np.fromiter(words.values(), np.int64, len(words)), kind="stable")
    often = np.zeros(len(words), dtype=bool)
    often[order[:MOST_REMEMBERED]] = True
    return CutWords(list(itertools.compress(words, often.tolist())), values[np.repeat(often, lengths)], lengths[often])


def _count(sides: Sequence[Lines], config: SubwordsConfig, seed: int, notes: Counter[str] | None) -> Counter[str]:
    """How often each word occurs, in letters."""
    if any(callable(side) for side in sides):
        return count_words(learnt_from(sides, config, seed, notes), cut_of(config))
    words = Counter[str]()
    for side in sides:
        assert isinstance(side, Counter), "sides are all lines or all counted"
        words.update(side)
    return words


def cut_of(config: SubwordsConfig) -> pre_tokenizers.PreTokenizer:
    """What cuts a text into the words that no piece goes over."""
    return in_characters() if config.kind == "char" else in_words()


class WordsOf:
    """Cuts units into the words that are learnt from."""

    def __init__(self, config: SubwordsConfig) -> None:
        self._normalize, self._symbol, self._cut = config.normalize, _pattern_of(config), cut_of(config)
        self._is_plain = config.kind != "char" and not config.symbols

    def is_easy(self, unit: str) -> bool:
        """Whether `words_of_easy` does the same with it."""
        return self._is_plain and len(unit) <= WORD_CAP and is_easy(unit)

    def __call__(self, unit: str, notes: Counter[str]) -> list[str]:
        """The words of any unit. notes: counts what was too long for learning."""
        text = normalised(unit, self._normalize)
        texts = [part for one in self._symbol.split(text) for part in parts(one, notes)]
        return [word for one in texts for word, _ in self._cut.pre_tokenize_str(one)]


def learnt_from(
    sides: Sequence[Lines], config: SubwordsConfig, seed: int, notes: Counter[str] | None = None
) -> Iterator[str]:
    """The texts that pieces are learnt from: a sample of the lines, normalised, without symbols and without ends."""
    cut = _pattern_of(config)
    for line in sample(sides, config.max_train_lines, seed):
        text = " " + normalised(line, config.normalize)
        for between in cut.split(text):  # no piece may look like a symbol
            yield from parts(between, notes)


def _pattern_of(config: SubwordsConfig) -> re.Pattern[str]:
    """Symbols and placeholders, which are not learnt from."""
    return re.compile("|".join([*map(re.escape, config.symbols), PLACEHOLDER]))


def count_words(texts: Iterable[str], cut: pre_tokenizers.PreTokenizer | None = None) -> Counter[str]:
    """How often each word, number or run of punctuation occurs, in letters; or what else `cut` cuts them into."""
    units: Counter[str] = Counter()
    for text in texts:
        units.update(units_of(text))
        forget_rare(units)
    cut, words = cut or in_words(), Counter[str]()
    for unit, n in units.items():
        for word, _ in cut.pre_tokenize_str(unit):
            words[word] += n
    return words


def forget_rare(counted: Counter[str]) -> None:
    """Forget what occurred once, if there is so much that memory is at stake."""
    if len(counted) > MOST_COUNTED:
        for text in [text for text, n in counted.items() if n == 1]:
            del counted[text]


class WordCounts:
    """How often words occur, summed over blocks: what a Counter that forgets by `forget_rare` tells, in half the time.

    Most words are known, so that theirs are numbers, which numpy adds.
    """

    def __init__(self) -> None:
        self._number: defaultdict[str, int] = defaultdict(itertools.count().__next__)
        self._n = np.zeros(0, np.int64)

    def add(self, words: Sequence[str], times: NDArray[np.int64]) -> None:
        """Different words, and how often each occurs."""
        numbers = np.fromiter(map(self._number.__getitem__, words), np.int64, len(words))
        if (n_more := len(self._number) - len(self._n)) > 0:
            self._n = np.append(self._n, np.zeros(n_more, np.int64))
        self._n[numbers] += times
        if len(self._number) > MOST_COUNTED:
            stay = list(itertools.compress(self._number, (self._n > 1).tolist()))
            self._n = self._n[self._n > 1]
            self._number = defaultdict(itertools.count(len(stay)).__next__, zip(stay, range(len(stay)), strict=True))

    def counter(self) -> Counter[str]:
        """What has been counted."""
        return Counter(dict(zip(self._number, self._n.tolist(), strict=True)))


def sample(sides: Sequence[Lines], most: int, seed: int) -> Iterator[str]:
    """All lines of all sides, or `most` of them, each as likely as any other; in order, and the same for a seed."""
    given = [side for side in sides if callable(side)]
    assert len(given) == len(sides), "sides are all lines or all counted"
    flags = drawn(sum(1 for lines in given for _ in lines()), most, seed)
    for lines in given:
        yield from itertools.compress(lines(), flags)


def drawn(left: int, most: int, seed: int) -> Iterator[bool]:
    """Whether each of `left` lines is in a sample of `most` of them, each as likely as any other."""
    wanted, draw = min(most, left), random.Random(seed)
    while left:
        chosen = wanted >= left or draw.random() * left < wanted
        wanted -= chosen
        left -= 1
        yield chosen


def parts(text: str, notes: Counter[str] | None = None) -> Iterable[str]:
    """What is learnt from a text: all of it, but no end of a very long one and no endless word."""
    if notes is not None and len(text) > LINE_CAP:
        notes["line_cap"] += 1
    text = text[:LINE_CAP]
    if len(text) <= WORD_CAP or not (endless := _ENDLESS.findall(text)):
        return (text,)
    if notes is not None:
        notes["word_cap"] += len(endless)
    return _PART.findall(text)


def learn_merges(texts: Iterable[str], cut: pre_tokenizers.PreTokenizer, n_piece: int, longest: int) -> Learnt:
    """Byte-level BPE. cut: what no piece goes over."""
    vocab, merges, *_ = merges_of(count_words(texts, cut), list(BYTE_OF), n_piece, longest)
    return Learnt(vocab, merges, [])


def most_frequent(words: Counter[str], n: int, longest: int, but: Container[str] = ()) -> list[str]:
    """The n words that occur most often, of two letters to `longest`, without some."""
    counted = ((word, n) for word, n in words.items() if 1 < len(word) <= longest and word not in but)
    return [word for word, _ in sorted(counted, key=lambda each: (-each[1], each[0]))[:n]]
