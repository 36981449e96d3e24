"""Validation pairs that are drawn from the training files, where there are none of their own.

Drawn are the pairs with the smallest hashes, so the same text gives the same pairs in any order of files. No text is
drawn twice, and no pair that the filters drop. Training leaves out each pair of which a side is, in the normal form
`near` of `text/facts.py`, one of a drawn pair.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays.chance import STEP, mixed
from nmt.data.filters.clean import filters_of, most_bytes
from nmt.data.reading.fields import Reading
from nmt.data.reading.sources import Source, Text
from nmt.data.text.facts import Block, Hashes
from nmt.data.text.split_names import VALID
from nmt.errors import DataError
from nmt.recipe.data_options import DataConfig

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
