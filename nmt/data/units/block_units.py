"""The lines of one side of a block, cut at their spaces into units of which each different one is looked at once.

Words repeat, so what adds up over the words of a line (letters, suspicions, pieces) is found for some thousand
different units and summed by numpy; what is known of each unit is in `lexicon.py`. The units put together are the text:
nothing that looks at words sees over a space. A line with any other white space, or more of it, is one unit as a whole.
"""

import itertools
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nmt.data.arrays.columns import as_numpy
from nmt.data.text.placeholders import BYTES
from nmt.data.units.lexicon import Lexicon
from nmt.data.vocabulary.learn import LINE_CAP
from nmt.data.vocabulary.letters import normalised

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]

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
        self._find_lines()
        self.is_odd: Mask = self.any(known.has_space[self.which])
        for n in np.flatnonzero(self.n_byte * _MOST_GROWN >= LINE_CAP).tolist():
            # Learning sees no end of such a line, so it has to see the line.
            self.is_odd[n] |= len(normalised(self.line(n), normalize)) >= LINE_CAP
        if self.is_odd.any():
            self._join_odd()

    def _find_lines(self) -> None:
        self.first: Numbers = np.cumsum(self.n_unit) - self.n_unit

    def _join_odd(self) -> None:
        of_odd = np.repeat(self.is_odd, self.n_unit)
        stays = ~of_odd
        stays[self.first] = True
        whole: dict[bytes, int] = {}
        numbers = [whole.setdefault(self.raw_line(n) + b" ", len(whole)) for n in np.flatnonzero(self.is_odd).tolist()]
        at = self.at.copy()
        at[self.first[self.is_odd]] = np.array(numbers) + len(self.keys)
        self.at = at[stays]
        self.keys += whole
        self.which = np.append(self.which, self.known.numbers(list(whole)))
        self.n_unit[self.is_odd] = 1
        self._find_lines()

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
        found: Numbers = self.sums(self.known.n_char[self.which]) - 1
        return found

    def sums(self, of_units: NDArray[Any]) -> NDArray[Any]:
        """Sum a value of units over the units of each line."""
        return np.add.reduceat(of_units[self.at], self.first)

    def any(self, of_units: Mask) -> Mask:
        """Return which lines have a unit that is true."""
        if not of_units.any():
            return np.zeros(len(self), dtype=bool)
        return np.logical_or.reduceat(of_units[self.at], self.first)

    def counts(self, chosen: Mask) -> Numbers:
        """Count each unit in some of the lines."""
        at = self.at if chosen.all() else self.at[np.repeat(chosen, self.n_unit)]
        return np.bincount(at, minlength=len(self.keys))

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
