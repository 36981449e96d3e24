"""White space and invisible characters: what of them a model reads, and what is put back round its translation."""

import re

_SPACES = "\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"  # as str.isspace
# Byte order mark, soft hyphen, zero-width space, word joiner, invisible operators, marks of direction.
_UNSEEN = "\xad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff"
_JOINERS = "\u200c\u200d"
# Scripts in which joiners change what is seen, from Arabic to Mongolian, and emoji with what belongs to them.
_JOINED = (
    "\u0600-\u07ff\u0840-\u085f\u0860-\u0dff\u1000-\u109f\u1780-\u18af\u1900-\u1cff\ua800-\ua8ff\ua930-\uaadf\uabc0-\uabff"
    "\ufb50-\ufdff\ufe70-\ufefc\U00010a00-\U00010fff\U00011000-\U00011fff\U0001e900-\U0001e95f"
    "\u20e3\u2190-\u2bff\u3030\u303d\u3297\u3299\ufe0f\U0001f000-\U0001faff\U000e0020-\U000e007f"
)
# After a virama a joiner tells the form of the letter before it, so also at the end of a word.
_VIRAMAS = "\u094d\u09cd\u0a4d\u0acd\u0b4d\u0bcd\u0c4d\u0ccd\u0d4d\u0dca\u1039\u103a\u17d2"

# Expressions that Python and the tokenizers library understand alike: what goes, and what becomes one space.
DROPPED = "|".join(
    [
        f"[{_UNSEEN}]+",
        f"(?<![{_JOINED}{_JOINERS}])[{_JOINERS}]+",
        f"(?<![{_VIRAMAS}{_JOINERS}])[{_JOINERS}]+(?![{_JOINED}{_JOINERS}])",
    ]
)
SPACES = f"[{_SPACES}]+"
_DROPPED = re.compile(DROPPED)
_NO_LINE_ENDS = dict.fromkeys(map(ord, "\n\r"))


def unified(text: str) -> str:
    """A text with single spaces for runs of white space, none at its ends, and without what cannot be seen."""
    return " ".join((text if text.isascii() else _DROPPED.sub("", text)).split())


def with_ends_of(source: str, text: str) -> str:
    """A translation with the white space at the ends of its source; line ends are no part of a line."""
    if not (bare := source.strip()):
        return text
    before, _, after = source.partition(bare)
    return before.translate(_NO_LINE_ENDS) + text + after.translate(_NO_LINE_ENDS)
