"""Ratio of the lengths of a translation and its source, in characters, beside the ratio that is usual in its corpus.

The usual ratio is the median. It is learnt from the first pairs of each corpus, a million at most.
"""

import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.recipe.filter_options import FilterConfig

# Under so many characters on both sides a ratio says little: "Yes." may well take six words elsewhere.
SHORT = 40
MOST_LEARNT = 1_000_000
_ENOUGH = 100  # long pairs to learn from; where there are fewer, short ones count too

# A median absolute deviation is so much of the standard deviation of a normal distribution.
_OF_SIGMA = 0.6745
# Corpora whose sides have all but one ratio (copies, numbers) still get some leeway: a third more or less in six.
_LEAST_SPREAD = 0.05


class UsualRatio(NamedTuple):
    """Characters of the target over characters of the source: the median, and what is kept on either side of it."""

    median: float
    low: float
    high: float


def is_unusual(n_src: int, n_trg: int, usual: UsualRatio) -> bool:
    """Return whether the ratio of lengths is out of what is kept, where a side has 40 characters or more."""
    return max(n_src, n_trg) >= SHORT and not usual.low * n_src <= n_trg <= usual.high * n_src


def usual_ratio(pairs: Iterable[tuple[str | None, str | None]], config: FilterConfig) -> UsualRatio | None:
    """Learn the ratio from the beginning of a corpus; None where no pair has text, or no filter asks.

    config: bounds the ratio by a factor (max_ratio), by standard deviations of its logarithm (max_ratio_spread), or by
    the narrower of both. The median absolute deviation estimates the standard deviation: unlike the mean and the
    variance it does not see a few pairs that are far off.
    """
    if not config.max_ratio and not config.max_ratio_spread:
        return None
    first = ((len(src), len(trg)) for src, trg in itertools.islice(pairs, MOST_LEARNT) if src and trg)
    lengths: NDArray[np.float32] = np.fromiter(first, np.dtype((np.float32, 2)))
    long = lengths.max(axis=1) >= SHORT
    lengths = lengths[long] if long.sum() >= _ENOUGH else lengths
    if not len(lengths):
        return None
    logs = np.log(lengths[:, 1] / lengths[:, 0])
    median = float(np.median(logs))
    reach = math.log(config.max_ratio) if config.max_ratio else math.inf
    if config.max_ratio_spread:
        sigma = max(_LEAST_SPREAD, float(np.median(np.abs(logs - np.float32(median)))) / _OF_SIGMA)
        reach = min(reach, config.max_ratio_spread * sigma)
    return UsualRatio(math.exp(median), math.exp(median - reach), math.exp(median + reach))
