"""The lines of one side of a block, split at spaces into units. Each different unit is processed once.

Words repeat, so additive properties of a line (letters, pieces) are computed for some thousand different units and
summed by numpy. The units concatenated are the text, and nothing computed for a unit depends on its neighbours. A line
with other white space, or with several spaces in a row, is a single unit.
"""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nmt.data.arrays import Grown, GrownRows, Ints, Ragged
from nmt.data.corpus import as_numpy
from nmt.data.letters import WordsOf
from nmt.data.placeholders import BYTES
from nmt.data.subwords import Codec
from nmt.data.text import Block, Hashes, unified

Mask = NDArray[np.bool_]
P = TypeVar("P")

MOST_REMEMBERED = 200_000  # units in a lexicon, some 300 bytes each: more of them hardly help
_MOST_CHARACTERS = 20 * MOST_REMEMBERED  # of all units together, at some 20 bytes each


class Lexicon:
    """Numbers of units, by their bytes: a word and the space after it, or a whole line and a space."""

    def __init__(self) -> None:
        self._number: defaultdict[bytes, int] = defaultdict(itertools.count().__next__)
        self._units: list[str] = []  # each begins with a space, as the tokenizers library expects
        self.n_char = Grown(np.int64)  # characters of each unit, with the space before it
        # Units that are empty, or have white space inside or at an end, or invisible characters.
        self.has_space = Grown(np.bool_)
        self._parts: dict[type, tuple[Any, int]] = {}  # by kind, with the number of units that it has learnt

    @property
    def is_full(self) -> bool:
        """True if it holds so much that it should be replaced, to limit memory."""
        return len(self._units) > MOST_REMEMBERED or int(self.n_char.values.sum()) > _MOST_CHARACTERS

    def numbers(self, keys: Sequence[bytes]) -> Ints:
        """The numbers of units; new ones are added."""
        numbers = np.fromiter(map(self._number.__getitem__, keys), np.int64, len(keys))
        n_known = len(self._units)
        if len(self._number) > n_known:
            new_keys = list(itertools.islice(self._number, n_known, None))
            words = [key[:-1] for key in b"\n".join(new_keys).decode(**BYTES).split("\n")]
            self._units += [" " + word for word in words]
            self.n_char.add(np.fromiter(map(len, words), np.int64, len(words)) + 1)
            is_odd = (word.split() != [word] or unified(word) != word for word in words)
            self.has_space.add(np.fromiter(is_odd, bool, len(words)))
        return numbers

    def part(self, kind: type[P], *arguments: Any) -> P:
        """The data of one kind on all units, such as `UnitFacts`. arguments: of its constructor, always the same."""
        part: Any
        part, n_seen = self._parts.get(kind) or (kind(*arguments), 0)
        if n_seen < len(self._units):
            part.learn(self._units[n_seen:])
        self._parts[kind] = part, len(self._units)
        return cast(P, part)


_SPACE, _LINE_FEED = 32, 10


