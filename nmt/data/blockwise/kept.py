"""The training pairs that are kept: block by block in files, each with the place where it stood.

In memory is one entry for each block. What a block holds is in `block_file.py`.
"""

import bisect
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nmt.data.blockwise.block_file import read_block
from nmt.data.reading.sources import Source
from nmt.data.text.facts import cut
from nmt.data.text.placeholders import in_names


class Block(NamedTuple):
    """Place of a block; the number of its source, of its first line there, and of its first kept pair among all."""

    file: str
    offset: int
    source: int
    first: int
    start: int
    n_kept: int


class KeptPairs:
    """All blocks of the training corpora, in order."""

    def __init__(self, training: Sequence[Source]) -> None:
        self._names = [source.src.name for source in training]
        self._corpora = [source.corpus for source in training]
        self._n_of_source = [0] * len(training)  # pairs of each source that are still there
        self._digests = {corpus: hashlib.sha256() for corpus in self._corpora}
        self.blocks: list[Block] = []
        self._starts: list[int] = []
        self._n_pair = 0

    def add(self, file: str, offset: int, source: int, first: int, n_kept: int, digest: bytes) -> None:
        """The next block. digest: of the text of its kept pairs."""
        self.blocks.append(Block(file, offset, source, first, self._n_pair, n_kept))
        self._starts.append(self._n_pair)
        self._n_pair += n_kept
        self._n_of_source[source] += n_kept
        self._digests[self._corpora[source]].update(digest if n_kept else b"")

    def lose(self, source: int, n: int) -> None:
        """Take pairs of a source out of the count of its corpus after all."""
        self._n_of_source[source] -= n

    def name(self, source: int, number: int) -> str:
        """A place as people write it."""
        return f"{self._names[source]}:{number}"

    def corpora(self) -> list[dict[str, Any]]:
        """Return the entries of the corpora in the manifest, in the order of their pairs."""
        found: dict[int, dict[str, Any]] = {}
        for corpus, name, n in zip(self._corpora, self._names, self._n_of_source, strict=True):
            found.setdefault(corpus, {"name": name, "n_pair": 0})["n_pair"] += n
        return list(found.values())

    def digests(self) -> dict[int, str]:
        """Of each corpus, by its number: the digest of the text of its kept pairs, with placeholders."""
        return {corpus: digest.hexdigest() for corpus, digest in self._digests.items()}

    def corpus(self, block: Block) -> int:
        """The number of the corpus that a block is of."""
        return self._corpora[block.source]

    def __len__(self) -> int:
        return self._n_pair

    def shown(self, numbers: Iterable[int]) -> dict[int, tuple[str, str, str]]:
        """The place, source and target of some pairs, by their numbers from 0."""
        found = {}
        for number in sorted(set(numbers)):
            block = self.blocks[bisect.bisect_right(self._starts, number) - 1]
            content, n = read_block(block.file, block.offset), number - block.start
            place = self.name(block.source, block.first + content.place(n))
            found[number] = place, content.src.texts()[n], content.trg.texts()[n]
        return found

    def learnt_line(self, blocks: Sequence[Block], number: int) -> tuple[str, list[str]]:
        """A kept pair among those of some blocks: its place, and both texts as people read them."""
        block = next(block for block in blocks if block.start + block.n_kept > blocks[0].start + number)
        content, n = read_block(block.file, block.offset), blocks[0].start + number - block.start
        texts = [cut(in_names(side.learnt_texts()[n])) for side in content.sides]
        return self.name(block.source, block.first + content.place(n)), texts

    def lines(self, side: int) -> Iterator[str]:
        """All lines of the source side, 0, or of the target side, 1, with placeholders where they have some."""
        for block in self.blocks:
            if block.n_kept:
                yield from read_block(block.file, block.offset).sides[side].learnt_texts()

    def remove(self) -> None:
        """Delete the files."""
        for file in {block.file for block in self.blocks}:
            Path(file).unlink()
