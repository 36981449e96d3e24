"""Pairs that occur again, sources with several targets, targets with several sources: counted from a file of hashes.

The file has 16 bytes a pair. It is read once for each share of the hashes, so that what is in memory is bounded however
long it is.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PAIR = np.dtype([("src", "<u8"), ("trg", "<u8")])
N_SHOWN = 5
N_NOTED = 10  # places of what is odd but harmless

_SHARE = 1 << 20  # pairs in memory at once, at some 60 bytes
_READ = 1 << 20  # pairs read at once


def count_duplicates(path: Path) -> dict[str, Any]:
    """What is repeated among the pairs of the file.

    {"pairs": those that came before, "again": all that occur more than once, the first occurrences too,
    "sources": distinct ones with several targets, "targets": with several sources,
    "most": [(number of a pair, times), ...] the most frequent pairs, by their first occurrence, counted from 0}
    """
    n_pair = path.stat().st_size // PAIR.itemsize
    n_share = max(1, -(-n_pair // _SHARE))
    before, again, most, several = 0, 0, [], {}
    for side, other in (("src", "trg"), ("trg", "src")):
        several[side] = 0
        for share in range(n_share):
            mine, partner, number = _share(path, side, other, share, n_share)
            again_there = _repeated(mine)  # most are not, and say nothing here
            order = again_there[np.lexsort((number[again_there], partner[again_there], mine[again_there]))]
            mine, partner, number = mine[order], partner[order], number[order]
            fresh = np.ones(len(mine), dtype=bool)
            fresh[1:] = (mine[1:] != mine[:-1]) | (partner[1:] != partner[:-1])
            distinct = mine[fresh]
            _, n_partner = np.unique(distinct, return_counts=True)
            several[side] += int((n_partner > 1).sum())
            if side == "src":
                before += int((~fresh).sum())
                firsts = np.flatnonzero(fresh)
                times = np.diff(firsts, append=len(mine))
                again += int(times[times > 1].sum())
                best = np.lexsort((number[firsts], -times))[:N_SHOWN]
                most += [(int(number[firsts[k]]), int(times[k])) for k in best if times[k] > 1]
    most = sorted(most, key=lambda each: (-each[1], each[0]))[:N_SHOWN]
    return {"pairs": before, "again": again, "sources": several["src"], "targets": several["trg"], "most": most}


def _repeated(values: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The places of all values that stand there more than once."""
    order = np.argsort(values)
    ordered = values[order]
    as_before = np.zeros(len(values), dtype=bool)
    as_before[1:] = ordered[1:] == ordered[:-1]
    is_repeated = as_before.copy()
    is_repeated[:-1] |= as_before[1:]
    return order[is_repeated]


def _share(
    path: Path, side: str, other: str, share: int, n_share: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]:
    """The pairs whose hash of one side falls into a share: that hash, the other side's, and the pair's number."""
    found = []
    for start, pairs in _pieces(path):
        mine = np.flatnonzero(pairs[side] % np.uint64(n_share) == share)
        found.append((pairs[side][mine], pairs[other][mine], mine + start))
    columns = [np.concatenate(column) for column in zip(*found, strict=True)] if found else []
    empty = np.empty(0, np.uint64)
    return (columns[0], columns[1], columns[2]) if columns else (empty, empty, np.empty(0, np.int64))


def _pieces(path: Path) -> Iterator[tuple[int, NDArray[Any]]]:
    start = 0
    while len(pairs := np.fromfile(path, PAIR, _READ, offset=start * PAIR.itemsize)):
        yield start, pairs
        start += len(pairs)
