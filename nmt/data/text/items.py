"""Items of a text that mean the same in any language and are written alike: addresses, numbers, tags, emoji.

Where they are, and nothing of what becomes of them. Every pattern takes time that grows with the text alone.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from nmt.recipe.protect_options import KINDS, PATTERN, Kind, patterns_of

# Letters of scripts that are written with spaces: one that touches a number makes it part of something else.
_LETTER = "0-9A-Z_a-z\u00c0-\u1fff"
# Quotes, and the marks and letters of scripts without spaces, in which a URL ends where they begin.
_NOT_IN_URL = '\\s<>"«»“”„‘’\u3000-\u30ff\u3400-\u9fff\uac00-\ud7ff\uff00-\uffef'
_UNITS = (
    *("km/h", "m/s", "kWh", "MWh", "GWh", "kbit/s", "Mbit/s", "Gbit/s", "km²", "cm²", "mm²", "m²", "cm³", "m³"),
    *("kHz", "MHz", "GHz", "Hz", "hPa", "kPa", "MPa", "kV", "mV", "mA", "kW", "MW", "GW", "kB", "KB", "MB", "GB", "TB"),
    *("km", "cm", "mm", "µm", "μm", "nm", "kg", "mg", "µg", "μg", "ml", "cl", "ha", "dB", "px", "min", "ms"),
    *("m", "g", "t", "l", "s", "h", "V", "W", "A"),
)
_SPACE = " \u00a0\u202f"
# Digits alone: marks of decimals and of thousands are those of a language.
_NUMBER = (
    rf"(?<![{_LETTER}.,'’:])(?<![0-9][{_SPACE}])[0-9]+(?![.,'’:{_SPACE}]?[0-9])"
    rf"(?:[{_SPACE}]?(?:{'|'.join(_UNITS)})(?![{_LETTER}²³/]))?(?![{_LETTER}])"
)
# Domains by which an address without a protocol is known, in small letters: a sentence after a full stop has capitals.
_DOMAINS = (
    "com|org|net|info|biz|edu|gov|mil|int|io|app|dev|ai|eu|uk|us|de|at|ch|fr|es|pt|nl|be|lu|ie|ca|au|nz|in|cn|jp|kr|tw|hk|"
    "sg|th|vn|br|mx|ar|cl|ru|ua|pl|cz|sk|hu|ro|bg|gr|tr|il|ir|sa|ae|eg|za|ng|ke|se|no|dk|fi|ee|lv|lt|hr|rs"
)
_FACE = "[\u203c\u2049\u2600-\u27bf\u2b50\u2b55\U0001f300-\U0001faff][\ufe0f\U0001f3fb-\U0001f3ff]{0,2}"
PATTERNS: dict[Kind, str] = {
    "tag": r"</?[A-Za-z][A-Za-z0-9:._-]{0,60}(?:\s[^<>]{0,500})?/?>",
    "url": rf"(?:https?|ftp)://[^{_NOT_IN_URL}]*[^{_NOT_IN_URL}.,;:!?)']",
    "email": r"(?<![A-Za-z0-9.+-])[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){0,8}\.[A-Za-z]{2,24}",
    "number": _NUMBER,
    "host": rf"(?<![\w@.-])(?:www(?:\.[A-Za-z0-9-]{{1,63}}){{1,7}}|(?:[A-Za-z0-9-]{{2,63}}\.){{1,6}}(?:{_DOMAINS})"
    rf"(?![\w-]|\.[A-Za-z]))(?:[/?#](?:[^{_NOT_IN_URL}]{{0,500}}[^{_NOT_IN_URL}.,;:!?)'])?)?",
    "mention": r"(?<![\w@#&/])[@#][^\W\d]\w{0,60}",
    "path": r"(?<![\w./~\\:<-])(?:(?:~|\.{1,2})?/(?:[\w.-]{1,80}/){1,20}[\w.-]{0,79}\w"
    r"|[A-Za-z]:\\(?:[\w.-]{1,80}\\){0,20}[\w.-]{0,79}\w)",
    "emoji": f"[\U0001f1e6-\U0001f1ff]{{2}}|{_FACE}(?:\u200d{_FACE}){{0,6}}",
}


class Item(NamedTuple):
    """An item and where it stands in its text."""

    kind: str
    text: str
    start: int
    end: int


def items_in(text: str, kinds: Sequence[str]) -> Iterator[Item]:
    """The items of some kinds, from left to right; none overlaps another: what a tag contains is part of the tag.

    kinds: of data.protect, patterns among them, which win over kinds where both match.
    """
    for match in _pattern(tuple(kinds)).finditer(text) if kinds else ():
        yield Item(match.lastgroup or PATTERN, match.group(), match.start(), match.end())


@lru_cache
def _pattern(kinds: tuple[str, ...]) -> re.Pattern[str]:
    own = "|".join(f"(?:{pattern[1:-1]})" for pattern in patterns_of(kinds))
    found = [f"(?P<{PATTERN}>{own})"] * bool(own)
    return re.compile("|".join([*found, *(f"(?P<{kind}>{PATTERNS[kind]})" for kind in KINDS if kind in kinds)]))
