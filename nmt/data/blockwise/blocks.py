"""A corpus in blocks of some thousand pairs, which is how the work on it is shared out.

Text files are only cut at line feeds here, both sides at the same lines; whoever works on a block makes text of the
bytes. What is in other files, or in none, is read here, and a block of it holds the texts.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from nmt.data.reading.fields import Flaw, Found, Reading
from nmt.data.reading.sources import Source, Text
from nmt.data.text.lines import open_text
from nmt.errors import DataError

N_PAIR = 10_000
# Bytes of one side at which a block ends before it has so many pairs. A single line may be longer.
_MOST_BYTES = 1 << 22
_CHUNK = 1 << 20


def blocks_of(source: Source, reading: Reading) -> Iterator[dict[str, Any]]:
    """Cut a source into blocks: `first`, the number of their first line; `n_pair`; and their text, bytes or lines."""
    if _is_plain(source.src) and _is_plain(source.trg):
        yield from _cut(source, reading.longest)
        return
    pairs, first = source.pairs(reading), source.first_number
    while block := list(itertools.islice(pairs, N_PAIR)):
        sides = [[_text(found) for found in side] for side in zip(*block, strict=True)]
        flaws = [(n, flaw.reason) for n, pair in enumerate(block) for flaw in pair if isinstance(flaw, Flaw)]
        yield {
            "first": first,
            "n_pair": len(block),
            "src_lines": "\n".join(sides[0]).encode("utf-8"),
            "trg_lines": "\n".join(sides[1]).encode("utf-8"),
            "bad": [n for n, pair in enumerate(block) if None in pair],
            "flaws": flaws,
        }
        first += len(block)


def _is_plain(text: Text) -> bool:
    return text.form == "text" and isinstance(text.place, Path) and text.moses is None


def _text(found: Found) -> str:
    return found if isinstance(found, str) else ""


def _cut(source: Source, longest: int) -> Iterator[dict[str, Any]]:
    assert isinstance(source.src.place, Path) and isinstance(source.trg.place, Path)
    with open_text(source.src.place) as src_file, open_text(source.trg.place) as trg_file:
        src, trg = _Ahead(src_file, longest), _Ahead(trg_file, longest)
        first = source.first_number
        while True:
            ready = src.fill(), trg.fill()
            n_pair = min(ready)
            if not n_pair:
                break
            yield {"first": first, "n_pair": n_pair, "src_raw": src.take(n_pair), "trg_raw": trg.take(n_pair)}
            first += n_pair
        if any(ready):
            raise DataError(f"{source.src.name} or {source.trg.name} changed while it was read.")


class _Ahead:
    """The next lines of a file, as bytes."""

    def __init__(self, file: BinaryIO, longest: int) -> None:
        """longest: bytes of a line that are kept, at least, and of an endless one at most that and a chunk."""
        self._file, self._longest = file, longest
        self._raw, self._ends = b"", np.empty(0, np.int64)  # where each whole line in it ends, its line feed included
        self._at_end = False

    def fill(self) -> int:
        """Read until there are lines for a block; return how many a block may have."""
        while not self._at_end and len(self._ends) < N_PAIR and (not len(self._ends) or self._ends[-1] < _MOST_BYTES):
            self._add(self._file.read(_CHUNK))
        few = int(np.searchsorted(self._ends, _MOST_BYTES, side="right"))
        return min(len(self._ends), N_PAIR, max(few, 1))

    def take(self, n: int) -> bytes:
        """The first n lines, each ended by a line feed."""
        stop = int(self._ends[n - 1])
        taken, self._raw = self._raw[:stop], self._raw[stop:]
        self._ends = self._ends[n:] - stop
        return taken

    def _add(self, chunk: bytes) -> None:
        if not chunk:
            self._at_end = True
            whole = int(self._ends[-1]) if len(self._ends) else 0
            if len(self._raw) > whole:
                self._raw += b"\n"
                self._ends = np.append(self._ends, len(self._raw))
            return
        start = len(self._raw)
        self._raw += chunk
        ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n")) + start + 1
        self._ends = np.concatenate([self._ends, ends])
        whole = int(self._ends[-1]) if len(self._ends) else 0
        self._raw = self._raw[: whole + self._longest]  # more of a line is not wanted, and will be cut off
