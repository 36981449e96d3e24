"""Content of one field of a line or row: a text, or why there is none, and how it becomes a line."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from nmt.data.filters.clean import BAD_RECORD
from nmt.errors import DataError

Column = int | str  # its number from 1, or its name
Policy = Literal["refuse", "drop"]


@dataclass(frozen=True)
class Flaw:
    """Stands where a text is due. reason: one of `clean.REASONS`; what: the same of this very place, for a message."""

    reason: str
    what: str


# None: it is not UTF-8, and data.bad_utf8 says drop.
Found = str | Flaw | None


def shown(names: Iterable[str]) -> str:
    """Some names, for a message."""
    first = [name if len(name) <= 30 else f"{name[:27]}..." for name in itertools.islice(names, 13)]
    return ", ".join(map(repr, first[:12])) + (", ..." if len(first) > 12 else "")


def _nothing(_: int) -> None:
    """The default for `joined`: ignore it."""


@dataclass(frozen=True)
class Reading:
    """Policy of reading. longest: bytes of a text that are wanted; a longer one may come out cut, but not shorter than
    `longest - 4`. notes: counts what is odd but harmless; joined: gets the number of a line or row whose text had line
    feeds.
    """

    bad_utf8: Policy
    bad_records: Policy
    longest: int
    notes: Counter[str] = field(default_factory=Counter)
    joined: Callable[[int], None] = _nothing

    def settle(self, found: Found, name: object, number: int) -> Found:
        """Return what was found in a line or row of a file or dataset, unless it is to be refused."""
        if isinstance(found, Flaw) and found.reason == BAD_RECORD and self.bad_records == "refuse":
            raise DataError(
                f"{name}:{number}: {found.what}. Expected text there: mend the file; pairs of training corpora can be "
                "dropped and counted instead: data.bad_records: drop."
            )
        return found

    def one_line(self, text: str, number: int) -> str:
        """A text as a line: pieces between line feeds, put together by spaces; those at the ends go without."""
        if "\n" not in text:
            return text
        self.joined(number)
        return " ".join(piece for line in text.split("\n") if (piece := line.removesuffix("\r")))

    def decode(self, raw: bytes, name: object, number: int) -> str | None:
        """The text of some bytes, of which at most `longest` are looked at."""
        cut = len(raw) > self.longest
        raw = raw[: self.longest]
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            if cut and error.start >= len(raw) - 4:
                return raw[: error.start].decode("utf-8")  # cut inside a character: that is our doing
            if self.bad_utf8 == "drop":
                return None
            raise DataError(
                f"{name}:{number}: invalid UTF-8 at byte {error.start + 1} of the text (0x{raw[error.start]:02X}). "
                "Write the file again in UTF-8; pairs of training corpora can be dropped instead: data.bad_utf8: drop."
            ) from None
