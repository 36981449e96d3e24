"""Filters of training pairs by the text of a pair: names, order, and selection by the recipe.

Decisions only: no files, no counts. In doubt a pair is kept. Checks of scripts are in `scripts.py`, filters that
compare pairs in `dedup.py`. Validation and test pairs are never filtered.
"""

import itertools
import math
import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.dedup import KINDS, TRANSLATIONS
from nmt.data.letters import LONGEST_PIECE
from nmt.data.scripts import LETTER, is_in_another_language, is_in_another_script, languages_like, scripts_of
from nmt.recipe.data_options import FilterConfig

# Ratio of the lengths of target and source, in characters, compared with the usual ratio of the corpus.
# If both sides are shorter than this, the ratio says little: "Yes." may need six words in another language.
SHORT = 40
MOST_LEARNT = 100_000
_ENOUGH = 100  # long pairs to learn from; with fewer, short pairs are used too


class UsualRatio(NamedTuple):
    """Target characters over source characters: the median of a corpus, and the bounds of the ratios that are kept."""

    median: float
    low: float
    high: float


def is_unusual(n_src: int, n_trg: int, usual: UsualRatio) -> bool:
    """Return whether the length ratio is out of bounds. Always False if both sides have under 40 characters."""
    return max(n_src, n_trg) >= SHORT and not usual.low * n_src <= n_trg <= usual.high * n_src


def usual_ratio(pairs: Iterable[tuple[str, str]], max_ratio: float) -> UsualRatio | None:
    """Learn the ratio from the beginning of a corpus; None if no pair has text, or max_ratio is 0 (no limit)."""
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


