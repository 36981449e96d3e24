"""Damage to a text that its letters show: control characters, U+FFFD, bytes that were read as another encoding, a piece
that is written over and over, hardly any letters.

Each function looks at one side of a pair and says yes or no. In doubt it says no.
"""

import re
import unicodedata

# Tab, line breaks of all kinds and the marks of direction are in good texts, too, and so are U+0080 to U+009F, which
# the quotes and dashes of windows-1252 become when it is taken for Latin-1.
CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0e-\x1f\x7f\ufdd0-\ufdef\ufffe\uffff]")

# What the bytes 80 to BF are in windows-1252, and in windows-1251.
_WEST = "\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
_EAST = "ЂЃ‚ѓ„…†‡€‰Љ‹ЊЌЋЏђ‘’“”•–—\x98™љ›њќћџ\xa0ЎўЈ¤Ґ¦§Ё©Є«¬\xad®Ї°±Ііґµ¶·ё№є»јЅѕї"
_MOJIBAKE = re.compile(
    # é as Ã©, German quotes and the apostrophe as â€ and a third character, ™ as â„¢.
    "[ÂÃ][\x80-\x9f\xa1-\xa9\xab-\xb9\xbc-\xbeƒˆ‰Š‹ŒŽœžŸ€™š]|â€|â\x80|â„¢"
    # What stands after a word in capitals, IRMÃ” or AMANHÃ», is no damage there.
    f"|(?<![A-ZÀ-Þ])[ÂÃ][{_WEST}]"
    # Cyrillic, Greek, Arabic, Hebrew: two bytes a letter, one such letter after the other.
    f"|(?:[ÐÑÎÏØÙÚÛ×][{_WEST}]){{3}}|(?:[РС][{_EAST}]){{3}}"
    # East Asian scripts, Thai and those of India: three bytes a letter.
    f"|(?:[à-ï][{_WEST}][{_WEST}]){{2}}"
)

# All of these begin so, and hardly anything else does: a pattern of two sets is a fast one.
SUSPECT = re.compile(f"[ÂÃÐÑÎÏØÙÚÛ×РСà-ï][{_WEST}{_EAST}]")

_NO_ASCII_LETTER = bytes(code for code in range(256) if not chr(code).isalpha() or code > 127)
_LETTER = re.compile(r"[^\W\d_]")
_ROW = re.compile(r"([\W_])\1+")
SHORT_TEXT = 20

_GRAM, _STRIDE, _REACH, LONG_RUN = 4, 32, 64, 48


def has_control(text: str) -> bool:
    """Whether there is a character in it that no text has: NUL, escape, U+FFFF and the like."""
    return not text.isprintable() and CONTROL_CHARACTERS.search(text) is not None


def is_damaged(text: str) -> bool:
    """Whether characters were lost (U+FFFD) or UTF-8 was read as Latin-1, windows-1252 or windows-1251."""
    if text.isascii():
        return False
    return "\ufffd" in text or (SUSPECT.search(text) is not None and _MOJIBAKE.search(text) is not None)


def is_mostly_symbols(text: str, max_share: float) -> bool:
    """Whether digits, punctuation and symbols are more than max_share of a text of 20 characters or more.

    White space does not count; vowel signs and other marks count as letters, a row of dots or dashes as one of them.
    """
    least, n_char = 1 - max_share, len(text)
    if n_char < SHORT_TEXT or len(text.encode("utf-8").translate(None, _NO_ASCII_LETTER)) >= least * n_char:
        return False
    characters = "".join(text.split())
    if len(characters) < SHORT_TEXT or len(_LETTER.findall(characters)) >= least * len(characters):
        return False
    characters = _ROW.sub(r"\1", characters)
    n_letter = sum(unicodedata.category(character)[0] in "LM" for character in characters)
    return n_letter < least * len(characters)


def repeats_itself(text: str, most: int) -> bool:
    """Whether a piece of the text stands more than `most` times in a row: a letter, a word, some words.

    Such a run has 48 bytes of UTF-8 or more, and a piece up to 64; runs without letters, as in forms and tables of
    contents, do not count.
    """
    raw = text.encode("utf-8")
    # A run of 48 bytes, wherever it begins, holds one of these places and 17 bytes from there on, in which the same
    # four bytes come again after a period of 12. Four longer periods hold a place and a period in the same way.
    known = 0  # up to here nothing begins that repeats itself and has letters
    for place in range(0, len(raw) - LONG_RUN + _STRIDE, _STRIDE):
        if place < known:
            continue
        gram = raw[place : place + _GRAM]
        after = raw.find(gram, place + 1, place + _REACH + _GRAM)
        while after >= 0:
            period = after - place
            start, end = run_around(raw, place, period)
            if end - start >= long_run(period, most):
                run = raw[start:end].decode("utf-8", "ignore")
                if any(map(str.isalpha, run)):
                    return True
                # A run with letters has one in each piece: it shares less than a piece with this one. Without this, a
                # long row of dots would be looked at from each of its places.
                known = end - _REACH
                break
            after = raw.find(gram, after + 1, place + _REACH + _GRAM)
    return False


def long_run(period: int, most: int) -> int:
    """Bytes from which on a run of such a period is too long. most: times that a piece may stand in a row."""
    return max(LONG_RUN, (most + 1) * period)


def run_around(raw: bytes, place: int, period: int) -> tuple[int, int]:
    """The longest stretch around `place` in which every byte is that of one period before: [start, end)."""
    start, end = place, place + period
    while end < len(raw) and raw[end] == raw[end - period]:
        end += 1
    while start > 0 and raw[start - 1] == raw[start - 1 + period]:
        start -= 1
    return start, end
