"""The training pairs that are kept: block by block in files, each with the place where it stood.

In memory is one entry for each block. What a block holds is in `block_work.py`.
"""

import bisect
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays import STEP, mixed
from nmt.data.block_work import read_block
from nmt.data.filters import filters_of, most_bytes
from nmt.data.formats import Reading
from nmt.data.placeholders import in_names
from nmt.data.sources import Source, Text
from nmt.data.text import VALID, Block, Hashes, cut
from nmt.errors import DataError
from nmt.recipe.data_options import DataConfig


class KeptBlock(NamedTuple):
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
        self.blocks: list[KeptBlock] = []
        self._starts: list[int] = []
        self._n_pair = 0

    def add(self, file: str, offset: int, source: int, first: int, n_kept: int, digest: bytes) -> None:
        """The next block. digest: of the text of its kept pairs."""
        self.blocks.append(KeptBlock(file, offset, source, first, self._n_pair, n_kept))
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

    def corpus(self, block: KeptBlock) -> int:
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

    def learnt_line(self, blocks: Sequence[KeptBlock], number: int) -> tuple[str, list[str]]:
        """A kept pair among those of some blocks: its place, and both texts as people read them."""
        block = next(block for block in blocks if block.start + block.n_kept > blocks[0].start + number)
        content, n = read_block(block.file, block.offset), blocks[0].start + number - block.start
        texts = [cut(in_names(side.learnt_texts()[n])) for side in content.sides]
        return self.name(block.source, block.first + content.place(n)), texts

    def remove(self) -> None:
        """Delete the files."""
        for file in {block.file for block in self.blocks}:
            Path(file).unlink()


# Validation pairs that are drawn from the training files, where there are none of their own.


AUTO_SHARE, AUTO_LEAST, AUTO_MOST = 0.01, 200, 2000
_LARGEST_SHARE = 0.2  # of the training pairs, whatever is asked for
_SPARE = 3  # as many candidates as pairs: some are dropped by the filters
_N_PAIR = 10_000


class _Candidate(NamedTuple):
    rank: int
    near: tuple[int, int]
    src: str
    trg: str
    corpus: int


def n_to_hold_out(size: float | str, n_pair: int) -> int:
    """Return how many pairs are held out of so many."""
    most = int(_LARGEST_SHARE * n_pair)
    if isinstance(size, str):
        return min(most, max(AUTO_LEAST, min(AUTO_MOST, round(AUTO_SHARE * n_pair))))
    return min(most, round(size * n_pair) if size < 1 else int(size))


def with_held_out(sources: Sequence[Source], data: DataConfig) -> list[Source]:
    """The sources, with one more for validation: texts drawn from the training files."""
    assert data.valid_size is not None
    training = [source for source in sources if source.split == "train"]
    candidates, n_pair = _candidates(training, data)
    wanted = n_to_hold_out(data.valid_size, n_pair)
    filters = [filters_of(data.filters_of(n), data.max_len, data.languages_of(n), None) for n in range(len(data.train))]
    taken: set[int] = set()
    chosen: list[_Candidate] = []
    for one in candidates:
        if len(chosen) == wanted:
            break
        is_new = taken.isdisjoint(one.near)
        if is_new and not any(drops(one.src, one.trg) for _, drops in filters[one.corpus]):
            taken.update(one.near)
            chosen.append(one)
    if not chosen:
        raise DataError(
            f"no pair can be held out for validation: {n_pair:,} training pairs are too few, or the filters drop all. "
            "Name validation files: --valid, or data.valid."
        )
    name = f"{len(chosen):,} pairs held out of training"
    src = Text(f"{name}, source", tuple(one.src for one in chosen))
    trg = Text(f"{name}, target", tuple(one.trg for one in chosen))
    return [*sources, Source(VALID, src, trg)]


def near_hashes(src: Sequence[str], trg: Sequence[str]) -> tuple[Hashes, Hashes]:
    """Return keys of near copies of pairs, in ascending order: hashes of their sides, and the sums of their letters,
    of which one is to be there before a line is hashed."""
    blocks = Block(src), Block(trg)
    hashes = [near[length > 0] for near, _, length, _ in (block.near() for block in blocks)]
    return np.unique(np.concatenate(hashes)), np.unique(np.concatenate([block.bags() for block in blocks]))


def _candidates(training: Sequence[Source], data: DataConfig) -> tuple[list[_Candidate], int]:
    """Pairs by ascending hashes, some more than are wanted, and how many there are in all."""
    best: list[_Candidate] = []
    n_pair = 0
    for source in training:
        for src, trg in _blocks(source, data):
            n_pair += len(src)
            (of_src, _, n_src, _), (of_trg, _, n_trg, _) = (Block(side).near() for side in (src, trg))
            rank = mixed(of_src * np.uint64(STEP))
            rank[(n_src == 0) | (n_trg == 0)] = np.iinfo(np.uint64).max
            n = min(len(src), _SPARE * max(1, n_to_hold_out(data.valid_size or 0, n_pair)))
            first: NDArray[np.int64] = np.argsort(rank, kind="stable")[:n]
            best += [
                _Candidate(int(rank[k]), (int(of_src[k]), int(of_trg[k])), src[k], trg[k], source.corpus)
                for k in first.tolist()
            ]
            best = sorted(best)[: _SPARE * max(1, n_to_hold_out(data.valid_size or 0, n_pair))]
    return best, n_pair


def _blocks(source: Source, data: DataConfig) -> Iterator[tuple[list[str], list[str]]]:
    """The texts of a source, empty for what is none."""
    pairs = source.pairs(Reading(data.bad_utf8, data.bad_records, most_bytes(data.max_len) + 8))
    while block := list(islice(pairs, _N_PAIR)):
        src, trg = ([text if isinstance(text, str) else "" for text in side] for side in zip(*block, strict=True))
        yield src, trg
