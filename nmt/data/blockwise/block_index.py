"""Which blocks a source has, told without their text, and how whoever works on a block reads it where it lies.

Several machines agree on the blocks of a source by the index that one of them made. A text file that is not compressed
is read only where a block is; anything else from its beginning, past the blocks of others. A block that has other bytes
here than there is refused.
"""

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.blockwise.blocks import block_at, blocks_of, cut_lines, is_text
from nmt.data.filters.ratio import UsualRatio
from nmt.data.reading.fields import Reading
from nmt.data.reading.sources import Source
from nmt.data.reporting.duplicates import N_NOTED
from nmt.data.text.compression import kind_of
from nmt.data.text.lines import open_text
from nmt.errors import DataError

# 40 bytes for each block: `digest` of its text.
ENTRY = np.dtype([("first", "<i8"), ("n_pair", "<i8"), ("src_at", "<i8"), ("trg_at", "<i8"), ("digest", "<u8")])


class Indexed(NamedTuple):
    """A training source without its text: its blocks, what was odd in the file, and the ratio of lengths it has.

    joined: how many texts had line feeds in them, and the numbers of the first of their lines.
    """

    blocks: NDArray[Any]
    notes: dict[str, int]
    joined: tuple[int, list[int]]
    usual: UsualRatio | None

    def tasks(self) -> Iterator[dict[str, Any]]:
        """What `BlockReader.load` needs to read each block."""
        for first, n_pair, src_at, trg_at, digest in self.blocks.tolist():
            yield {"first": first, "n_pair": n_pair, "at": [src_at, trg_at], "digest": digest}


def indexed(source: Source, reading: Reading, usual: UsualRatio | None) -> Indexed:
    """Look through a source. reading: says how; what is told of oddities here is in the answer."""
    notes, joined, n_joined = Counter[str](), list[int](), 0

    def note_joined(number: int) -> None:
        nonlocal n_joined
        n_joined += 1
        if len(joined) < N_NOTED:
            joined.append(number)

    telling = Reading(reading.bad_utf8, reading.bad_records, reading.longest, notes, note_joined)
    entries = [
        (block["first"], block["n_pair"], *block.get("at", (0, 0)), _digest(block, reading.longest))
        for block in blocks_of(source, telling)
    ]
    return Indexed(np.array(entries, ENTRY), dict(notes), (n_joined, joined), usual)


class BlockReader:
    """Gives tasks the text of their blocks. Of each source they come in order; a context manager."""

    def __init__(self, sources: Sequence[Source], reading: Reading) -> None:
        self._sources, self._reading = sources, reading
        self._n = -1  # the source that is open
        self._files: tuple[BinaryIO, BinaryIO] | None = None
        self._blocks: Iterator[dict[str, Any]] = iter(())
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "BlockReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def load(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """The task with the text of its block. task: of `Indexed.tasks`, with the number of its `source`."""
        source = self._sources[task["source"]]
        if task["source"] != self._n:
            self._begin(task["source"])
        block: dict[str, Any] | None
        if self._files is not None:
            src, trg = block_at(self._files, task["at"], task["n_pair"], self._reading.longest)
            block = {"src_raw": src, "trg_raw": trg}
        else:
            block = next((each for each in self._blocks if each["first"] == task["first"]), None)
        if block is None or _digest(block, self._reading.longest) != task["digest"]:
            last = task["first"] + task["n_pair"] - 1
            raise DataError(
                f"{source.src.name} or {source.trg.name}: lines {task['first']:,} to {last:,} are not those that "
                "another rank found under this name. All ranks must see the same files, and none may change meanwhile."
            )
        return {**block, **task}

    def _begin(self, n: int) -> None:
        self._open.close()
        self._n, self._files, source = n, None, self._sources[n]
        if is_text(source) and not any(map(_is_compressed, (source.src.place, source.trg.place))):
            assert isinstance(source.src.place, Path) and isinstance(source.trg.place, Path)
            src, trg = (self._open.enter_context(open_text(place)) for place in (source.src.place, source.trg.place))
            self._files = src, trg
        else:
            quiet = Reading(self._reading.bad_utf8, self._reading.bad_records, self._reading.longest)
            self._blocks = blocks_of(source, quiet)


def _is_compressed(place: object) -> bool:
    assert isinstance(place, Path)
    with place.open("rb") as file:
        return kind_of(file.read(8)) is not None


def _digest(block: Mapping[str, Any], longest: int) -> int:
    """64 bits of the text of a block."""
    if "src_raw" in block:
        parts = [cut_lines(block[name], longest) for name in ("src_raw", "trg_raw")]
    else:
        flaws = json.dumps([block["bad"], block["flaws"]]).encode("utf-8")
        parts = [block["src_lines"], block["trg_lines"], flaws]
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return int.from_bytes(digest.digest(), "little")
