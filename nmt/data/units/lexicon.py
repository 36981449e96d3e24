"""The different units of text that a process has met: each has a number, and what it shows is found out once.

Most units of a block stood in blocks before it, so what is left to do for a block is to look up their numbers. What is
found out of units grows with them, in arrays by their numbers; which arrays those are is said in `unit_facts.py` and
`unit_ids.py`. A lexicon that is full is left for an empty one: what it knows can be found out again.
"""

import itertools
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays.ragged import Grown
from nmt.data.text.placeholders import BYTES
from nmt.data.text.whitespace import unified
from nmt.data.vocabulary.learn import MOST_REMEMBERED

Numbers = NDArray[np.int64]

_MOST_CHARACTERS = 20 * MOST_REMEMBERED  # of all units together, at some 20 bytes each


class Part(Protocol):
    """Something that is found out of each unit, in the order of their numbers."""

    def learn(self, units: Sequence[str]) -> None:
        """See the next units, each with the space before it."""


P = TypeVar("P", bound=Part)


class Lexicon:
    """Units by their bytes: those of a word and the space after it, or of a whole line and a space."""

    def __init__(self) -> None:
        self.name = str(uuid.uuid4())  # tells its numbers from those of others
        self._number: defaultdict[bytes, int] = defaultdict(itertools.count().__next__)
        self._units: list[str] = []  # each begins with the space before it, as the tokenizers library wants it
        self._n_char, self._has_space = Grown(np.int64), Grown(np.bool_)
        self._parts: dict[str, tuple[Any, int]] = {}

    @property
    def is_full(self) -> bool:
        """Return whether it holds so much that memory is at stake."""
        return len(self._units) > MOST_REMEMBERED or int(self.n_char.sum()) > _MOST_CHARACTERS

    def numbers(self, keys: Sequence[bytes]) -> Numbers:
        """The numbers of some units; new ones get the next."""
        found = np.fromiter(map(self._number.__getitem__, keys), np.int64, len(keys))
        n_known = len(self._units)
        if len(self._number) > n_known:
            new = list(itertools.islice(self._number, n_known, None))
            words = [key[:-1] for key in b"\n".join(new).decode(**BYTES).split("\n")]
            self._units += [" " + word for word in words]
            self._n_char.add(np.fromiter(map(len, words), np.int64, len(words)) + 1)
            odd = (word.split() != [word] or unified(word) != word for word in words)
            self._has_space.add(np.fromiter(odd, bool, len(words)))
        return found

    @property
    def n_char(self) -> Numbers:
        """Characters of each unit, with the space before it."""
        return self._n_char.values

    @property
    def has_space(self) -> NDArray[np.bool_]:
        """Return which units are empty, or have white space inside or at an end, or characters that cannot be seen."""
        return self._has_space.values

    def part(self, name: str, new: Callable[[], P]) -> P:
        """Return what is known of all units under a name. new: makes it, of no unit."""
        part, n_seen = self._parts.get(name) or (new(), 0)
        if n_seen < len(self._units):
            part.learn(self._units[n_seen:])
        self._parts[name] = part, len(self._units)
        found: P = part
        return found
