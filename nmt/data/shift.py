"""Where two files of a corpus stop being parallel: a stray or a missing line shifts all lines after it.

Line i of the source should go with line i of the target. Here it is asked whether i + d fits better, for d up to
FARTHEST lines either way, or nothing at all: lengths of translations go together, and so do numbers and names that both
sides spell alike. The path of the best d through the file is found by dynamic programming over windows of lines, in
which each change of d has a price; then each change is placed to the line. Numbers are read from a file in which each
pair has `RECORD` bytes; in memory there are some six bytes a pair.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.data.report_text import N_ANCHOR, NO_ANCHOR, Anchors, Block

RECORD = np.dtype(
    [("src_len", "<u2"), ("trg_len", "<u2"), ("src_anchors", "<u2", N_ANCHOR), ("trg_anchors", "<u2", N_ANCHOR)]
)
FARTHEST = 10
LONGEST = 65535  # characters that a record can tell
# The evidence, in nats, that a change of d must bring. Lines depend on each other more than sums of nats suppose: what
# clean corpora bring, and what shifts do, is measured by tools/prove_shifts.py.
PRICE = 45.0
FEWEST = 64  # pairs of a file in which anything is looked for
WEAKEST = 0.05  # nats a line with which a shift of some hundred lines is still found

_WINDOW = 32  # lines
_CHUNK = 512  # windows read at once
_PIECE = 2000  # lines of which a correlation is taken
_N_OFFSET = 2 * FARTHEST + 1
_NONE = _N_OFFSET  # the state of lines that go with none
_N_STATE = _N_OFFSET + 1
_FEWEST_ALONE = 300  # lines that go with none, to be worth a word: free translations do so now and then
_LENGTHS = ("src_len", "trg_len")
_FARTHEST_OUT = 3.0  # standard deviations that count
_HIGHEST_RHO = 0.95  # or the odd pair would outweigh many
_MOST_FROM_ONE_LINE = 6.0
_CHANCE_OF_ANCHOR = 0.3  # that the translation of a line with an anchor has it, too

Records = NDArray[Any]
Scores = NDArray[np.float32]


@dataclass(frozen=True)
class Stretch:
    """Source lines first to last, counted from 1, do not go with the target lines beside them.

    offset: they go with those so many lines later; None: with none near enough.
    gain: nats by which that is the better account of them.
    """

    first: int
    last: int
    offset: int | None
    gain: float


@dataclass(frozen=True)
class Alignment:
    """What was found: the stretches that are not parallel, and how well lines go together where they do.

    strength: nats by which a line goes better with its own than with another; near 0 nothing can be told, as where all
    lines are equally long.
    """

    n_pair: int
    stretches: tuple[Stretch, ...]
    strength: float

    @property
    def can_be_judged(self) -> bool:
        """Whether a shift would have been found."""
        return self.n_pair >= FEWEST and self.strength >= WEAKEST


def records_of(src: Block, trg: Block, anchors: Anchors) -> Records:
    """What `find_shifts` has to know of some pairs, all lines in the order of the file."""
    records = np.empty(len(src.lines), RECORD)
    for name, block in zip(_LENGTHS, (src, trg), strict=True):
        records[name] = np.minimum(block.lengths, LONGEST)
    records["src_anchors"], records["trg_anchors"] = anchors.pick(src, trg)
    return records


def find_shifts(
    path: Path, first: int, n_pair: int, price: float = PRICE, done: Callable[[int], object] = lambda n: None
) -> Alignment:
    """Look for shifted lines among the records first to first + n_pair of a file of `RECORD`s.

    price: the evidence that is asked for; done: is told how many pairs more have been looked at.
    """
    if n_pair < FEWEST:
        return Alignment(n_pair, (), 0.0)
    judge = _Judge(_Spool(path, first, n_pair))
    found = []
    for start, end in _chunks(n_pair):
        found.append(_in_windows(judge.scores(start, end)))
        done(end - start)
    sums = np.concatenate(found)
    way = _best_way(sums, price)
    return judge.alignment(sums, way)


def _in_windows(scores: Scores) -> Scores:
    """(N_STATE, n) scores of lines -> (n / _WINDOW, N_STATE) sums."""
    return np.add.reduceat(scores, np.arange(0, scores.shape[1], _WINDOW), axis=1).T


def _best_way(sums: Scores, price: float) -> NDArray[np.int8]:
    """The state of each window, by the sum of its scores less a price for each change of state."""
    n = len(sums)
    stays, came_from = np.empty((n, _N_STATE), dtype=bool), np.empty(n, dtype=np.int8)
    best = np.where(np.arange(_N_STATE) == FARTHEST, 0.0, -price)  # a file is parallel until shown otherwise
    for k, window in enumerate(sums):
        top = best.argmax()
        change = best[top] - price
        stays[k], came_from[k] = best >= change, top
        best = np.maximum(best, change) + window
    way = np.empty(n, dtype=np.int8)
    here = int(best.argmax())
    for k in range(n - 1, -1, -1):
        way[k] = here
        if not stays[k, here]:
            here = int(came_from[k])
    return way


def _chunks(n_pair: int) -> Iterator[tuple[int, int]]:
    size = _WINDOW * _CHUNK
    return ((start, min(n_pair, start + size)) for start in range(0, n_pair, size))


class _Spool:
    """Records of the file, by their numbers; outside there are empty ones."""

    def __init__(self, path: Path, first: int, n_pair: int) -> None:
        self._path, self._first, self.n_pair = path, first, n_pair

    def read(self, start: int, end: int) -> Records:
        a, b = max(0, start), min(self.n_pair, end)
        found = np.fromfile(self._path, RECORD, b - a, offset=(self._first + a) * RECORD.itemsize)
        return np.concatenate([np.zeros(a - start, RECORD), found, np.zeros(end - b, RECORD)])


class _Judge:
    """Tells how well a source line goes with target lines near it, in nats: above 0 where better than with others."""

    def __init__(self, spool: _Spool) -> None:
        self._spool = spool
        n_line, sums, squares = np.zeros(2), np.zeros(2), np.zeros(2)
        anchors = np.zeros(1 << 16, dtype=np.int64)
        for chunk in _chunks(spool.n_pair):
            records = spool.read(*chunk)
            for side, name in enumerate(_LENGTHS):
                lengths = np.log1p(records[name][records[name] > 0].astype(np.float64))
                n_line[side] += len(lengths)
                sums[side] += lengths.sum()
                squares[side] += (lengths**2).sum()
            anchors += np.bincount(records["trg_anchors"].ravel(), minlength=1 << 16)
        self._mean = sums / np.maximum(n_line, 1)
        self._deviation = np.sqrt(np.maximum(squares / np.maximum(n_line, 1) - self._mean**2, 0.0))
        share = np.maximum(anchors, 1) / spool.n_pair
        self._weight = np.maximum(0.0, np.log(_CHANCE_OF_ANCHOR / share)).astype(np.float32)
        self._weight[NO_ANCHOR] = 0.0
        self._rho = self._correlation()

    def _correlation(self) -> float:
        """Of the lengths, where lines go together: the middle of what pieces of the file show at their best offsets."""
        found: list[float] = []
        for start, end in _chunks(self._spool.n_pair):
            src, trg = self._lengths(self._spool.read(start - FARTHEST, end + FARTHEST))
            for a in range(0, end - start, _PIECE):
                b = min(a + _PIECE, end - start)
                if b - a >= _PIECE // 2 or not found:
                    found.append(max(float(src[a:b] @ trg[a + d : b + d]) / (b - a) for d in range(_N_OFFSET)))
        return float(np.clip(np.median(found), 0.0, _HIGHEST_RHO))

    def _lengths(self, wide: Records) -> tuple[Scores, Scores]:
        """Standardised logarithms: of the target of all records, of the source FARTHEST fewer at both ends."""
        sides = []
        for side, name in enumerate(_LENGTHS):
            deviation = self._deviation[side]
            scaled = (np.log1p(wide[name].astype(np.float32)) - self._mean[side]) / max(deviation, 1e-6)
            scaled[(wide[name] == 0) | (deviation < 1e-6)] = 0.0
            sides.append(np.clip(scaled, -_FARTHEST_OUT, _FARTHEST_OUT).astype(np.float32))
        return sides[0][FARTHEST : len(wide) - FARTHEST], sides[1]

    def scores(self, start: int, end: int) -> Scores:
        """(N_STATE, end - start): source line start + i with target line start + i + d - FARTHEST; last, with none."""
        wide = self._spool.read(start - FARTHEST, end + FARTHEST)
        n, rho = end - start, self._rho
        src, trg = self._lengths(wide)
        slope, bend = np.float32(rho / (1 - rho**2)), np.float32(rho**2 / (2 * (1 - rho**2)))
        of_src = -np.float32(0.5 * np.log(1 - rho**2)) - bend * src * src
        of_trg = bend * trg * trg
        anchors = np.ascontiguousarray(wide["src_anchors"][FARTHEST : FARTHEST + n].T)
        others = np.ascontiguousarray(wide["trg_anchors"].T)
        weights = self._weight[anchors]
        scores = np.zeros((_N_STATE, n), dtype=np.float32)
        for d in range(_N_OFFSET):
            score = src * trg[d : d + n] * slope + of_src - of_trg[d : d + n]
            for anchor, weight in zip(anchors, weights, strict=True):
                shared = anchor == others[0, d : d + n]
                for other in others[1:]:
                    shared |= anchor == other[d : d + n]
                score += weight * shared
            np.clip(score, -_MOST_FROM_ONE_LINE, _MOST_FROM_ONE_LINE, out=scores[d])
        return scores

    def alignment(self, sums: Scores, way: NDArray[np.int8]) -> Alignment:
        """From the state of each window to lines."""
        n = self._spool.n_pair
        changes = (np.flatnonzero(way[1:] != way[:-1]) + 1).tolist()
        ends = [*(self._place(int(way[k - 1]), int(way[k]), k * _WINDOW) for k in changes), n]
        ends = np.maximum.accumulate(ends).tolist()  # each was placed by itself
        stretches = []
        for k, after, first, end in zip([0, *changes], [*changes, len(way)], [0, *ends[:-1]], ends, strict=True):
            state = int(way[k])
            if state == FARTHEST or first == end or (state == _NONE and end - first < _FEWEST_ALONE):
                continue
            gain = float((sums[k:after, state] - sums[k:after, FARTHEST]).sum(dtype=np.float64))
            stretches.append(Stretch(first + 1, end, None if state == _NONE else state - FARTHEST, gain))
        good = way != _NONE
        own = sums[good, way[good]].sum(dtype=np.float64)
        others = (sums[good, :_N_OFFSET].sum(dtype=np.float64) - own) / (_N_OFFSET - 1)
        return Alignment(n, tuple(stretches), float(own - others) / n)

    def _place(self, before: int, after: int, near: int) -> int:
        """The line, counted from 0, from which the second state is better than the first."""
        start, end = max(0, near - 3 * _WINDOW), min(self._spool.n_pair, near + 3 * _WINDOW)
        scores = self.scores(start, end)
        gain = np.cumsum(scores[before] - scores[after], dtype=np.float64)
        return start + int(np.append(0.0, gain).argmax())
