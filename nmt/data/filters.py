"""Filters of training pairs that look at the text of a pair: names, order, and the choice by a recipe.

Decisions only: no files, no counts; in doubt a pair is kept. Tests of scripts are in `scripts.py`; filters that compare
pairs are in `dedup.py`. Validation and test pairs are never filtered.
"""

import itertools
import math
import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.dedup import DUPLICATE, NEAR_DUPLICATE, TRANSLATIONS
from nmt.data.scripts import is_in_another_language, is_in_another_script, languages_like, scripts_of
from nmt.data.subword_kinds import LONGEST_PIECE
from nmt.recipe.data_options import FilterConfig

# Ratio of the lengths of a translation and its source, in characters, beside the ratio that is usual in its corpus.
# Under so many characters on both sides a ratio says little: "Yes." may well take six words elsewhere.
SHORT = 40
MOST_LEARNT = 100_000
_ENOUGH = 100  # long pairs to learn from; where there are fewer, short ones count too


class UsualRatio(NamedTuple):
    """Characters of the target over characters of the source: the median, and what is kept on either side of it."""

    median: float
    low: float
    high: float


def is_unusual(n_src: int, n_trg: int, usual: UsualRatio) -> bool:
    """Return whether the ratio of lengths is out of what is kept, where a side has 40 characters or more."""
    return max(n_src, n_trg) >= SHORT and not usual.low * n_src <= n_trg <= usual.high * n_src


def usual_ratio(pairs: Iterable[tuple[str, str]], max_ratio: float) -> UsualRatio | None:
    """Learn the ratio from the beginning of a corpus; None where no pair has text, or max_ratio is 0, which is any."""
    if not max_ratio:
        return None
    first = ((len(src), len(trg)) for src, trg in itertools.islice(pairs, MOST_LEARNT) if src and trg)
    lengths: NDArray[np.float32] = np.fromiter(first, np.dtype((np.float32, 2)))
    long = lengths.max(axis=1) >= SHORT
    lengths = lengths[long] if long.sum() >= _ENOUGH else lengths
    if not len(lengths):
        return None
    logs = np.log(lengths[:, 1] / lengths[:, 0])
    median, reach = float(np.median(logs)), math.log(max_ratio)
    return UsualRatio(math.exp(median), math.exp(median - reach), math.exp(median + reach))


