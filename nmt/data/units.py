"""The lines of one side of a block, split at spaces into units. Each different unit of the block is processed once.

Words repeat, so additive properties of a line (letters, pieces) are computed for some thousand different units and
summed by numpy. The units concatenated are the text, and nothing computed for a unit depends on its neighbours. A line
with other white space, with several spaces in a row or with invisible characters is a single unit.
"""

import itertools
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nmt.data.arrays import Ints, Ragged
from nmt.data.corpus import as_numpy
from nmt.data.placeholders import BYTES
from nmt.data.text import Block, Hashes, Words, unified

Mask = NDArray[np.bool_]


class Units:
    """One or more lines of one side.

    units: the different units, each with a space before it, as the tokenizers library expects. at: of all lines, end to
    end, the index into `units` of each unit. Of each line: n_unit, at least one; first, the start of its units in `at`;
    n_char; is_odd, whether the whole line is one unit.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        """lines: without line feeds. They may have placeholders unless they are to be measured."""
        self.lines = lines
        self.n_char: Ints = np.fromiter(map(len, lines), np.int64, len(lines))
        is_odd = [not line or unified(line) != line for line in lines]
        self.is_odd: Mask = np.array(is_odd, bool)
        # A line feed stands for each space of an odd line, which so stays whole.
        rows = [line.replace(" ", "\n") if odd else line for line, odd in zip(lines, is_odd, strict=True)]
        self.n_unit: Ints = np.fromiter((row.count(" ") + 1 for row in rows), np.int64, len(rows))
        self.first: Ints = np.cumsum(self.n_unit) - self.n_unit
        text = " ".join([*rows, ""]).encode(**BYTES)  # each unit is ended by a space
        offsets = np.append(0, np.flatnonzero(np.frombuffer(text, np.uint8) == ord(" ")) + 1).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        encoded = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers).dictionary_encode()
        # int64, or numpy would convert them each time they are used as an index.
        self.at: Ints = as_numpy(encoded.indices).astype(np.int64)
        different = b"".join(encoded.dictionary.to_pylist()).decode(**BYTES).split(" ")[:-1]
        self.units = [" " + unit.replace("\n", " ") for unit in different]

    def some(self, chosen: Mask) -> list[str]:
        """The chosen lines."""
        return list(itertools.compress(self.lines, chosen.tolist()))

    def bags(self) -> Hashes:
        """A hash of each line, as `Block.bags` computes it."""
        return np.add.reduceat(self._block.bags()[self.at], self.first)

    def words(self) -> Words:
        """Words that may be spelled alike in other languages, as `Block.words` finds them in lines."""
        hashed, unit = self._block.words()
        words = Ragged(hashed, np.bincount(unit, minlength=len(self.units))).picked(self.at)
        n_word = np.add.reduceat(words.lengths, self.first)
        return words.values, np.repeat(np.arange(len(n_word)), n_word)

    def n_word(self) -> Ints:
        """Words of each line, separated by white space of any kind."""
        counts = self.n_unit.copy()
        counts[self.is_odd] = [len(line.split()) for line in self.some(self.is_odd)]
        return counts

    @cached_property
    def _block(self) -> Block:
        return Block(self.units)
