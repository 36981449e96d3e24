"""Text that no model has to read: lines without a letter, and emoji at the ends of a line. Pure functions of text."""

import re
import unicodedata

from nmt.languages import language_of

_EMOJI = re.compile(
    "[\u2600-\u26ff\u2700-\u2757\u2763-\u27bf\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\U0001f1e6-\U0001faff]"
)
_WITH_EMOJI = "\u200d\ufe0f\ufe0e"  # joiner and variation selectors
# Languages whose numbers are usually in digits of their own (CLDR, default numbering systems).
_OWN_DIGITS = frozenset(
    ["ar", "as", "bn", "ckb", "dz", "fa", "ks", "lrc", "mni", "mr", "my", "mzn", "ne", "ps", "sa", "sat", "sd", "ug"]
)


def is_letterless(text: str, src_lang: str, trg_lang: str) -> bool:
    """Return whether a text is copied: it has no letter, and digits only where both languages write them like that."""
    if any(unicodedata.category(one)[0] in "LM" and one not in _WITH_EMOJI for one in text):
        return False
    if not any(one.isnumeric() for one in text):
        return True
    both = [language_of(code) for code in (src_lang, trg_lang)]
    if any(not one.scripts or one.primary in _OWN_DIGITS for one in both):  # made-up languages have numbers of any kind
        return False
    return all(one.isascii() for one in text if one.isdecimal())


def emoji_at_ends(text: str) -> tuple[str, str, str]:
    """The emoji that a text begins with, what is between, and those that it ends with, with white space beside them."""
    start, end = 0, len(text)
    while start < end and (text[start].isspace() or _is_emoji(text[start])):
        start += 1
    while end > start and (text[end - 1].isspace() or _is_emoji(text[end - 1])):
        end -= 1
    before, after = text[:start], text[end:]
    start = start if _EMOJI.search(before) else 0
    end = end if _EMOJI.search(after) else len(text)
    return text[:start], text[start:end], text[end:]


def _is_emoji(character: str) -> bool:
    return character in _WITH_EMOJI or _EMOJI.match(character) is not None
