"""Detection of misaligned lines in two files: a stray or a missing line shifts all lines after it.

Line i of the source should translate line i of the target. Each line is compared with those up to FARTHEST lines away,
by length and by the numbers and names that both sides spell alike. Dynamic programming finds the best offset of each
window of lines; each change of offset has a price. Pairs are read from a file of `RECORD`s, 20 bytes each.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from nmt.data.text import N_ANCHOR, NO_ANCHOR, SIDES, anchors_of
from nmt.data.units import Units

RECORD = np.dtype([(f"{side}_len", "<u2") for side in SIDES] + [(f"{side}_anchors", "<u2", N_ANCHOR) for side in SIDES])
LONGEST = 65535  # largest length in characters that a record can hold
FARTHEST = 10
# The evidence, in nats, that a change of offset requires. Lines are less independent than sums of nats assume, so the
# price was set by measuring whole corpora, clean ones and shifted ones.
PRICE = 45.0
FEWEST = 64  # pairs of the smallest file that is analysed
WEAKEST = 0.05  # nats a line with which a shift of some hundred lines is still detected

_WINDOW = 32  # lines
_CHUNK = 512  # windows read at once
_PIECE = 2000  # lines for one estimate of the correlation
_N_OFFSET = 2 * FARTHEST + 1
_NONE = _N_OFFSET  # the state of lines that match no line nearby
_MIN_UNMATCHED = 300  # shorter stretches of unmatched lines are ignored: free translations cause them now and then
_MAX_DEVIATION = 3.0  # standard deviations to which lengths are clipped
_MAX_RHO = 0.95  # or a single odd pair would outweigh many
_MAX_LINE_SCORE = 6.0  # nats
_P_ANCHOR = 0.3  # probability that the translation of a line with an anchor has the anchor, too

Records = NDArray[Any]
Scores = NDArray[np.float32]


def records_of(src: Units, trg: Units) -> Records:
    """Records of pairs for `find_shifts`, in the order of the file."""
    records = np.empty(len(src.lines), RECORD)
    anchors_of_side = anchors_of(src.words(), trg.words(), len(records))
    for side, units, anchors in zip(SIDES, (src, trg), anchors_of_side, strict=True):
        records[f"{side}_len"] = np.minimum(units.n_char, LONGEST)
        records[f"{side}_anchors"] = anchors
    return records


def find_shifts(path: Path, first: int, n_pair: int) -> dict[str, Any]:
    """Find misaligned lines in the records first to first + n_pair of a file of `RECORD`s.

    {"pairs": n_pair, "judged": whether a shift would have been detected, "stretches": [{"first", "last": source lines,
    from 1, that do not match the target lines of the same number, "offset": number of lines by which their target lines
    follow later, None if no line nearby matches}, ...]}
    """
    result: dict[str, Any] = {"pairs": n_pair, "judged": False, "stretches": []}
    if n_pair < FEWEST:
        return result
    match = _Match(path, first, n_pair)
    # (N_STATE, n) scores of lines -> (n / _WINDOW, N_STATE) sums
    parts = (match.scores(*chunk) for chunk in _chunks(n_pair))
    sums = np.concatenate([np.add.reduceat(part, np.arange(0, part.shape[1], _WINDOW), axis=1).T for part in parts])
    states = _best_states(sums)
    matched = states != _NONE
    best = sums[matched, states[matched]].sum(dtype=np.float64)
    others = (sums[matched, :_N_OFFSET].sum(dtype=np.float64) - best) / (_N_OFFSET - 1)
    # Nats a line by which the best offset matches better than the others, near 0 if, say, all lines are equally long.
    strength = float(best - others) / n_pair
    result["judged"] = strength >= WEAKEST
    if strength < WEAKEST:  # nothing matches: a path through noise is no shift
        return result
    changes = (np.flatnonzero(states[1:] != states[:-1]) + 1).tolist()
    boundaries = [0, *(match.boundary(int(states[k - 1]), int(states[k]), k * _WINDOW) for k in changes), n_pair]
    boundaries = np.maximum.accumulate(boundaries).tolist()  # they are found independently, and may be out of order
    for k, (start, end) in zip([0, *changes], pairwise(boundaries), strict=True):
        state = int(states[k])
        if state == FARTHEST or end - start < (_MIN_UNMATCHED if state == _NONE else 1):
            continue
        offset = None if state == _NONE else state - FARTHEST
        result["stretches"].append({"first": start + 1, "last": end, "offset": offset})
    return result


def _chunks(n_pair: int) -> Iterator[tuple[int, int]]:
    size = _WINDOW * _CHUNK
    return ((start, min(n_pair, start + size)) for start in range(0, n_pair, size))


def _best_states(sums: Scores) -> NDArray[np.int8]:
    """The best sequence of states of the windows: highest sum of scores minus `PRICE` for each change of state."""
    n, n_state = sums.shape
    stays, came_from = np.empty((n, n_state), dtype=bool), np.empty(n, dtype=np.int8)
    best = np.where(np.arange(n_state) == FARTHEST, 0.0, -PRICE)  # the initial assumption is a parallel file
    for k, window in enumerate(sums):
        top = best.argmax()
        change = best[top] - PRICE
        stays[k], came_from[k] = best >= change, top
        best = np.maximum(best, change) + window
    states = np.empty(n, dtype=np.int8)
    state = int(best.argmax())
    for k in range(n - 1, -1, -1):
        states[k] = state
        if not stays[k, state]:
            state = int(came_from[k])
    return states


class _Match:
    """Scores of source lines with target lines near them, in nats: above 0 for a match better than chance."""

    def __init__(self, path: Path, first: int, n_pair: int) -> None:
        self._path, self._first, self._n_pair = path, first, n_pair
        anchors = np.zeros(1 << 16, dtype=np.int64)
        moments = np.zeros((len(SIDES), 3))  # of the logarithms of lengths: number, sum, sum of squares
        for chunk in _chunks(n_pair):
            records = self._read(*chunk)
            anchors += np.bincount(records["trg_anchors"].ravel(), minlength=len(anchors))
            for side_moments, side in zip(moments, SIDES, strict=True):
                lengths = records[f"{side}_len"]
                logs = np.log1p(lengths[lengths > 0].astype(np.float64))
                side_moments += len(logs), logs.sum(), (logs**2).sum()
        n, total, squares = moments.T
        self._mean = total / np.maximum(n, 1)
        deviation = np.sqrt(np.maximum(squares / np.maximum(n, 1) - self._mean**2, 0.0))
        self._scale = np.where(deviation > 1e-6, 1 / np.maximum(deviation, 1e-6), 0.0)
        self._weight = np.maximum(0.0, np.log(_P_ANCHOR * n_pair / np.maximum(anchors, 1))).astype(np.float32)
        self._weight[NO_ANCHOR] = 0.0
        self._rho = self._correlation()

    def _read(self, start: int, end: int) -> Records:
        """Read records by their numbers, with empty ones before the first and after the last."""
        a, b = max(0, start), min(self._n_pair, end)
        records = np.fromfile(self._path, RECORD, b - a, offset=(self._first + a) * RECORD.itemsize)
        return np.concatenate([np.zeros(a - start, RECORD), records, np.zeros(end - b, RECORD)])

    def _lengths(self, records: Records, side: int) -> Scores:
        """Logarithms of lengths, normalised to mean 0 and deviation 1; 0 for an empty line."""
        lengths = records[f"{SIDES[side]}_len"]
        logs = (np.log1p(lengths.astype(np.float32)) - self._mean[side]) * self._scale[side]
        clipped: Scores = np.clip(logs, -_MAX_DEVIATION, _MAX_DEVIATION).astype(np.float32)
        clipped[lengths == 0] = 0.0
        return clipped

    def _correlation(self) -> float:
        """Correlation of the lengths of matching lines: the median over pieces of the file at their best offsets."""
        correlations: list[float] = []
        for start, end in _chunks(self._n_pair):
            wide = self._read(start - FARTHEST, end + FARTHEST)
            src, trg = self._lengths(wide[FARTHEST : FARTHEST + end - start], 0), self._lengths(wide, 1)
            for a in range(0, end - start, _PIECE):
                b = min(a + _PIECE, end - start)
                if b - a >= _PIECE // 2 or not correlations:
                    correlations.append(max(float(src[a:b] @ trg[a + d : b + d]) / (b - a) for d in range(_N_OFFSET)))
        return float(np.clip(np.median(correlations), 0.0, _MAX_RHO))

    def scores(self, start: int, end: int) -> Scores:
        """(N_STATE, end - start): source line start + i with target line start + i + d - FARTHEST; 0 for no match."""
        n, rho = end - start, self._rho
        wide = self._read(start - FARTHEST, end + FARTHEST)
        records = wide[FARTHEST : FARTHEST + n]
        src, trg = self._lengths(records, 0), sliding_window_view(self._lengths(wide, 1), n)  # (n,), (N_OFFSET, n)
        # Log of the likelihood ratio of two normal variables with this correlation, and without correlation.
        curvature = rho**2 / (2 * (1 - rho**2))
        scores = np.zeros((_N_OFFSET + 1, n), dtype=np.float32)
        offset_scores = scores[:_N_OFFSET]
        offset_scores += rho / (1 - rho**2) * src * trg - curvature * (src**2 + trg**2) - 0.5 * np.log(1 - rho**2)
        nearby = sliding_window_view(np.ascontiguousarray(wide["trg_anchors"].T), n, axis=1)  # (N_ANCHOR, N_OFFSET, n)
        for anchor in np.ascontiguousarray(records["src_anchors"].T):
            offset_scores += (nearby == anchor).any(axis=0) * self._weight[anchor]
        np.clip(offset_scores, -_MAX_LINE_SCORE, _MAX_LINE_SCORE, out=offset_scores)
        return scores

    def boundary(self, before: int, after: int, near: int) -> int:
        """The line, from 0, at which the state changes from `before` to `after`. near: a line close to it."""
        start, end = max(0, near - 3 * _WINDOW), min(self._n_pair, near + 3 * _WINDOW)
        scores = self.scores(start, end)
        gain = np.cumsum(scores[before] - scores[after], dtype=np.float64)
        return start + int(np.append(0.0, gain).argmax())
