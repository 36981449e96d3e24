"""Which training pairs are worth learning from, told by their text.

Decisions only: no files, no counts. Validation and test pairs are never filtered.
"""

import hashlib
import re

from nmt.data.subwords import LONGEST_PIECE
from nmt.recipe.data_options import DataConfig

BAD_UTF8 = "bad UTF-8"
BAD_RECORD = "bad record"
EMPTY = "empty side"
IDENTICAL = "identical sides"
TOO_LONG = "too long"
RATIO = "length ratio"
DUPLICATE = "duplicate"
REASONS = (BAD_UTF8, BAD_RECORD, EMPTY, IDENTICAL, TOO_LONG, RATIO, DUPLICATE)

# Under so many bytes on both sides a ratio says little: "Yes." may well take six words elsewhere.
SHORT = 40

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
    """What is odd about a line and harmless to us, as keys of `report.DataReport.notes`."""
    if text.isprintable():
        return ()
    found = []
    if "\ufeff" in text:
        found.append("bom_inside")
    if _LINE_BREAKER.search(text):
        found.append("control")
    return tuple(found)
