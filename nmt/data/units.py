"""The lines of one side of a block, cut at their spaces into units of which each different one is looked at once.

Words repeat, so what adds up over the words of a line (letters, pieces) is found for some thousand different units and
summed by numpy. The units put together are the text: nothing that looks at words sees over a space. A line with any
other white space, or more of it, is one unit as a whole.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nmt.data.arrays import Grown, GrownRows, Ragged
from nmt.data.corpus import as_numpy
from nmt.data.letters import LINE_CAP, WordsOf, normalised
from nmt.data.placeholders import BYTES
from nmt.data.subwords import Codec
from nmt.data.text import Block, hashes_of, unified

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]
P = TypeVar("P")

# Words that a process remembers the parts of, some 300 bytes each: more of them hardly help.
MOST_REMEMBERED = 200_000
_MOST_CHARACTERS = 20 * MOST_REMEMBERED  # of all units together, at some 20 bytes each


class Lexicon:
    """Units by their bytes: those of a word and the space after it, or of a whole line and a space."""

    def __init__(self) -> None:
        self._number: defaultdict[bytes, int] = defaultdict(itertools.count().__next__)
        self._units: list[str] = []  # each begins with the space before it, as the tokenizers library wants it
        self.n_char = Grown(np.int64)  # characters of each unit, with the space before it
        # Units that are empty, or have white space inside or at an end, or characters that cannot be seen.
        self.has_space = Grown(np.bool_)
        self._parts: dict[type, tuple[Any, int]] = {}

    @property
    def is_full(self) -> bool:
        """Return whether it holds so much that memory is at stake."""
        return len(self._units) > MOST_REMEMBERED or int(self.n_char.values.sum()) > _MOST_CHARACTERS

    def numbers(self, keys: Sequence[bytes]) -> Numbers:
        """The numbers of some units; new ones get the next."""
        found = np.fromiter(map(self._number.__getitem__, keys), np.int64, len(keys))
        n_known = len(self._units)
        if len(self._number) > n_known:
            new = list(itertools.islice(self._number, n_known, None))
            words = [key[:-1] for key in b"\n".join(new).decode(**BYTES).split("\n")]
            self._units += [" " + word for word in words]
            self.n_char.add(np.fromiter(map(len, words), np.int64, len(words)) + 1)
            odd = (word.split() != [word] or unified(word) != word for word in words)
            self.has_space.add(np.fromiter(odd, bool, len(words)))
        return found

    def part(self, kind: type[P], *made_of: Any) -> P:
        """Return what is known of all units of a kind, whose `learn` is given the units. made_of: always the same."""
        part: Any
        part, n_seen = self._parts.get(kind) or (kind(*made_of), 0)
        if n_seen < len(self._units):
            part.learn(self._units[n_seen:])
        self._parts[kind] = part, len(self._units)
        found: P = part
        return found


_SPACE, _LINE_FEED = 32, 10
_MOST_GROWN = 18  # times the characters of a text that its normal form may have


class Units:
    """Some lines of one side, one at least; `at` has the number in `keys` of each unit of each line.

    keys: the different units, as a `Lexicon` knows them; which: their numbers there. Of each line: n_unit, one at
    least; first, where its units begin in `at`; n_byte; is_odd, whether it is one unit as a whole.
    """

    def __init__(self, raw: bytes, normalize: str, known: Lexicon) -> None:
        """raw: the lines, each ended by a line feed; may have placeholders, if they are not to be measured."""
        self.raw, self.known = raw, known
        letters = np.frombuffer(raw, np.uint8)
        ends = np.flatnonzero((letters == _SPACE) | (letters == _LINE_FEED))
        line_ends = np.flatnonzero(letters[ends] == _LINE_FEED)
        self._stops = ends[line_ends]
        self.n_unit: Numbers = np.diff(line_ends, prepend=-1)
        self.n_byte: Numbers = np.diff(self._stops, prepend=-1) - 1
        self.keys, self.at = _numbered(raw.replace(b"\n", b" "), ends)
        self.which = known.numbers(self.keys)
        self.first: Numbers = np.cumsum(self.n_unit) - self.n_unit
        self.is_odd: Mask = self.sums(known.has_space.values[self.which]) > 0
        for n in np.flatnonzero(self.n_byte * _MOST_GROWN >= LINE_CAP).tolist():
            # Learning sees no end of such a line, so it has to see the line.
            self.is_odd[n] |= len(normalised(self.line(n), normalize)) >= LINE_CAP
        if self.is_odd.any():
            self._join_odd()

    def _join_odd(self) -> None:
        stays = ~np.repeat(self.is_odd, self.n_unit)
        stays[self.first] = True
        whole: dict[bytes, int] = {}
        numbers = [whole.setdefault(self.raw_line(n) + b" ", len(whole)) for n in np.flatnonzero(self.is_odd).tolist()]
        self.at[self.first[self.is_odd]] = np.array(numbers) + len(self.keys)
        self.at = self.at[stays]
        self.keys += whole
        self.which = np.append(self.which, self.known.numbers(list(whole)))
        self.n_unit[self.is_odd] = 1
        self.first = np.cumsum(self.n_unit) - self.n_unit

    def __len__(self) -> int:
        return len(self.n_unit)

    def raw_line(self, n: int) -> bytes:
        """The bytes of a line."""
        stop = int(self._stops[n])
        return self.raw[stop - int(self.n_byte[n]) : stop]

    def line(self, n: int) -> str:
        """The text of a line."""
        return self.raw_line(n).decode(**BYTES)

    def some(self, chosen: Mask) -> list[str]:
        """The text of some of the lines."""
        return [self.line(n) for n in np.flatnonzero(chosen).tolist()]

    def text(self, chosen: Mask) -> bytes:
        """Some of the lines, with line feeds between them."""
        if chosen.all():
            return self.raw[:-1]
        return b"\n".join(itertools.compress(self.raw.split(b"\n"), chosen.tolist()))

    @cached_property
    def n_char(self) -> Numbers:
        """Characters of each line."""
        found: Numbers = self.sums(self.known.n_char.values[self.which]) - 1
        return found

    def sums(self, of_units: NDArray[Any]) -> NDArray[Any]:
        """Sum a value of units over the units of each line."""
        return np.add.reduceat(of_units[self.at], self.first)

    def n_word(self) -> Numbers:
        """Words of each line, between white space of any kind."""
        found = self.n_unit.copy()
        for n in np.flatnonzero(self.is_odd).tolist():
            found[n] = len(self.line(n).split())
        return found


def _numbered(text: bytes, ends: NDArray[np.int64]) -> tuple[list[bytes], Numbers]:
    """The different words of a text, each with the space that ends it, and the number of each word in it."""
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends + 1
    words = pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(text)])
    found = words.dictionary_encode()
    # As wide as places are, or numpy would make them so each time that they are used.
    return found.dictionary.to_pylist(), as_numpy(found.indices).astype(np.int64)


class UnitFacts:
    """Facts of units by which lines are measured and aligned, by their numbers: `bags` and rows of `words`, as in
    `text.py`, and `hashes` of their texts.
    """

    def __init__(self) -> None:
        self.bags, self.hashes = Grown(np.uint64), Grown(np.uint64)
        self.words = GrownRows(np.uint16)

    def learn(self, units: Sequence[str]) -> None:
        """See the next units."""
        block = Block(units)
        self.bags.add(block.bags())
        self.hashes.add(hashes_of(units))
        hashed, unit = block.words()
        self.words.add(hashed, np.bincount(unit, minlength=len(units)))


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
        rows, notes = list[list[str]](), Counter[str]()
        for n, unit in enumerate(units, start=len(self.rows)):
            rows.append(self._words_of(unit, notes))
            if notes:
                self._noted[n], notes = notes, Counter[str]()
        words = itertools.chain.from_iterable(rows)
        self.rows.add(
            np.fromiter(map(self._number.__getitem__, words), np.int32),
            np.fromiter(map(len, rows), np.int64, len(rows)),
        )
        self.words += itertools.islice(self._number, len(self.words), None)

    def counted(self, units: Numbers, times: Numbers, notes: Counter[str]) -> tuple[list[str], Numbers]:
        """Count each word in units that occur so often, by the first unit that has it.

        notes: counts what was too long for learning.
        """
        values, n_of = self.rows.of(units)
        total = np.bincount(values, weights=np.repeat(times, n_of)).astype(np.int64)
        different = list(dict.fromkeys(values.tolist()))
        for n in np.flatnonzero(np.isin(units, list(self._noted))).tolist():
            notes.update({key: int(times[n]) * many for key, many in self._noted[int(units[n])].items()})
        return [self.words[n] for n in different], total[different]


class UnitIds:
    """The ids of each unit, as rows."""

    def __init__(self, codec: Codec) -> None:
        self._codec, self.rows = codec, GrownRows(np.int32)

    def learn(self, units: Sequence[str]) -> None:
        """See the next units."""
        ids = Ragged.of(self._codec.encode([unit[1:] for unit in units]), np.int32)
        self.rows.add(ids.values, ids.lengths)
