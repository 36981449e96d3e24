"""Facts of units by which lines are measured and aligned, as a part of a `Lexicon`."""

from collections.abc import Sequence

import numpy as np

from nmt.data.arrays.ragged import Grown, GrownRows
from nmt.data.text.facts import Block, Hashes, row_hashes
from nmt.data.units.lexicon import Lexicon


class UnitFacts:
    """By the number of each unit: `bags`, as in `text/facts.py`; `hashes`, of its text.

    And rows: `words` and `marks`, hashes of 16 bits as told there; `codes`, its code points and a line feed.
    """

    def __init__(self) -> None:
        self._bags, self._hashes = Grown(np.uint64), Grown(np.uint64)
        self.words, self.marks, self.codes = GrownRows(np.uint16), GrownRows(np.uint16), GrownRows(np.uint32)

    def learn(self, units: Sequence[str]) -> None:
        """See the next units."""
        block = Block(units)
        self._bags.add(block.bags())
        self._hashes.add(hashes_of(block))
        for rows, (hashed, unit) in ((self.words, block.words()), (self.marks, block.all_marks())):
            rows.add(hashed, np.bincount(unit, minlength=len(units)))
        self.codes.add(block.codes, block.lengths + 1)

    @property
    def bags(self) -> Hashes:
        """A number that does not depend on case, punctuation and numbers."""
        return self._bags.values

    @property
    def hashes(self) -> Hashes:
        """A hash of the text of each unit: see `hashes_of`."""
        return self._hashes.values


def facts_of(known: Lexicon) -> UnitFacts:
    """Return the facts of all units that a lexicon has."""
    return known.part("facts", UnitFacts)


def hashes_of(units: Block) -> Hashes:
    """A hash of the text of each unit."""
    return row_hashes(units.codes, units.lengths + 1)