# Damage. What `oddities` looks for: U+FEFF, control characters and line breaks.
ODD = re.compile("[\ufeff\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
# Tab, line breaks of all kinds and the marks of direction are in good texts, too, and so are U+0080 to U+009F, which
# the quotes and dashes of windows-1252 become when it is taken for Latin-1.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f\ufdd0-\ufdef\ufffe\uffff]")
# What the bytes 80 to BF are in windows-1252, and in windows-1251.
_WEST = "\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
_EAST = "ЂЃ‚ѓ„…†‡€‰Љ‹ЊЌЋЏђ‘’“”•–—\x98™љ›њќћџ\xa0ЎўЈ¤Ґ¦§Ё©Є«¬\xad®Ї°±Ііґµ¶·ё№є»јЅѕї"
# Of these, what may well follow a word, and what is a letter or follows none.
_MARKS, _NO_MARKS = "€‚„…†‡‹‘’“”•–—™›", "\x80-\x9fƒˆ‰Š˜ŒŽšœžŸ"
_MOJIBAKE = re.compile(
    # German quotes and the apostrophe as â€ and a third character, which may have got lost; ™ as â„¢.
    f"â€[{_WEST}]|(?<![^\\W\\d_])â€|â\x80|â„¢"
    # é as Ã©. Ã and Â are letters of Portuguese, Vietnamese and Turkish, too, so it depends on what stands around:
    # after a small letter, fÃ¼r and baÄŸ, none of them is a letter;
    f"|(?<=[a-zß-öø-ÿ])[ÂÃÄÅÆ][{_WEST}]"
    # after no letter, Ã©tat, 20Â°C and Ã–l, it is one before marks of its end, as in the letter “Ã”;
    f"|(?<![^\\W\\d_])[ÂÃ](?:[{_NO_MARKS}\xa0-\xba\xbc-\xbf]|(?<!«.)\xbb|[{_MARKS}](?=[a-zß-ÿ]))"
    # after a capital, FRANÃ‡AIS and NÃ£o, it is one before marks at the end of a word: IRMÃ”, AMANHÃ», CHÃ€.
    f"|[ÂÃ](?:[{_NO_MARKS}]|[€‚„†‡‹‘“”™›\xa1-\xac\xae-\xbf](?=[A-Za-zÀ-ÿ]))"
    # Vietnamese: three bytes a letter, of which the second is one of two.
    f"|á[º»](?:[{_NO_MARKS}\xa0-\xbf€‚„†‡•™]|[…–—‘’“”‹›](?=[a-z]))"
    # Cyrillic, Greek, Arabic, Hebrew: two bytes a letter, one such letter after the other.
    f"|(?:[ÐÑÎÏØÙÚÛ×][{_WEST}]){{3}}|(?:[РС][{_EAST}]){{3}}"
    # East Asian scripts, Thai and those of India: three bytes a letter.
    f"|(?:[à-ï][{_WEST}][{_WEST}]){{2}}"
)
# All of these begin so, and hardly anything else does: a pattern of two sets is a fast one.
_SUSPECT = re.compile(f"[ÂÃÄÅÆÐÑÎÏØÙÚÛ×РСà-ï][{_WEST}{_EAST}]")


def oddities(text: str) -> list[str]:
    """Return what is odd about a line and harmless to us, as keys of `report.DataReport.notes`."""
    found = ODD.findall(text) if not text.isprintable() else []
    return ["bom_inside"] * ("\ufeff" in found) + ["control"] * any(one != "\ufeff" for one in found)


def has_control(text: str) -> bool:
    """Return whether a character is in it that no text has: NUL, escape, U+FFFF and the like."""
    return not text.isprintable() and _CONTROL.search(text) is not None


def is_damaged(text: str) -> bool:
    """Return whether characters were lost (U+FFFD) or UTF-8 was read as Latin-1, windows-1252 or windows-1251."""
    if text.isascii():
        return False
    return "\ufffd" in text or (_SUSPECT.search(text) is not None and _MOJIBAKE.search(text) is not None)


_NO_ASCII_LETTER = bytes(code for code in range(256) if not chr(code).isalpha() or code > 127)
_LETTER = re.compile(r"[^\W\d_]")
_ROW = re.compile(r"([\W_])\1+")
_SHORT_TEXT = 20


def is_mostly_symbols(text: str, max_share: float) -> bool:
    """Return whether digits, punctuation and symbols are more than max_share of a text of 20 characters or more.

    White space does not count; vowel signs and other marks count as letters, a row of dots or dashes as one of them.
    """
    least, n_char = 1 - max_share, len(text)
    if n_char < _SHORT_TEXT or len(text.encode("utf-8").translate(None, _NO_ASCII_LETTER)) >= least * n_char:
        return False
    characters = "".join(text.split())
    if len(characters) < _SHORT_TEXT or len(_LETTER.findall(characters)) >= least * len(characters):
        return False
    characters = _ROW.sub(r"\1", characters)
    n_letter = sum(unicodedata.category(character)[0] in "LM" for character in characters)
    return n_letter < least * len(characters)


_GRAM, _STRIDE, _REACH, _LONG_RUN = 4, 32, 64, 48


def repeats_itself(text: str, most: int) -> bool:
    """Return whether a piece of the text stands more than `most` times in a row: a letter, a word, some words.

    Such a run has 48 bytes of UTF-8 or more, and a piece up to 64; runs without letters, as in forms and tables of
    contents, do not count.
    """
    raw = text.encode("utf-8")
    # A run of 48 bytes, wherever it begins, holds one of these places and 17 bytes from there on, in which the same
    # four bytes come again after a period of 12. Four longer periods hold a place and a period in the same way.
    known = 0  # up to here nothing begins that repeats itself and has letters
    for place in range(0, len(raw) - _LONG_RUN + _STRIDE, _STRIDE):
        if place < known:
            continue
        gram = raw[place : place + _GRAM]
        after = raw.find(gram, place + 1, place + _REACH + _GRAM)
        while after >= 0:
            # The longest stretch around the place in which every byte is that of one period before.
            period, start, end = after - place, place, after
            while end < len(raw) and raw[end] == raw[end - period]:
                end += 1
            while start > 0 and raw[start - 1] == raw[start - 1 + period]:
                start -= 1
            if end - start >= max(_LONG_RUN, (most + 1) * period):
                if any(map(str.isalpha, raw[start:end].decode("utf-8", "ignore"))):
                    return True
                # A run with letters has one in each piece: it shares less than a piece with this one. Without this, a
                # long row of dots would be looked at from each of its places.
                known = end - _REACH
                break
            after = raw.find(gram, after + 1, place + _REACH + _GRAM)
    return False


# The choice by a recipe.
Drops = Callable[[str, str], bool]  # from source and target


class CorpusFacts(NamedTuple):
    """Facts that filters depend on: options, the subwords a side may have, languages of the sides, the usual ratio."""

    config: FilterConfig
    max_len: int
    languages: tuple[str, str]
    usual: UsualRatio | None = None


Make = Callable[[CorpusFacts, Any], Drops | None]


class FilterKind(NamedTuple):
    """A filter on text: its reason, its option in `data`, and its function for a corpus and the option's value.

    False or 0 is off; the function may be None, too.
    """

    reason: str
    option: str
    make: Make


def most_bytes(max_len: int) -> int:
    """A text with more bytes has more than max_len subwords for certain, and need not be encoded to know."""
    return max_len * LONGEST_PIECE


def _on_a_side(flag: Callable[[str, Any], bool]) -> Make:
    """A filter of single texts."""
    return lambda _, bound: lambda src, trg: flag(src, bound) or flag(trg, bound)


def _of_length(corpus: CorpusFacts, _: Any) -> Drops:
    most = most_bytes(corpus.max_len)
    return lambda *pair: 4 * max(map(len, pair)) > most and max(len(text.encode("utf-8")) for text in pair) > most


def _of_ratio(corpus: CorpusFacts, _: float) -> Drops | None:
    usual = corpus.usual
    return usual and (lambda src, trg: is_unusual(len(src), len(trg), usual))


def _of_script(corpus: CorpusFacts, share: float) -> Drops | None:
    src_own, trg_own = map(scripts_of, corpus.languages)
    if not (src_own or trg_own):
        return None
    return lambda src, trg: is_in_another_script(src, src_own, share) or is_in_another_script(trg, trg_own, share)


def _of_language(corpus: CorpusFacts, least: float) -> Drops:
    src_own, trg_own = map(languages_like, corpus.languages)
    return lambda src, trg: is_in_another_language(src, src_own, least) or is_in_another_language(trg, trg_own, least)


BAD_UTF8, BAD_RECORD, TOO_LONG, SCRIPT = "bad UTF-8", "bad record", "too long", "another script"
LOW_SCORE = "low score"
HELD_OUT = "held out"  # for validation, or like a pair that is

# All filters on text, cheap ones first: a pair is counted under the first that drops it. A new one is a row here and an
# option in `FilterConfig`.
FILTERS = [
    FilterKind("empty side", "", lambda *_: lambda src, trg: not src.strip() or not trg.strip()),
    FilterKind("identical sides", "drop_identical", lambda *_: lambda src, trg: src.strip() == trg.strip()),
    FilterKind(TOO_LONG, "max_len", _of_length),
    FilterKind("length ratio", "max_ratio", _of_ratio),
    FilterKind("control characters", "drop_control", _on_a_side(lambda text, _: has_control(text))),
    FilterKind("damaged text", "drop_damaged", _on_a_side(lambda text, _: is_damaged(text))),
    FilterKind(SCRIPT, "min_script", _of_script),
    FilterKind("mostly symbols", "max_symbols", _on_a_side(is_mostly_symbols)),
    FilterKind("repeats itself", "max_repeats", _on_a_side(repeats_itself)),
    FilterKind("another language", "max_other_language", _of_language),
]
# The option of each reason; those of `dedup.py` compare pairs.
OPTIONS = {kind.reason: kind.option for kind in FILTERS if kind.option} | {
    LOW_SCORE: "train.min_score or best_share",
    DUPLICATE: "drop_duplicates",
    NEAR_DUPLICATE: "drop_near_duplicates",
    TRANSLATIONS: "max_translations",
}
REASONS = (
    *(BAD_UTF8, BAD_RECORD, LOW_SCORE),
    *(kind.reason for kind in FILTERS),
    *(HELD_OUT, DUPLICATE, NEAR_DUPLICATE, TRANSLATIONS),
)
# Codes of reasons: their places among all, from 1.
KEPT = 0
CODES = {reason: n for n, reason in enumerate(REASONS, start=1)}
REASON_OF = {n: reason for reason, n in CODES.items()}


def filters_of(corpus: CorpusFacts) -> list[tuple[str, Drops]]:
    """The filters on text that are on, with their reasons, for the pairs of one corpus."""
    values = ((kind, getattr(corpus.config, kind.option, True)) for kind in FILTERS)
    return [(kind.reason, drops) for kind, value in values if value and (drops := kind.make(corpus, value))]


def reason_to_drop(src: str, trg: str, filters: Iterable[tuple[str, Drops]]) -> str | None:
    """Return the reason of the first filter that rejects a pair, None if it is kept."""
    return next((reason for reason, drops in filters if drops(src, trg)), None)
