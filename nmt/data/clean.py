"""Which training pairs are worth learning from, and the account of those that are not.

Decisions on text only: no files. Validation and test pairs are never filtered.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nmt.data.subwords import LONGEST_PIECE
from nmt.recipe.options import DataConfig

BAD_UTF8 = "bad UTF-8"
EMPTY = "empty side"
IDENTICAL = "identical sides"
TOO_LONG = "too long"
RATIO = "length ratio"
DUPLICATE = "duplicate"
REASONS = (BAD_UTF8, EMPTY, IDENTICAL, TOO_LONG, RATIO, DUPLICATE)

# Under so many bytes on both sides a ratio says little: "Yes." may well take six words elsewhere.
SHORT = 40
N_SHOWN = 5

_LINE_BREAKER = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def reason_to_drop(src: str | None, trg: str | None, config: DataConfig) -> str | None:
    """Why a pair is not for training, as far as its text tells; None is a side that was not UTF-8."""
    if src is None or trg is None:
        return BAD_UTF8
    if not src.strip() or not trg.strip():
        return EMPTY
    if config.drop_identical and src.strip() == trg.strip():
        return IDENTICAL
    n_src, n_trg = len(src.encode("utf-8")), len(trg.encode("utf-8"))
    if max(n_src, n_trg) > most_bytes(config.max_len):
        return TOO_LONG
    if max(n_src, n_trg) >= SHORT and max(n_src, n_trg) > config.max_ratio * min(n_src, n_trg):
        return RATIO
    return None


def most_bytes(max_len: int) -> int:
    """A text with more bytes has more than max_len subwords for certain, and need not be encoded to know."""
    return max_len * LONGEST_PIECE


class Seen:
    """Remembers pairs by a hash of 128 bits, so that a second one can be told."""

    def __init__(self) -> None:
        self._hashes: set[bytes] = set()

    def has(self, src: str, trg: str) -> bool:
        """Whether the pair came before; from now on it did."""
        digest = hashlib.blake2b(f"{src}\n{trg}".encode(), digest_size=16).digest()
        before = len(self._hashes)
        self._hashes.add(digest)
        return len(self._hashes) == before


def oddities(text: str) -> tuple[str, ...]:
    """What is odd about a line and harmless to us, as keys of `DataReport.notes`."""
    if text.isprintable():
        return ()
    found = []
    if "\ufeff" in text:
        found.append("bom_inside")
    if _LINE_BREAKER.search(text):
        found.append("control")
    return tuple(found)


@dataclass
class DataReport:
    """What became of the training pairs, line by line accountable."""

    n_read: int = 0
    n_kept: int = 0
    n_leaked: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    first: dict[str, list[str]] = field(default_factory=dict)
    notes: Counter[str] = field(default_factory=Counter)

    def drop(self, reason: str, place: str) -> None:
        """Count a pair that is not kept. place: file and line, of which the first few are remembered."""
        self.dropped[reason] += 1
        places = self.first.setdefault(reason, [])
        if len(places) < N_SHOWN:
            places.append(place)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "read": self.n_read,
            "kept": self.n_kept,
            "dropped": {
                reason: {"count": self.dropped[reason], "first": self.first[reason]}
                for reason in REASONS
                if self.dropped[reason]
            },
            "source_in_valid_or_test": self.n_leaked,
            "notes": {key: self.notes[key] for key in sorted(self.notes)},
        }

    def table(self) -> list[str]:
        """For people: a line on the whole, one for each reason, one for each note."""
        n_dropped = sum(self.dropped.values())
        lines = [f"training pairs: {self.n_read:,} read, {n_dropped:,} dropped, {self.n_kept:,} kept"]
        for reason in REASONS:
            if self.dropped[reason]:
                lines.append(f"  {self.dropped[reason]:>9,}  {reason:<15}  {_shortened(self.first[reason])}")
        lines += [f"  note: {_NOTES[key].format(n=f'{self.notes[key]:,}')}" for key in _NOTES if self.notes[key]]
        if self.n_leaked:
            lines.append(
                f"  warning: training pairs whose source occurs in the validation or test files too: {self.n_leaked:,} "
                "(scores on such lines flatter the model)"
            )
        return lines


_NOTES = {
    "crlf": "{n} lines ended with a carriage return, which was removed",
    "bom": "{n} files began with a byte order mark, which was removed",
    "bom_inside": "{n} lines have a byte order mark inside (files put together?), which was kept",
    "control": "{n} lines have control characters or Unicode line breaks inside, which were kept",
}


def _shortened(places: Iterable[str]) -> str:
    """`a.de:3, a.de:8` with the file named once: `a.de:3, 8`."""
    shown: list[str] = []
    last = None
    for place in places:
        file, _, line = place.rpartition(":")
        shown.append(line if file == last else place)
        last = file
    return ", ".join(shown)
