"""The words that units are cut into for learning, and the ids of units, as parts of a `Lexicon`.

Both are found once for each unit that a process meets. Where learning has left how it cut the words, the ids of most
units are put together from those.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays.ragged import Grown, GrownRows, Ragged, gathered, in_order
from nmt.data.units.lexicon import Lexicon, Numbers
from nmt.data.vocabulary.learn import WORD_CAP, CutWords, WordsOf
from nmt.data.vocabulary.letters import words_of_easy
from nmt.data.vocabulary.subwords import N_SPECIAL, Codec
from nmt.pack import read_packed, write_packed


class UnitWords:
    """The words of each unit, as numbers in `words`: those that are learnt from."""

    def __init__(self, words_of: WordsOf) -> None:
        self._words_of = words_of
        self._number: defaultdict[str, int] = defaultdict(itertools.count().__next__)
        self.words: list[str] = []
        self.rows = GrownRows(np.int32)
        self._noted: dict[int, Counter[str]] = {}  # what was too long in a unit

    def learn(self, units: Sequence[str]) -> None:
        """See the next units."""
        is_easy = np.fromiter(map(self._words_of.is_easy, units), bool, len(units))
        easy, others = np.flatnonzero(is_easy), np.flatnonzero(~is_easy)
        words, n_of = words_of_easy([units[n] for n in easy.tolist()])
        of_others = []
        for n in others.tolist():
            notes = Counter[str]()
            of_others.append(self._words_of(units[n], notes))
            if notes:
                self._noted[len(self.rows) + n] = notes
        words += itertools.chain.from_iterable(of_others)
        n_of += map(len, of_others)
        numbers = np.fromiter(map(self._number.__getitem__, words), np.int32, len(words))
        self.rows.add(*in_order([Ragged(numbers, np.array(n_of, np.int64))], [easy, others]))
        self.words += itertools.islice(self._number, len(self.words), None)

    def counted(self, units: Numbers, times: Numbers, notes: Counter[str]) -> tuple[list[str], Numbers]:
        """Count each word in units that occur so often, by the first unit that has it.

        notes: counts what was too long for learning.
        """
        values, n_of = self.rows.of(units)
        total = np.bincount(values, weights=np.repeat(times, n_of)).astype(np.int64)
        places = np.arange(len(values))
        first = np.empty(len(total), np.int64)
        first[values[::-1]] = places[::-1]  # the last that is written stays, and that is the first place
        different = values[first[values] == places]
        for n in np.flatnonzero(np.isin(units, list(self._noted))).tolist():
            notes.update({key: int(times[n]) * many for key, many in self._noted[int(units[n])].items()})
        return [self.words[n] for n in different.tolist()], total[different]


def words_in(known: Lexicon, words_of: WordsOf) -> UnitWords:
    """The words of all units that a lexicon has."""
    return known.part("words", lambda: UnitWords(words_of))


class KnownCuts(NamedTuple):
    """Content of a file of `write_cut_words`: the place of each word, and its ids."""

    place: dict[str, int]
    values: NDArray[np.int32]
    lengths: NDArray[np.int64]


class UnitIds:
    """The ids of each unit, as rows."""

    def __init__(self, codec: Codec, words: UnitWords, cuts: KnownCuts) -> None:
        """words: knows all units that this is told of."""
        self._codec, self._words, self._cuts = codec, words, cuts
        self._cut_of = Grown(np.int32)  # the place of each word among the cuts, -1 where it has none
        self.rows = GrownRows(np.int32)

    def learn(self, units: Sequence[str]) -> None:
        """See the next units."""
        new = self._words.words[len(self._cut_of.values) :]
        self._cut_of.add(np.fromiter((self._cuts.place.get(word, -1) for word in new), np.int32, len(new)))
        words, n_word = self._words.rows.of(np.arange(len(units)) + len(self.rows))
        cut = self._cut_of.values[words]
        unit = np.repeat(np.arange(len(units)), n_word)
        is_known = (np.bincount(unit[cut < 0], minlength=len(units)) == 0) & (n_word > 0)
        is_known &= np.fromiter(map(len, units), np.int64, len(units)) <= WORD_CAP
        known, others = np.flatnonzero(is_known), np.flatnonzero(~is_known)
        mine = is_known[unit]
        values, n_id = gathered(self._cuts.values, self._cuts.lengths, cut[mine])
        n_of = np.bincount(unit[mine], weights=n_id, minlength=len(units))[known].astype(np.int64)
        spelled = Ragged.of(self._codec.encode_units([units[n] for n in others.tolist()]), np.dtype(np.int32))
        self.rows.add(*in_order([Ragged(values, n_of), spelled], [known, others]))


def ids_in(known: Lexicon, words_of: WordsOf, codec: Codec, cuts: KnownCuts) -> UnitIds:
    """The ids of all units that a lexicon has, in the pieces of a codec, always the same."""
    words = words_in(known, words_of)
    return known.part("ids", lambda: UnitIds(codec, words, cuts))


def write_cut_words(path: Path, cut: CutWords) -> None:
    """Write how words are cut, for other processes to read."""
    content: dict[str, Any] = {"words": "\n".join(cut.words).encode("utf-8")}
    with path.open("wb") as file:
        write_packed(file, {**content, "values": cut.values, "lengths": cut.lengths})


def read_cut_words(path: Path | None) -> KnownCuts:
    """Read how words are cut, as another process wrote it; without a path, of no word."""
    if path is None:
        return KnownCuts({}, np.empty(0, np.int32), np.empty(0, np.int64))
    with path.open("rb") as file:
        found = read_packed(file.read)
    assert found is not None
    words = found["words"].decode("utf-8").split("\n")
    return KnownCuts({word: n for n, word in enumerate(words)}, found["values"] + N_SPECIAL, found["lengths"])