# Damage. Characters that `oddities` reports: U+FEFF, control characters and line breaks.
ODD = re.compile("[\ufeff\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
# Tab, all line breaks and direction marks also occur in good texts. So do U+0080 to U+009F: they are quotes and dashes
# of windows-1252 that was read as Latin-1.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f\ufdd0-\ufdef\ufffe\uffff]")
# Characters of the bytes 80 to BF in windows-1252, and in windows-1251.
_WEST = "\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
_EAST = "ЂЃ‚ѓ„…†‡€‰Љ‹ЊЌЋЏђ‘’“”•–—\x98™љ›њќћџ\xa0ЎўЈ¤Ґ¦§Ё©Є«¬\xad®Ї°±Ііґµ¶·ё№є»јЅѕї"
# Of these, the marks that may follow a word, and the characters that are letters or do not follow a word.
_MARKS, _NO_MARKS = "€‚„…†‡‹‘’“”•–—™›", "\x80-\x9fƒˆ‰Š˜ŒŽšœžŸ"
_MOJIBAKE = re.compile(
    # German quotes and the apostrophe as â€ and a third character, which may be lost; ™ as â„¢.
    f"â€[{_WEST}]|(?<![^\\W\\d_])â€|â\x80|â„¢"
    # é as Ã©. Ã and Â are also letters of Portuguese, Vietnamese and Turkish, so the context decides.
    # After a small letter they are damage: fÃ¼r, baÄŸ.
    f"|(?<=[a-zß-öø-ÿ])[ÂÃÄÅÆ][{_WEST}]"
    # Without a letter before them they are damage (Ã©tat, 20Â°C, Ã–l), except before a closing mark: the letter “Ã”.
    f"|(?<![^\\W\\d_])[ÂÃ](?:[{_NO_MARKS}\xa0-\xba\xbc-\xbf]|(?<!«.)\xbb|[{_MARKS}](?=[a-zß-ÿ]))"
    # After a capital they are damage (FRANÃ‡AIS, NÃ£o), except before marks at the end of a word: IRMÃ”, AMANHÃ», CHÃ€.
    f"|[ÂÃ](?:[{_NO_MARKS}]|[€‚„†‡‹‘“”™›\xa1-\xac\xae-\xbf](?=[A-Za-zÀ-ÿ]))"
    # Vietnamese: three bytes a letter, the second of which has two possible values.
    f"|á[º»](?:[{_NO_MARKS}\xa0-\xbf€‚„†‡•™]|[…–—‘’“”‹›](?=[a-z]))"
    # Cyrillic, Greek, Arabic, Hebrew: two bytes a letter, three such letters in a row.
    f"|(?:[ÐÑÎÏØÙÚÛ×][{_WEST}]){{3}}|(?:[РС][{_EAST}]){{3}}"
    # East Asian, Thai and Indic scripts: three bytes a letter, two such letters in a row.
    f"|(?:[à-ï][{_WEST}][{_WEST}]){{2}}"
)
# A fast first test: every match of _MOJIBAKE begins like this, and hardly any other text has it.
_SUSPECT = re.compile(f"[ÂÃÄÅÆÐÑÎÏØÙÚÛ×РСà-ï][{_WEST}{_EAST}]")


def oddities(text: str) -> list[str]:
    """Return the harmless oddities of a line, as keys of `report.DataReport.notes`."""
    characters = set(ODD.findall(text)) if not text.isprintable() else set()
    return ["bom_inside"] * ("\ufeff" in characters) + ["control"] * bool(characters - {"\ufeff"})


def has_control(text: str) -> bool:
    """Return whether the text has a character that no good text has: NUL, escape, U+FFFF and the like."""
    return not text.isprintable() and _CONTROL.search(text) is not None


def is_damaged(text: str) -> bool:
    """Return whether characters were lost (U+FFFD) or UTF-8 was read as Latin-1, windows-1252 or windows-1251."""
    return not text.isascii() and ("\ufffd" in text or bool(_SUSPECT.search(text) and _MOJIBAKE.search(text)))


_NO_ASCII_LETTER = bytes(code for code in range(256) if not chr(code).isalpha() or code > 127)
_ROW = re.compile(r"([\W_])\1+")
_SHORT_TEXT = 20


def is_mostly_symbols(text: str, max_share: float) -> bool:
    """Return whether digits, punctuation and symbols are more than max_share of a text of 20 characters or more.

    White space does not count. Vowel signs and other marks count as letters, a row of equal symbols as one symbol.
    """
    min_share, n_char = 1 - max_share, len(text)
    if n_char < _SHORT_TEXT or len(text.encode("utf-8").translate(None, _NO_ASCII_LETTER)) >= min_share * n_char:
        return False
    characters = "".join(text.split())
    if len(characters) < _SHORT_TEXT or len(LETTER.findall(characters)) >= min_share * len(characters):
        return False
    characters = _ROW.sub(r"\1", characters)
    n_letter = sum(unicodedata.category(character)[0] in "LM" for character in characters)
    return n_letter < min_share * len(characters)


_GRAM, _STRIDE, _REACH, _LONG_RUN = 4, 32, 64, 48


def repeats_itself(text: str, most: int) -> bool:
    """Return whether a piece of the text occurs more than `most` times in a row: a letter, a word, some words.

    A run must have 48 bytes of UTF-8 or more, and a piece at most 64. Runs without letters, as in forms and tables of
    contents, do not count.
    """
    raw = text.encode("utf-8")
    # Every run of 48 bytes contains one of these places and the 17 bytes from there on, in which the same four bytes
    # recur after a period of up to 12. In the same way, four longer periods contain a place and one period.
    searched_to = 0  # no run with letters begins before this place
    for place in range(0, len(raw) - _LONG_RUN + _STRIDE, _STRIDE):
        if place < searched_to:
            continue
        gram = raw[place : place + _GRAM]
        after = raw.find(gram, place + 1, place + _REACH + _GRAM)
        while after >= 0:
            # The longest stretch around the place in which each byte equals the byte one period before.
            period, start, end = after - place, place, after
            while end < len(raw) and raw[end] == raw[end - period]:
                end += 1
            while start > 0 and raw[start - 1] == raw[start - 1 + period]:
                start -= 1
            if end - start >= max(_LONG_RUN, (most + 1) * period):
                if any(map(str.isalpha, raw[start:end].decode("utf-8", "ignore"))):
                    return True
                # A run with letters has a letter in each piece, so it overlaps this run by less than a piece. Without
                # the skip, a long row of dots would be searched from each of its places.
                searched_to = end - _REACH
                break
            after = raw.find(gram, after + 1, place + _REACH + _GRAM)
    return False


# Selection by the recipe.
Drops = Callable[[str, str], bool]  # of source and target


class CorpusFacts(NamedTuple):
    """Properties of a corpus that filters depend on: options, limit of subwords, languages, and usual length ratio."""

    config: FilterConfig
    max_len: int
    languages: tuple[str, str]
    usual: UsualRatio | None = None


Make = Callable[[CorpusFacts, Any], Drops | None]  # None: the corpus does not need the filter


def _on_either_side(is_bad: Callable[[str, Any], bool]) -> Make:
    """Return the factory of a filter that drops a pair if either text is bad."""
    return lambda _, bound: lambda src, trg: is_bad(src, bound) or is_bad(trg, bound)


def _of_length(corpus: CorpusFacts, _: Any) -> Drops:
    limit = corpus.max_len * LONGEST_PIECE  # bytes; a longer text need not be encoded
    return lambda *pair: 4 * max(map(len, pair)) > limit and max(len(text.encode("utf-8")) for text in pair) > limit


def _of_ratio(corpus: CorpusFacts, _: float) -> Drops | None:
    usual = corpus.usual
    return usual and (lambda src, trg: is_unusual(len(src), len(trg), usual))


def _of_script(corpus: CorpusFacts, share: float) -> Drops:
    src_ok, trg_ok = map(scripts_of, corpus.languages)  # no scripts: any is accepted
    return lambda src, trg: is_in_another_script(src, src_ok, share) or is_in_another_script(trg, trg_ok, share)


def _of_language(corpus: CorpusFacts, limit: float) -> Drops:
    src_ok, trg_ok = map(languages_like, corpus.languages)
    return lambda src, trg: is_in_another_language(src, src_ok, limit) or is_in_another_language(trg, trg_ok, limit)


BAD_UTF8, BAD_RECORD, TOO_LONG, SCRIPT = "bad UTF-8", "bad record", "too long", "another script"
LOW_SCORE = "low score"
HELD_OUT = "held out"  # for validation, or similar to a held-out pair

# All reasons to drop a pair, in the order of the filters, cheap ones first. A pair is counted under the first one. Each
# has its option in `data`, of which False or 0 turns it off, and the factory of a filter on text, called with a corpus
# and the option's value; None for other filters. A new one needs a row here and an option in `FilterConfig`.
FILTERS: list[tuple[str, str, Make | None]] = [
    (BAD_UTF8, "", None),
    (BAD_RECORD, "", None),
    (LOW_SCORE, "train.min_score or best_share", None),
    ("empty side", "", lambda *_: lambda src, trg: not src.strip() or not trg.strip()),
    ("identical sides", "drop_identical", lambda *_: lambda src, trg: src.strip() == trg.strip()),
    (TOO_LONG, "max_len", _of_length),
    ("length ratio", "max_ratio", _of_ratio),
    ("control characters", "drop_control", _on_either_side(lambda text, _: has_control(text))),
    ("damaged text", "drop_damaged", _on_either_side(lambda text, _: is_damaged(text))),
    (SCRIPT, "min_script", _of_script),
    ("mostly symbols", "max_symbols", _on_either_side(is_mostly_symbols)),
    ("repeats itself", "max_repeats", _on_either_side(repeats_itself)),
    ("another language", "max_other_language", _of_language),
    (HELD_OUT, "", None),
    *((reason, option, None) for reason, option in KINDS.values()),
    (TRANSLATIONS, "max_translations", None),
]
OPTIONS = {reason: option for reason, option, _ in FILTERS if option}
REASONS = [reason for reason, _, _ in FILTERS]
# Codes of reasons: their positions in REASONS, from 1.
KEPT = 0
CODES = {reason: n for n, reason in enumerate(REASONS, start=1)}


def filters_of(corpus: CorpusFacts) -> list[tuple[str, Drops]]:
    """Return the active filters on text of a corpus, each with its reason."""
    values = ((reason, make, getattr(corpus.config, option, True)) for reason, option, make in FILTERS if make)
    return [(reason, drops) for reason, make, value in values if value and (drops := make(corpus, value))]


def reason_to_drop(src: str, trg: str, filters: Iterable[tuple[str, Drops]]) -> str | None:
    """Return the reason of the first filter that rejects a pair, None if it is kept."""
    return next((reason for reason, drops in filters if drops(src, trg)), None)
