"""Misaligned lines of two files: a stray or a missing line shifts all lines after it.

Line i of the source should translate line i of the target. Each line is compared with those up to FARTHEST lines away
by its length, and by the numbers and names that both sides spell alike. Dynamic programming finds the best offset of
each window of lines, where a change of offset has a price. Pairs are read from a file of one `RECORD`, 20 bytes, each.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from nmt.data.text import N_ANCHOR, NO_ANCHOR, SIDES, Words, anchors_of

RECORD = np.dtype([(f"{side}_len", "<u2") for side in SIDES] + [(f"{side}_anchors", "<u2", N_ANCHOR) for side in SIDES])
LONGEST = 65535  # characters that a record can tell
FARTHEST = 10
# The evidence, in nats, that a change of offset must bring. Lines depend on each other more than sums of nats suppose:
# what clean corpora bring, and what shifts do, was measured on whole corpora.
PRICE = 45.0
FEWEST = 64  # pairs of a file in which anything is looked for
WEAKEST = 0.05  # nats a line with which a shift of some hundred lines is still found

_WINDOW = 32  # lines
_CHUNK = 512  # windows read at once
_PIECE = 2000  # lines of which a correlation is taken
_N_OFFSET = 2 * FARTHEST + 1
_NONE = _N_OFFSET  # the state of lines that match none
_FEWEST_ALONE = 300  # lines that match none, to be worth a word: free translations do so now and then
_FARTHEST_OUT = 3.0  # standard deviations of a length that count
_HIGHEST_RHO = 0.95  # or the odd pair would outweigh many
_MOST_FROM_ONE_LINE = 6.0  # nats
_CHANCE_OF_ANCHOR = 0.3  # that the translation of a line with an anchor has it, too

Records = NDArray[Any]
Scores = NDArray[np.float32]


def records_of(lengths: Sequence[NDArray[Any]], words: tuple[Words, Words]) -> Records:
    """Records of some pairs for `find_shifts`, all lines in the order of the file. Both: of source and target."""
    records = np.empty(len(lengths[0]), RECORD)
    for side, n_char, anchors in zip(SIDES, lengths, anchors_of(*words, len(records)), strict=True):
        records[f"{side}_len"] = np.minimum(n_char, LONGEST)
        records[f"{side}_anchors"] = anchors
    return records


def find_shifts(path: Path, first: int, n_pair: int) -> dict[str, Any]:
    """Look for misaligned lines among the records first to first + n_pair of a file of `RECORD`s.

    {"pairs": n_pair, "strength": nats by which a line matches its own better than another, near 0 where, say, all lines
    are equally long, "judged": whether a shift would have been found, "stretches": [{"first", "last": source lines from
    1 that do not match the target lines beside them, "offset": they match those so many lines later, None for none near
    enough, "gain": nats by which that is more likely}, ...]}
    """
    found: dict[str, Any] = {"pairs": n_pair, "judged": False, "strength": 0.0, "stretches": []}
    if n_pair < FEWEST:
        return found
    match = _Match(path, first, n_pair)
    # (N_STATE, n) scores of lines -> (n / _WINDOW, N_STATE) sums
    scores = (match.scores(*chunk) for chunk in _chunks(n_pair))
    sums = np.concatenate([np.add.reduceat(one, np.arange(0, one.shape[1], _WINDOW), axis=1).T for one in scores])
    way = _best_way(sums)
    good = way != _NONE
    own = sums[good, way[good]].sum(dtype=np.float64)
    others = (sums[good, :_N_OFFSET].sum(dtype=np.float64) - own) / (_N_OFFSET - 1)
    strength = float(own - others) / n_pair
    found |= {"judged": strength >= WEAKEST, "strength": round(strength, 3)}
    if strength < WEAKEST:  # nothing matches: a path through noise is no shift
        return found
    changes = (np.flatnonzero(way[1:] != way[:-1]) + 1).tolist()
    ends = [*(match.place(int(way[k - 1]), int(way[k]), k * _WINDOW) for k in changes), n_pair]
    ends = np.maximum.accumulate(ends).tolist()  # each was placed by itself
    for k, after, start, end in zip([0, *changes], [*changes, len(way)], [0, *ends[:-1]], ends, strict=True):
        state = int(way[k])
        if state == FARTHEST or end - start < (_FEWEST_ALONE if state == _NONE else 1):
            continue
        gain = float((sums[k:after, state] - sums[k:after, FARTHEST]).sum(dtype=np.float64))
        offset = None if state == _NONE else state - FARTHEST
        found["stretches"].append({"first": start + 1, "last": end, "offset": offset, "gain": round(gain, 1)})
    return found


def _chunks(n_pair: int) -> Iterator[tuple[int, int]]:
    size = _WINDOW * _CHUNK
    return ((start, min(n_pair, start + size)) for start in range(0, n_pair, size))


def _best_way(sums: Scores) -> NDArray[np.int8]:
    """The state of each window, by the sum of its scores less `PRICE` for each change of state."""
    n, n_state = sums.shape
    stays, came_from = np.empty((n, n_state), dtype=bool), np.empty(n, dtype=np.int8)
    best = np.where(np.arange(n_state) == FARTHEST, 0.0, -PRICE)  # a file is parallel until shown otherwise
    for k, window in enumerate(sums):
        top = best.argmax()
        change = best[top] - PRICE
        stays[k], came_from[k] = best >= change, top
        best = np.maximum(best, change) + window
    way = np.empty(n, dtype=np.int8)
    here = int(best.argmax())
    for k in range(n - 1, -1, -1):
        way[k] = here
        if not stays[k, here]:
            here = int(came_from[k])
    return way


class _Match:
    """Scores how well a source line matches target lines near it, in nats: above 0 where better than with others."""

    def __init__(self, path: Path, first: int, n_pair: int) -> None:
        self._path, self._first, self._n_pair = path, first, n_pair
        anchors = np.zeros(1 << 16, dtype=np.int64)
        moments = np.zeros((len(SIDES), 3))  # of the logarithms of lengths: number, sum, sum of squares
        for chunk in _chunks(n_pair):
            records = self._read(*chunk)
            anchors += np.bincount(records["trg_anchors"].ravel(), minlength=len(anchors))
            for of_side, side in zip(moments, SIDES, strict=True):
                lengths = records[f"{side}_len"]
                logs = np.log1p(lengths[lengths > 0].astype(np.float64))
                of_side += len(logs), logs.sum(), (logs**2).sum()
        n, total, squares = moments.T
        self._mean = total / np.maximum(n, 1)
        deviation = np.sqrt(np.maximum(squares / np.maximum(n, 1) - self._mean**2, 0.0))
        self._slope = np.where(deviation > 1e-6, 1 / np.maximum(deviation, 1e-6), 0.0)
        self._weight = np.maximum(0.0, np.log(_CHANCE_OF_ANCHOR * n_pair / np.maximum(anchors, 1))).astype(np.float32)
        self._weight[NO_ANCHOR] = 0.0
        self._rho = self._correlation()

    def _read(self, start: int, end: int) -> Records:
        """Read records by their numbers; before the first and after the last there are empty ones."""
        a, b = max(0, start), min(self._n_pair, end)
        found = np.fromfile(self._path, RECORD, b - a, offset=(self._first + a) * RECORD.itemsize)
        return np.concatenate([np.zeros(a - start, RECORD), found, np.zeros(end - b, RECORD)])

    def _lengths(self, records: Records, side: int) -> Scores:
        """Logarithms of lengths, of mean 0 and deviation 1; 0 for an empty line."""
        lengths = records[f"{SIDES[side]}_len"]
        logs = (np.log1p(lengths.astype(np.float32)) - self._mean[side]) * self._slope[side]
        found: Scores = np.clip(logs, -_FARTHEST_OUT, _FARTHEST_OUT).astype(np.float32)
        found[lengths == 0] = 0.0
        return found

    def _correlation(self) -> float:
        """Correlation of lengths where lines match: the median over pieces of the file at their best offsets."""
        found: list[float] = []
        for start, end in _chunks(self._n_pair):
            wide = self._read(start - FARTHEST, end + FARTHEST)
            src, trg = self._lengths(wide[FARTHEST : FARTHEST + end - start], 0), self._lengths(wide, 1)
            for a in range(0, end - start, _PIECE):
                b = min(a + _PIECE, end - start)
                if b - a >= _PIECE // 2 or not found:
                    found.append(max(float(src[a:b] @ trg[a + d : b + d]) / (b - a) for d in range(_N_OFFSET)))
        return float(np.clip(np.median(found), 0.0, _HIGHEST_RHO))

    def scores(self, start: int, end: int) -> Scores:
        """(N_STATE, end - start): source line start + i with target line start + i + d - FARTHEST; last, with none."""
        n, rho = end - start, self._rho
        wide = self._read(start - FARTHEST, end + FARTHEST)
        own = wide[FARTHEST : FARTHEST + n]
        src, trg = self._lengths(own, 0), sliding_window_view(self._lengths(wide, 1), n)  # (n,), (N_OFFSET, n)
        # The logarithm of the likelihood ratio of two normal variables with this correlation, and with none.
        bend = rho**2 / (2 * (1 - rho**2))
        scores = np.zeros((_N_OFFSET + 1, n), dtype=np.float32)
        of_offsets = scores[:_N_OFFSET]
        of_offsets += rho / (1 - rho**2) * src * trg - bend * (src**2 + trg**2) - 0.5 * np.log(1 - rho**2)
        beside = sliding_window_view(np.ascontiguousarray(wide["trg_anchors"].T), n, axis=1)  # (N_ANCHOR, N_OFFSET, n)
        for anchor in np.ascontiguousarray(own["src_anchors"].T):
            of_offsets += (beside == anchor).any(axis=0) * self._weight[anchor]
        np.clip(of_offsets, -_MOST_FROM_ONE_LINE, _MOST_FROM_ONE_LINE, out=of_offsets)
        return scores

    def place(self, before: int, after: int, near: int) -> int:
        """The line, counted from 0, from which the second state is better than the first."""
        start, end = max(0, near - 3 * _WINDOW), min(self._n_pair, near + 3 * _WINDOW)
        scores = self.scores(start, end)
        gain = np.cumsum(scores[before] - scores[after], dtype=np.float64)
        return start + int(np.append(0.0, gain).argmax())
