"""Chance that follows from numbers alone: the same on every machine, in any order, for any part of a corpus."""

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.uint64]
Ints = NDArray[np.int64]

STEP = 0x9E3779B97F4A7C15


def mixed(x: Numbers) -> Numbers:
    """Numbers that look like chance, one for each (the finaliser of splitmix64). Overflow is meant."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def seeds_of(n: NDArray[np.integer]) -> Numbers:
    """A number for each of some small ones, to be added to others and mixed."""
    return (n.astype(np.uint64) + np.uint64(1)) * np.uint64(STEP)
