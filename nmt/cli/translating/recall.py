"""Which lines have to go through the model at all: those that were not among the lines before.

What is remembered follows from the lines alone, not from who answers them or when. So the model sees the same batches,
and answers the same to the last digit, however the work is divided and wherever it was interrupted.
"""

from collections.abc import Iterable

Key = tuple[str, ...]  # what an answer follows from: the line, or the line and its given translation

# Bytes of memory for what was answered, as `_cost` estimates them: with one hypothesis a line, several hundred
# thousand lines of the usual length.
BUDGET = 256 << 20
_FIXED, _PER_CHARACTER = 500, 12


class Slot:
    """The place of an answer, which is "" until somebody has it."""

    __slots__ = ("answer",)

    def __init__(self) -> None:
        self.answer = ""


class Recall:
    """The lines before, as many as `budget` holds: those that have not occurred for longest are forgotten.

    n_hypothesis: kept for each line.
    """

    def __init__(self, n_hypothesis: int = 1, budget: int = BUDGET) -> None:
        self._slots: dict[Key, Slot] = {}
        self._n_hypothesis, self._left = n_hypothesis, budget

    def slots(self, keys: Iterable[Key]) -> tuple[list[Slot], dict[Key, Slot]]:
        """The slot of each line of a window, and the different ones among them that somebody must fill."""
        window: dict[Key, Slot] = {}
        new: dict[Key, Slot] = {}
        found = []
        for key in keys:
            slot = window.get(key)
            if slot is None:
                slot = self._slots.pop(key, None)
                if slot is None:
                    slot = new[key] = Slot()
                    self._left -= self._cost(key)
                window[key] = self._slots[key] = slot
            found.append(slot)
        while self._left < 0:
            forgotten = next(iter(self._slots))
            del self._slots[forgotten]
            self._left += self._cost(forgotten)
        return found, new

    def _cost(self, key: Key) -> int:
        return self._n_hypothesis * (_FIXED + _PER_CHARACTER * sum(map(len, key)))