class Units:
    """One or more lines of one side. `at` has the index into `keys` of each unit of each line.

    keys: the different units, as bytes; which: their numbers in the `Lexicon`. Of each line: lines, its bytes; n_unit,
    at least one; first, the start of its units in `at`; n_char; is_odd, whether the whole line is one unit.
    """

    def __init__(self, raw: bytes, known: Lexicon) -> None:
        """raw: lines that each end with a line feed. They may have placeholders unless they are to be measured."""
        self.lines, self.known = raw.split(b"\n")[:-1], known
        characters = np.frombuffer(raw, np.uint8)
        ends = np.flatnonzero((characters == _SPACE) | (characters == _LINE_FEED))
        line_ends = np.flatnonzero(characters[ends] == _LINE_FEED)
        self.n_unit: Ints = np.diff(line_ends, prepend=-1)
        # Each word with the space that ends it, and its index among the different ones.
        offsets = np.append(0, ends + 1).astype(np.int32)
        text = raw.replace(b"\n", b" ")
        words = pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(text)])
        encoded = words.dictionary_encode()
        self.keys: list[bytes] = encoded.dictionary.to_pylist()
        # int64, or numpy would convert them each time they are used as an index.
        self.at: Ints = as_numpy(encoded.indices).astype(np.int64)
        self.which = known.numbers(self.keys)
        self.first: Ints = np.cumsum(self.n_unit) - self.n_unit
        self.is_odd: Mask = self.sums(known.has_space.values[self.which]) > 0
        if self.is_odd.any():  # join the units of each such line to one
            is_kept = ~np.repeat(self.is_odd, self.n_unit)
            is_kept[self.first] = True
            lines: dict[bytes, int] = {}
            numbers = [lines.setdefault(self.lines[n] + b" ", len(lines)) for n in np.flatnonzero(self.is_odd).tolist()]
            self.at[self.first[self.is_odd]] = np.array(numbers) + len(self.keys)
            self.at = self.at[is_kept]
            self.keys += lines
            self.which = np.append(self.which, known.numbers(list(lines)))
            self.n_unit[self.is_odd] = 1
            self.first = np.cumsum(self.n_unit) - self.n_unit
        self.n_char: Ints = self.sums(known.n_char.values[self.which]) - 1

    def line(self, n: int) -> str:
        """The text of a line."""
        return self.lines[n].decode(**BYTES)

    def some(self, chosen: Mask) -> list[str]:
        """The chosen lines as texts."""
        return [self.line(n) for n in np.flatnonzero(chosen).tolist()]

    def text(self, chosen: Mask) -> bytes:
        """The chosen lines as bytes, with line feeds between them."""
        return b"\n".join(itertools.compress(self.lines, chosen.tolist()))

    def sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """Sum the values of units over each line."""
        return np.add.reduceat(values[self.at], self.first)

    def bags(self) -> Hashes:
        """A hash of each line, as `Block.bags` computes it."""
        return self.sums(self.known.part(UnitFacts).bags.values[self.which])

    def n_word(self) -> Ints:
        """Words of each line, separated by white space of any kind."""
        counts = self.n_unit.copy()
        for n in np.flatnonzero(self.is_odd).tolist():
            counts[n] = len(self.line(n).split())
        return counts


class UnitFacts:
    """Facts of units, by number: `bags` and rows of `words`, as in `text.py`."""

    def __init__(self) -> None:
        self.bags = Grown(np.uint64)
        self.words = GrownRows(np.uint16)

    def learn(self, units: Sequence[str]) -> None:
        """Add the facts of further units."""
        block = Block(units)
        self.bags.add(block.bags())
        hashed, unit = block.words()
        self.words.add(Ragged(hashed, np.bincount(unit, minlength=len(units))))


class UnitWords:
    """The words of each unit to learn subwords from, as indices into `words`."""

    def __init__(self, words_of: WordsOf) -> None:
        self._words_of = words_of
        self._number: defaultdict[str, int] = defaultdict(itertools.count().__next__)
        self.words: list[str] = []
        self.rows = GrownRows(np.int32)

    def learn(self, units: Sequence[str]) -> None:
        """Add the words of further units."""
        rows = [[self._number[word] for word in self._words_of(unit)] for unit in units]
        self.rows.add(Ragged.of(rows, np.int32))
        self.words += itertools.islice(self._number, len(self.words), None)

    def counted(self, units: Ints, times: Ints) -> tuple[list[str], Ints]:
        """Count the words of units, in order of first occurrence. times: of units."""
        values, n_word = self.rows.of(units)
        total = np.bincount(values, weights=np.repeat(times, n_word)).astype(np.int64)
        different = list(dict.fromkeys(values.tolist()))
        return [self.words[i] for i in different], total[different]


class UnitIds:
    """The ids of each unit, as rows."""

    def __init__(self, codec: Codec) -> None:
        self._codec, self.rows = codec, GrownRows(np.int32)

    def learn(self, units: Sequence[str]) -> None:
        """Add the ids of further units."""
        self.rows.add(Ragged.of(self._codec.encode([unit[1:] for unit in units]), np.int32))
