"""How long a translation is beside its source, in UTF-8 bytes: a bound that is told, and one that is learnt.

What is learnt belongs to one corpus. It is held as two numbers; learning holds 4 bytes for each of a million pairs at
most, spread evenly over the corpus.
"""

import math
from array import array
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

# Under so many bytes on both sides a ratio says little: "Yes." may well take six words elsewhere.
SHORT = 40
MOST_LEARNT = 1_000_000

# A median absolute deviation is so much of the standard deviation of a normal distribution.
_OF_SIGMA = 0.6745
# Corpora whose sides have all but one ratio (copies, numbers) still get some leeway: a third more or less in six.
_LEAST_SPREAD = 0.05


class UsualRatio(NamedTuple):
    """Bytes of the target over bytes of the source: the median, and what is kept on either side of it."""

    median: float
    low: float
    high: float


def is_too_unlike(src: str, trg: str, max_ratio: float) -> bool:
    """Whether one side has more than max_ratio times the bytes of the other, and 40 or more."""
    n_src, n_trg = len(src.encode("utf-8")), len(trg.encode("utf-8"))
    longer, shorter = (n_src, n_trg) if n_src > n_trg else (n_trg, n_src)
    return longer >= SHORT and longer > max_ratio * shorter


def is_unusual(src: str, trg: str, usual: UsualRatio) -> bool:
    """Whether the ratio is out of what is usual in the corpus, where a side has 40 bytes or more."""
    n_src, n_trg = len(src.encode("utf-8")), len(trg.encode("utf-8"))
    return max(n_src, n_trg) >= SHORT and not usual.low * n_src <= n_trg <= usual.high * n_src


def usual_ratio(pairs: Iterable[tuple[str | None, str | None]], spread: float) -> UsualRatio | None:
    """Learn the ratio from a corpus; None where no pair is long enough to tell.

    spread: what is kept, in standard deviations of the logarithm of the ratio, which the median absolute deviation
    estimates: unlike the mean and the variance it does not see a few pairs that are far off.
    """
    logs, n_long, stride = array("f"), 0, 1
    for src, trg in pairs:
        n_src, n_trg = len((src or "").encode("utf-8")), len((trg or "").encode("utf-8"))
        if n_src and n_trg and max(n_src, n_trg) >= SHORT:
            if n_long % stride == 0:
                if len(logs) == MOST_LEARNT:
                    logs, stride = logs[::2], 2 * stride  # from here on and before, every second one of them
                if n_long % stride == 0:
                    logs.append(math.log(n_trg / n_src))
            n_long += 1
    if not logs:
        return None
    values = np.frombuffer(logs, np.float32)
    median = float(np.median(values))
    sigma = max(_LEAST_SPREAD, float(np.median(np.abs(values - np.float32(median)))) / _OF_SIGMA)
    return UsualRatio(math.exp(median), math.exp(median - spread * sigma), math.exp(median + spread * sigma))
