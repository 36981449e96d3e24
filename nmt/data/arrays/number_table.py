"""From 64-bit keys to numbers, thousands at a time: a hash table in two arrays, looked up by operations on arrays.

A dict of so many integers is an object for each, all over memory: a look at each of some thousand costs milliseconds.
"""

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays.chance import Ints, Numbers

_EMPTY = np.uint64(0)


class NumberTable:
    """Numbers by keys that look like chance already; 0 is no key. 32 to 64 bytes for each."""

    def __init__(self) -> None:
        self.clear()

    def __len__(self) -> int:
        return self._n_key

    def clear(self) -> None:
        """Forget all."""
        self._n_key = 0
        self._keys = np.full(1024, _EMPTY)
        self._values: Ints = np.zeros(1024, dtype=np.int64)

    def find(self, keys: Numbers) -> Ints:
        """The number of each key, -1 where there is none."""
        place = self._home(keys)
        seeking = np.flatnonzero(self._goes_on(place, keys))
        while len(seeking):
            place[seeking] = (place[seeking] + 1) & (len(self._keys) - 1)
            seeking = seeking[self._goes_on(place[seeking], keys[seeking])]
        return np.where(self._keys[place] == keys, self._values[place], -1)

    def add(self, keys: Numbers, values: Ints) -> None:
        """Keys that are not there yet, all different, with their numbers."""
        self._n_key += len(keys)
        if 2 * self._n_key > len(self._keys):
            there = self._keys != _EMPTY
            keys, values = np.append(self._keys[there], keys), np.append(self._values[there], values)
            size = 1 << (4 * self._n_key - 1).bit_length()
            self._keys, self._values = np.full(size, _EMPTY), np.zeros(size, dtype=np.int64)
        place = self._home(keys)
        while len(keys):
            free = self._keys[place] == _EMPTY
            self._keys[place[free]] = keys[free]  # of several that want one place the last has it
            settled = self._keys[place] == keys
            self._values[place[settled]] = values[settled]
            keys, values = keys[~settled], values[~settled]
            place = (place[~settled] + 1) & (len(self._keys) - 1)

    def _home(self, keys: Numbers) -> Ints:
        return (keys & np.uint64(len(self._keys) - 1)).astype(np.int64)

    def _goes_on(self, place: Ints, keys: Numbers) -> NDArray[np.bool_]:
        """Whether a key may be further on: another is at its place."""
        found = self._keys[place]
        goes_on: NDArray[np.bool_] = (found != keys) & (found != _EMPTY)
        return goes_on
