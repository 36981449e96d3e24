"""Text as the scripts of Moses leave it: characters as entities (&apos;), hyphens as @-@, punctuation set apart.

It is measured in counts, and undone where it is plain what stood there before.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

_ENTITIES = {
    "&#124;": "|",
    "&lt;": "<",
    "&gt;": ">",
    "&apos;": "'",
    "&#39;": "'",
    "&quot;": '"',
    "&#91;": "[",
    "&#93;": "]",
    "&amp;": "&",
}
_ENTITY = re.compile("|".join(_ENTITIES))
_ENTITY_BYTES = tuple(entity.encode() for entity in _ENTITIES)
_CLITIC = re.compile(r"(?<=[^\W\d_]) '(?=(?:s|t|re|ve|d|ll|m)\b)", re.IGNORECASE)
_ELISION = re.compile(r"\b([cdjlmnst]|qu)' (?=[^\W\d_])", re.IGNORECASE)
_ELIDING = ("fr", "it", "ca")
_LEFT, _LEFT_BUT_FRENCH, _RIGHT = re.compile(r" (?=[.,)\]])"), re.compile(r" (?=[;:!?])"), re.compile(r"(?<=[(\[]) ")
_QUOTED = re.compile(r'" ([^"]*?) "')


class Dress(NamedTuple):
    """Counts of some lines. ends: lines that end in a full stop; apart: those of them with a space before it."""

    lines: int = 0
    entities: int = 0
    ends: int = 0
    apart: int = 0

    def plus(self, other: "Dress") -> "Dress":
        """The counts of both together."""
        return Dress(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def is_escaped(self) -> bool:
        """More than one entity in a hundred lines."""
        return self.entities > max(1, 0.01 * self.lines)

    @property
    def is_apart(self) -> bool:
        """Most full stops at the ends of lines have a space before them."""
        return self.ends >= _FEWEST_ENDS and self.apart > self.ends / 2

    def differs(self, other: "Dress") -> bool:
        """One of both is dressed by Moses, the other not at all."""
        escaped = self.is_escaped != other.is_escaped and 0 in (self.entities, other.entities)
        many = min(self.ends, other.ends) >= _FEWEST_ENDS
        apart = many and self.is_apart != other.is_apart and min(self.apart / self.ends, other.apart / other.ends) < 0.1
        return escaped or apart


_FEWEST_ENDS = 10


def dress_of(text: bytes) -> Dress:
    """The counts of lines, each ended by a line feed."""
    entities = sum(map(text.count, _ENTITY_BYTES)) + text.count(b" @-@ ") if b"&" in text or b"@" in text else 0
    return Dress(text.count(b"\n"), entities, text.count(b".\n"), text.count(b" .\n"))


def dress_of_lines(lines: Iterable[str]) -> Dress:
    """The counts of some lines."""
    return dress_of("".join(f"{line}\n" for line in lines).encode("utf-8"))


def undone(line: str, language: str) -> str:
    """A line as it was before the scripts of Moses, as far as that is plain. language: its code."""
    line = _ENTITY.sub(lambda found: _ENTITIES[found[0]], line).replace(" @-@ ", "-")
    line = _CLITIC.sub("'", line)
    if language in _ELIDING:
        line = _ELISION.sub(r"\1'", line)
    line = _RIGHT.sub("", _LEFT.sub("", line))
    if language != "fr":
        line = _LEFT_BUT_FRENCH.sub("", line)
    return _QUOTED.sub(r'"\1"', line) if line.count('"') % 2 == 0 else line
