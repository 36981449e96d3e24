"""The filters of `clean.py` on a block of pairs at once: what they say of each pair, asked only where it can be yes.

A condition here is cheap, sees the whole block, and is true of every pair that its filter drops; the filter itself is
asked of those alone. A filter without a condition is asked of all pairs.
"""

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from nmt.data.filters import clean
from nmt.data.filters.ratio import SHORT, UsualRatio
from nmt.data.text.damage import CONTROL_CHARACTERS, SHORT_TEXT, SUSPECT, long_run, run_around
from nmt.data.text.scripts import letters_of_others, scripts_of
from nmt.data.units.block_units import Mask, Units
from nmt.data.units.unit_facts import facts_of
from nmt.recipe.filter_options import FilterConfig

KEPT = 0
# What a filter says of a pair is a number: the place of the reason among all, from 1.
CODES = {reason: n for n, reason in enumerate(clean.REASONS, start=1)}
REASON_OF = {n: reason for reason, n in CODES.items()}
UNREAD = 255  # a pair of which a side is no text

_GRAM = np.dtype("<u8")
_LONGEST_PERIOD = 64
_FEW = 4  # places in a line where something comes again: so many are looked at one after the other
_REPLACEMENT = re.compile("\ufffd")


def codes_of(
    src: Units,
    trg: Units,
    filters: Sequence[clean.Filter],
    conditions: Mapping[str, Callable[[Units, Units], Mask]],
    before: NDArray[np.uint8],
) -> NDArray[np.uint8]:
    """What the first filter that drops each pair is called, by its code. before: of pairs that are dropped anyway."""
    codes = before.copy()
    for reason, drops in filters:
        asked = codes == KEPT
        if condition := conditions.get(reason):
            asked &= condition(src, trg)
        code = CODES[reason]
        for n in np.flatnonzero(asked).tolist():
            if drops(src.line(n), trg.line(n)):
                codes[n] = code
    return codes


def conditions_of(
    config: FilterConfig, max_len: int, languages: tuple[str, str], usual: UsualRatio | None
) -> dict[str, Callable[[Units, Units], Mask]]:
    """What must be true of a pair for each filter to drop it."""
    most, scripts = clean.most_bytes(max_len), tuple(map(scripts_of, languages))

    def either(of_side: Callable[[Units], Mask]) -> Callable[[Units, Units], Mask]:
        return lambda src, trg: of_side(src) | of_side(trg)

    def is_other_script(src: Units, trg: Units) -> Mask:
        found = [
            side.found(letters_of_others(own)) if own else _none(side)
            for side, own in zip((src, trg), scripts, strict=True)
        ]
        return found[0] | found[1]

    return {
        clean.EMPTY: either(lambda side: side.is_odd | (side.n_byte == 0)),
        clean.IDENTICAL: lambda src, trg: src.is_odd | trg.is_odd | (src.n_byte == trg.n_byte),
        clean.TOO_LONG: either(lambda side: side.n_byte > most),
        clean.RATIO: lambda src, trg: _is_unusual(src, trg, usual),
        clean.CONTROL: either(lambda side: side.found(CONTROL_CHARACTERS)),
        clean.DAMAGED: either(lambda side: side.found(SUSPECT) | side.found(_REPLACEMENT)),
        clean.SCRIPT: is_other_script,
        clean.SYMBOLS: either(lambda side: _has_few_letters(side, config.max_symbols)),
        clean.REPEATS: either(lambda side: _may_repeat(side, config.max_repeats)),
    }


def _none(side: Units) -> Mask:
    return np.zeros(len(side), dtype=bool)


def _is_unusual(src: Units, trg: Units, usual: UsualRatio | None) -> Mask:
    if usual is None:
        return _none(src)
    is_usual = (usual.low * src.n_char <= trg.n_char) & (trg.n_char <= usual.high * src.n_char)
    found: Mask = (np.maximum(src.n_char, trg.n_char) >= SHORT) & ~is_usual
    return found


def _has_few_letters(side: Units, max_share: float) -> Mask:
    n_letter = side.sums(facts_of(side.known).n_letter[side.which])
    found: Mask = (side.n_char >= SHORT_TEXT) & (n_letter < (1 - max_share) * side.n_char)
    return found


def _may_repeat(side: Units, most: int) -> Mask:
    """Lines with a long run, with letters or without, and some of many short ones."""
    raw, ends = side.raw, np.cumsum(side.n_byte + 1)
    found_at, periods = list[NDArray[np.int64]](), list[NDArray[np.int64]]()
    for period in range(1, _LONGEST_PERIOD + 1):
        # A run of so many bytes holds, wherever it begins, a place with eight bytes and the same ones a period later.
        spare = long_run(period, most) - period - _GRAM.itemsize
        stride = 1 << max(0, (spare + 1).bit_length() - 1)
        n_place = (len(raw) - period - _GRAM.itemsize) // stride + 1
        if n_place <= 0:
            continue
        here, later = (np.ndarray((n_place,), _GRAM, raw, first, (stride,)) for first in (0, period))
        found_at.append(np.flatnonzero(here == later) * stride)
        periods.append(np.full(len(found_at[-1]), period))
    if not found_at:
        return _none(side)
    at = np.concatenate(found_at)
    lines = np.searchsorted(ends, at, side="right")
    # Nearly all lines have none or one, and that is of a short run; a line of dots has hundreds.
    found: Mask = np.bincount(lines, minlength=len(side)) > _FEW
    few, starts = ~found[lines], ends - side.n_byte - 1
    asked = (lines[few], (at - starts[lines])[few], np.concatenate(periods)[few])
    for n, place, period in zip(*(each.tolist() for each in asked), strict=True):
        line = side.raw_line(n)
        if place + period < len(line):
            start, end = run_around(line, place, period)
            found[n] |= end - start >= long_run(period, most)
    return found
