"""Filters of training pairs that look at the text of a pair: their names, their order, and the choice by a recipe.

Decisions only: no files, no counts. What a filter looks at is in `ratio.py`, `text/damage.py`, `text/scripts.py` and
`text/languages.py`; what it takes other pairs to know, in `seen.py`. Validation and test pairs are never filtered.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from nmt.data.filters.ratio import UsualRatio, is_unusual
from nmt.data.filters.seen import DUPLICATE, NEAR_DUPLICATE, TRANSLATIONS
from nmt.data.text.damage import has_control, is_damaged, is_mostly_symbols, repeats_itself
from nmt.data.text.languages import identifier, is_in_another_language, languages_like
from nmt.data.text.scripts import is_in_another_script, scripts_of
from nmt.data.vocabulary.subwords import LONGEST_PIECE
from nmt.recipe.filter_options import FilterConfig

BAD_UTF8 = "bad UTF-8"
BAD_RECORD = "bad record"
EMPTY = "empty side"
IDENTICAL = "identical sides"
TOO_LONG = "too long"
RATIO = "length ratio"
CONTROL = "control characters"
DAMAGED = "damaged text"
SCRIPT = "another script"
SYMBOLS = "mostly symbols"
REPEATS = "repeats itself"
LANGUAGE = "another language"
HELD_OUT = "held out"  # for validation, or like a pair that is
# In the order in which they are asked, cheap ones first, which is the order of the report.
REASONS = (
    BAD_UTF8,
    BAD_RECORD,
    EMPTY,
    IDENTICAL,
    TOO_LONG,
    RATIO,
    CONTROL,
    DAMAGED,
    SCRIPT,
    SYMBOLS,
    REPEATS,
    LANGUAGE,
    HELD_OUT,
    DUPLICATE,
    NEAR_DUPLICATE,
    TRANSLATIONS,
)
# What a filter says of a pair, as a number: the place of its reason among all, from 1.
KEPT = 0
CODES = {reason: n for n, reason in enumerate(REASONS, start=1)}
REASON_OF = {n: reason for reason, n in CODES.items()}

# What `oddities` looks for, and U+FEFF.
ODD = re.compile("[\ufeff\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_LINE_BREAKER = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


class Filter(NamedTuple):
    """A reason to drop a pair, and the function that decides."""

    reason: str
    drops: Callable[[str, str], bool]


def filters_of(
    config: FilterConfig, max_len: int, languages: tuple[str, str], usual: UsualRatio | None = None
) -> list[Filter]:
    """The filters on text that are turned on, for the pairs of one corpus.

    max_len: subwords that a side may have; languages: codes of the source and of the target; usual: the ratio that was
    learnt from the corpus.
    """
    most, src_scripts, trg_scripts = most_bytes(max_len), *map(scripts_of, languages)
    share, symbols, repeats = config.min_script, config.max_symbols, config.max_repeats
    # Functions that close over their bounds: calls with keywords take twice the time, and there are many.
    asked: list[tuple[object, str, Callable[[str, str], bool]]] = [
        (True, EMPTY, _has_empty_side),
        (config.drop_identical, IDENTICAL, _is_copy),
        (True, TOO_LONG, lambda src, trg: _has_more_bytes(src, trg, most)),
        (
            usual and (config.max_ratio or config.max_ratio_spread),
            RATIO,
            lambda src, trg: usual is not None and is_unusual(len(src), len(trg), usual),
        ),
        (config.drop_control, CONTROL, lambda src, trg: has_control(src) or has_control(trg)),
        (config.drop_damaged, DAMAGED, lambda src, trg: is_damaged(src) or is_damaged(trg)),
        (
            share and (src_scripts or trg_scripts),
            SCRIPT,
            lambda src, trg: (
                is_in_another_script(src, src_scripts, share) or is_in_another_script(trg, trg_scripts, share)
            ),
        ),
        (symbols, SYMBOLS, lambda src, trg: is_mostly_symbols(src, symbols) or is_mostly_symbols(trg, symbols)),
        (repeats, REPEATS, lambda src, trg: repeats_itself(src, repeats) or repeats_itself(trg, repeats)),
    ]
    if least := config.max_other_language:
        (identify, _), (src_own, trg_own) = identifier(), map(languages_like, languages)
        asked.append(
            (
                True,
                LANGUAGE,
                lambda src, trg: (
                    is_in_another_language(src, src_own, least, identify)
                    or is_in_another_language(trg, trg_own, least, identify)
                ),
            )
        )
    return [Filter(reason, drops) for is_on, reason, drops in asked if is_on]


def reason_to_drop(src: str | None, trg: str | None, filters: Sequence[Filter]) -> str | None:
    """Return the first filter that rejects a pair, None if it is kept; a side that is None was not UTF-8."""
    if src is None or trg is None:
        return BAD_UTF8
    for reason, drops in filters:
        if drops(src, trg):
            return reason
    return None


def most_bytes(max_len: int) -> int:
    """A text with more bytes has more than max_len subwords for certain, and need not be encoded to know."""
    return max_len * LONGEST_PIECE


def oddities(text: str) -> tuple[str, ...]:
    """Return what is odd about a line and harmless to us, as keys of `report.DataReport.notes`."""
    if text.isprintable():
        return ()
    found = []
    if "\ufeff" in text:
        found.append("bom_inside")
    if _LINE_BREAKER.search(text):
        found.append("control")
    return tuple(found)


def _has_empty_side(src: str, trg: str) -> bool:
    return not src or not trg or src.isspace() or trg.isspace()


def _is_copy(src: str, trg: str) -> bool:
    return src == trg or src.strip() == trg.strip()


def _has_more_bytes(src: str, trg: str, most: int) -> bool:
    longest = max(len(src), len(trg))
    return 4 * longest > most and max(len(src.encode("utf-8")), len(trg.encode("utf-8"))) > most
