"""File of blocks of training pairs: what later stages need of each, as a record that is written and read.

What fills it in is `block_work.py`, and where each block lies is in `kept.py`.
"""

from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from nmt.data.text.placeholders import BYTES
from nmt.data.text.split_names import SIDES
from nmt.pack import read_packed, write_packed

Mask = NDArray[np.bool_]
Numbers = NDArray[Any]


class BlockSide(NamedTuple):
    """One side of a block. Everything but the texts is of all lines, those that are dropped too."""

    # What lines are aligned by, as `measure.aligned_by` tells it.
    len: Numbers
    marks: Numbers
    anchors: Numbers
    n_anchor: Numbers
    # What they are learnt from and encoded by: the units as `Units` has them, with placeholders if there are some.
    units: bytes  # with line feeds between them
    lexicon: str  # the name of the one that `which` has numbers of
    which: Numbers
    at: Numbers
    n_unit: Numbers
    n_char: Numbers
    n_word: Numbers
    # The kept lines, with line feeds between them; and with placeholders, where the recipe protects something.
    text: bytes
    protected: bytes | None = None

    @property
    def learnt(self) -> bytes:
        """The kept lines as they are learnt from."""
        return self.text if self.protected is None else self.protected

    def texts(self) -> list[str]:
        """The kept lines."""
        return self.text.decode("utf-8").split("\n")

    def learnt_texts(self) -> list[str]:
        """The kept lines with placeholders, where they have some."""
        return self.learnt.decode(**BYTES).split("\n")


class BlockContent(NamedTuple):
    """A block that was looked at. kept: which of its pairs are not dropped."""

    kept: Mask
    src: BlockSide
    trg: BlockSide

    @property
    def sides(self) -> tuple[BlockSide, BlockSide]:
        """The source side, and the target side."""
        return self.src, self.trg

    def place(self, n: int) -> int:
        """The place of the n-th kept pair among all pairs of the block, both from 0."""
        return int(np.flatnonzero(self.kept)[n])


def write_block(path: Path, block: BlockContent) -> int:
    """Add a block to a file. Returns its offset there."""
    content: dict[str, Any] = {"kept": block.kept}
    for name, side in zip(SIDES, block.sides, strict=True):
        content |= {f"{name}_{key}": value for key, value in side._asdict().items() if value is not None}
    with path.open("ab") as file:
        offset = file.tell()
        write_packed(cast(BinaryIO, file), content)
    return offset


def read_block(path: str, offset: int) -> BlockContent:
    """The block that lies there."""
    with open(path, "rb") as file:
        file.seek(offset)
        found = read_packed(file.read)
    assert found is not None, "a block is not where it was written"
    src, trg = (
        BlockSide(**{key: found[f"{name}_{key}"] for key in BlockSide._fields if f"{name}_{key}" in found})
        for name in SIDES
    )
    return BlockContent(found["kept"], src, trg)
