"""The lines of one side of a block, cut at their spaces into units of which each different one is looked at once.

Words repeat, so what adds up over the words of a line (letters, suspicions, pieces) is found for some thousand
different units and summed by numpy. The units put together are the text: nothing that looks at words sees over a space.
A line with any other white space, or more of it, is one unit as a whole.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nmt.data.learn import LINE_CAP
from nmt.data.letters import normalised
from nmt.data.placeholders import BYTES
from nmt.data.report_text import Block

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]

_SPACE, _LINE_FEED = 32, 10
_MOST_GROWN = 18  # times the characters of a text that its normal form may have


class Units:
    """Some lines of one side, one at least; `at` has the number in `units` of each unit of each line.

    units: each begins with the space before it. n_unit: of each line, one at least. is_odd: lines that are one unit.
    """

    def __init__(self, lines: Sequence[str], normalize: str) -> None:
        """lines: may have placeholders in them, if they are not to be measured."""
        self.lines = lines
        self.raw = ("\n".join(lines) + "\n").encode(**BYTES)
        letters = np.frombuffer(self.raw, np.uint8)
        ends = np.flatnonzero((letters == _SPACE) | (letters == _LINE_FEED))
        line_ends = np.flatnonzero(letters[ends] == _LINE_FEED)
        assert len(line_ends) == len(lines), "a line feed inside a line"
        self.n_unit: Numbers = np.diff(line_ends, prepend=-1)
        self.n_byte: Numbers = np.diff(ends[line_ends], prepend=-1) - 1
        words, self.at = _numbered(self.raw.replace(b"\n", b" "), ends)
        has_space = np.fromiter((word.split() != [word] for word in words), bool, len(words))
        self.units = [" " + word for word in words]
        self._find_lines()
        self.is_odd: Mask = np.logical_or.reduceat(has_space[self.at], self._first)
        for n in np.flatnonzero(self.n_byte * _MOST_GROWN >= LINE_CAP).tolist():
            # Learning sees no end of such a line, so it has to see the line.
            self.is_odd[n] |= len(normalised(lines[n], normalize)) >= LINE_CAP
        if self.is_odd.any():
            self._join_odd()

    def _find_lines(self) -> None:
        self._first = np.cumsum(self.n_unit) - self.n_unit

    def _join_odd(self) -> None:
        of_odd = np.repeat(self.is_odd, self.n_unit)
        stays = ~of_odd
        stays[self._first] = True
        whole: dict[str, int] = {}
        numbers = [whole.setdefault(self.lines[n], len(whole)) for n in np.flatnonzero(self.is_odd).tolist()]
        at = self.at.copy()
        at[self._first[self.is_odd]] = np.array(numbers) + len(self.units)
        self.at = at[stays]
        self.units += [" " + line for line in whole]
        self.n_unit[self.is_odd] = 1
        self._find_lines()

    @cached_property
    def different(self) -> Block:
        """The different units as a block of lines."""
        return Block(self.units)

    @property
    def n_char(self) -> Numbers:
        """Characters of each line."""
        found: Numbers = self.sums(np.fromiter(map(len, self.units), np.int64, len(self.units))) - 1
        return found

    def sums(self, of_units: NDArray[Any]) -> NDArray[Any]:
        """What units have, summed over the units of each line."""
        return np.add.reduceat(of_units[self.at], self._first)

    def any(self, of_units: Mask) -> Mask:
        """Which lines have a unit that is true."""
        if not of_units.any():
            return np.zeros(len(self.lines), dtype=bool)
        return np.logical_or.reduceat(of_units[self.at], self._first)

    def counts(self, chosen: Mask) -> Numbers:
        """How often each unit occurs in some of the lines."""
        at = self.at if chosen.all() else self.at[np.repeat(chosen, self.n_unit)]
        return np.bincount(at, minlength=len(self.units))

    def found(self, pattern: re.Pattern[str]) -> Mask:
        """Which lines have a match of a pattern that never goes over a space."""
        places = [match.start() for match in pattern.finditer(self._text)]
        of_units = np.zeros(len(self.units), dtype=bool)
        if places:
            of_units[np.searchsorted(np.cumsum(self.different.lengths + 1), places, side="right")] = True
        return self.any(of_units)

    @cached_property
    def _text(self) -> str:
        return "\n".join(self.units)

    def n_word(self) -> Numbers:
        """Words of each line, between white space of any kind."""
        found = self.n_unit.copy()
        for n in np.flatnonzero(self.is_odd).tolist():
            found[n] = len(self.lines[n].split())
        return found


def gathered(values: NDArray[Any], n_of: NDArray[Any], at: NDArray[Any]) -> tuple[NDArray[Any], Numbers]:
    """Rows of different lengths, end to end, in another order and number: their values, and how many each has.

    values: of all rows, end to end; n_of: how many each row has; at: the rows that are wanted.
    """
    n = n_of[at].astype(np.int64)
    ends = np.cumsum(n)
    starts = (np.cumsum(n_of, dtype=np.int64) - n_of)[at]
    place = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - n), n)
    return values[place], n


def _numbered(text: bytes, ends: NDArray[np.int64]) -> tuple[list[str], NDArray[np.int32]]:
    """The different words of a text, each of which a space ends, and the number of each word in it."""
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends + 1
    words = pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(text)])
    found = words.dictionary_encode()
    return [word[:-1].decode(**BYTES) for word in found.dictionary.to_pylist()], found.indices.to_numpy()
