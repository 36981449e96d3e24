"""Words that the pieces of a vocabulary are learnt from, and how often each occurs.

Text is never held: what grows with it is the number of different words, of which at most some millions are counted.
The answer depends on the text and the seed, not on threads.
"""

import itertools
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

from nmt.data.learners import NO_PIECE
from nmt.data.letters import (
    BYTE_LETTERS,
    in_characters,
    in_words,
    is_easy,
    normalised,
)
from nmt.data.placeholders import PLACEHOLDER
from nmt.recipe.data_options import SubwordsConfig

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
# Share of the characters of a text that the alphabet covers at least, if it has room.
COVERAGE = 0.9995

# A text: what gives its lines, or how often each of its words occurs.
Lines = Callable[[], Iterable[str]] | Counter[str]


class CutWords(NamedTuple):
    """Words that were learnt from, and the numbers of the pieces that each is cut into, end to end."""

    words: list[str]
    values: NDArray[np.int32]
    lengths: NDArray[np.int64]


def counted_characters(words: Mapping[str, int]) -> dict[str, int]:
    """Return how often each character occurs in words, by its code point."""
    joined = np.frombuffer("".join(words).encode("utf-32-le"), np.uint32)
    n_letter = np.fromiter(map(len, words), np.int64, len(words))
    times = np.repeat(np.fromiter(words.values(), np.int64, len(words)), n_letter)
    codes, which = np.unique(joined, return_inverse=True)
    counts = np.bincount(which, times, len(codes)).astype(np.int64)
    return dict(zip(map(chr, codes.tolist()), counts.tolist(), strict=True))


def alphabet_of(
    characters: Mapping[str, int], most: int, known: Container[str] = BYTE_LETTERS, coverage: float = COVERAGE
) -> list[str]:
    """The characters that become letters besides the known ones: the most frequent, up to a share of the text.

    characters: how often each occurs. most: characters.
    """
    left = sum(characters.values()) * (1 - coverage)
    others = {one: n for one, n in characters.items() if one not in known}
    found = sorted(others, key=lambda one: (-others[one], one))
    while found and others[found[-1]] <= left:  # these fit into what is left out
        left -= others[found.pop()]
    return found[:most]


def within(words: Counter[str], letters: Iterable[str]) -> Counter[str]:
    """Words without the characters that are no letters: the parts before and after them."""
    other = re.compile(f"[^{re.escape(''.join(letters))}]+")
    found = Counter[str]()
    for word, n in words.items():
        if word.isascii():
            found[word] += n
            continue
        for part in other.split(word):
            if part:
                found[part] += n
    return found


def often_cut(words: Counter[str], values: NDArray[np.int32], lengths: NDArray[np.int64]) -> CutWords:
    """The words that occur most, cut. values, lengths: as in `CutWords`, of all words."""
    order = np.argsort(-np.fromiter(words.values(), np.int64, len(words)), kind="stable")
    often = np.zeros(len(words), dtype=bool)
    often[order[:MOST_REMEMBERED]] = True
    often[np.repeat(np.arange(len(words)), lengths)[values == NO_PIECE]] = False
    return CutWords(list(itertools.compress(words, often.tolist())), values[np.repeat(often, lengths)], lengths[often])


def words_of_sides(sides: Sequence[Lines], config: SubwordsConfig, notes: Counter[str] | None = None) -> Counter[str]:
    """Count the words of all sides. notes: counts what was too long to be learnt from."""
    words, words_of = Counter[str](), WordsOf(config)
    for side in sides:
        if isinstance(side, Counter):
            words.update(side)
        else:
            for line in side():
                words.update(words_of(" " + line, Counter() if notes is None else notes))
    return words


def cut_of(config: SubwordsConfig) -> pre_tokenizers.PreTokenizer:
    """The words of a text, which no piece goes over."""
    return in_characters() if config.kind == "char" else in_words()


class WordsOf:
    """Cuts units into the words that are learnt from."""

    def __init__(self, config: SubwordsConfig) -> None:
        self._config, self._symbol, self._cut = config, _pattern_of(config), cut_of(config)
        self._is_plain = config.kind != "char" and not config.symbols

    def is_easy(self, unit: str) -> bool:
        """True if `words_of_easy` gives the same words."""
        return self._is_plain and len(unit) <= WORD_CAP and is_easy(unit)

    def __call__(self, unit: str, notes: Counter[str]) -> list[str]:
        """The words of any unit. notes: counts what was too long for learning."""
        text = " " + normalised(unit[1:], self._config.normalize, self._config.whitespace)
        texts = [part for one in self._symbol.split(text) for part in parts(one, notes)]
        return [word for one in texts for word, _ in self._cut.pre_tokenize_str(one)]


def _pattern_of(config: SubwordsConfig) -> re.Pattern[str]:
    """Symbols and placeholders, which are not learnt from."""
    return re.compile("|".join([*map(re.escape, config.symbols), PLACEHOLDER]))


class WordCounts:
    """Counts of words, summed over blocks. Of too many, those that occurred once are forgotten.

    Twice as fast as a Counter: most words are known, so that theirs are numbers, which numpy adds.
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
        """Return the counts."""
        return Counter(dict(zip(self._number, self._n.tolist(), strict=True)))


def drawn(left: int, most: int, seed: int) -> Iterator[bool]:
    """Yield for each of `left` lines if it is in a sample of `most` of them, each as likely as any other."""
    wanted, draw = min(most, left), random.Random(seed)
    while left:
        chosen = wanted >= left or draw.random() * left < wanted
        wanted -= chosen
        left -= 1
        yield chosen


def parts(text: str, notes: Counter[str] | None = None) -> Iterable[str]:
    """Parts of a text to learn from: all of it, but no end of a very long one and no endless word."""
    if notes is not None and len(text) > LINE_CAP:
        notes["line_cap"] += 1
    text = text[:LINE_CAP]
    if len(text) <= WORD_CAP or not (endless := _ENDLESS.findall(text)):
        return (text,)
    if notes is not None:
        notes["word_cap"] += len(endless)
    return _PART.findall(text)


def most_frequent(words: Counter[str], n: int, longest: int, but: Container[str] = ()) -> list[str]:
    """The n words that occur most often, of two letters or more and of up to `longest` bytes, without some."""
    counted = (
        (word, n) for word, n in words.items() if len(word) > 1 and len(word.encode()) <= longest and word not in but
    )
    return [word for word, _ in sorted(counted, key=lambda each: (-each[1], each[0]))[:n]]
