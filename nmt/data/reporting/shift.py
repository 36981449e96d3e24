"""Where two files of a corpus stop being parallel: a stray or a missing line shifts all lines after it.

Line i of the source should go with line i of the target. Here it is asked whether i + d fits better, for d up to
FARTHEST lines either way, or nothing at all: lengths of translations go together, and so do numbers and names that both
sides spell alike. The path of the best d through the file is found by dynamic programming over windows of lines, in
which each change of d has a price. From the lines that go together on that path it is learnt what else does
(`likeness.py`), the path is found once more with that, and each change is placed to the line. Numbers are read from a
file in which each pair has `RECORD` bytes, 52; in memory there are some six bytes a pair.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from nmt.data.reporting.likeness import HIGHEST_RHO, Half, Likeness, Marks, by_lengths
from nmt.data.text.facts import N_ANCHOR, N_MARK, NO_ANCHOR, Anchors, Block
from nmt.data.text.split_names import SIDES

RECORD = np.dtype(
    [(f"{side}_len", "<u2") for side in SIDES]
    + [(f"{side}_anchors", "<u2", N_ANCHOR) for side in SIDES]
    + [(f"{side}_marks", "<u2", N_MARK) for side in SIDES]
)
FARTHEST = 10
LONGEST = 65535  # characters that a record can tell
# The evidence, in nats, that a change of d must bring. Lines depend on each other more than sums of nats suppose: what
# clean corpora bring, and what shifts do, was measured on whole corpora.
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
_MOST_FROM_ONE_LINE = 6.0
_SHARE_ALONE = 1 / 3  # of what lines that go together gain: with less of it over many lines they do not
_CHANCE_OF_ANCHOR = 0.3  # that the translation of a line with an anchor has it, too
_SHARE = 2048  # lines at most that fall to one half of the file, before as many that fall to the other
_MOST_LEARNT, _MOST_TRIED = 10_000, 2000  # lines of a half that are learnt from, and to see whether it is worth it

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
    records["src_marks"], records["trg_marks"] = src.marks(), trg.marks()
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
    sums = judge.sums(lambda n: done(n // 2))
    judge.learn(sums, _best_way(sums, price))
    sums = judge.sums(lambda n: done(n - n // 2))
    return judge.alignment(sums, _best_way(sums, price))


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
        mean = sums / np.maximum(n_line, 1)
        deviation = np.sqrt(np.maximum(squares / np.maximum(n_line, 1) - mean**2, 0.0))
        share = np.maximum(anchors, 1) / spool.n_pair
        self._weight = np.maximum(0.0, np.log(_CHANCE_OF_ANCHOR / share)).astype(np.float32)
        self._weight[NO_ANCHOR] = 0.0
        # What judges the even shares of the file, and the odd ones.
        self._share = min(_SHARE, max(_WINDOW, spool.n_pair // 16))
        self._likeness: list[Likeness] = [by_lengths(mean, deviation, 1.0)] * 2
        # What is learnt is no likelihood to the digit: "with none" then means hardly better than with the average line
        # near by, by so many nats a line. None: 0 is what lines that have nothing to do with each other have.
        self._alone: np.float32 | None = None
        self._at_first = by_lengths(mean, deviation, self._correlation())
        self._likeness = [self._at_first] * 2

    def _correlation(self) -> float:
        """How lengths correlate where lines go together: the middle of the pieces of the file at their best offsets."""
        found: list[float] = []
        for start, end in _chunks(self._spool.n_pair):
            wide = self._spool.read(start - FARTHEST, end + FARTHEST)
            numbers = self._likeness[0].numbers(wide[FARTHEST : FARTHEST + end - start], wide)
            src, trg = (each[:, 0] for each in numbers)
            for a in range(0, end - start, _PIECE):
                b = min(a + _PIECE, end - start)
                if b - a >= _PIECE // 2 or not found:
                    found.append(max(float(src[a:b] @ trg[a + d : b + d]) / (b - a) for d in range(_N_OFFSET)))
        return float(np.clip(np.median(found), 0.0, HIGHEST_RHO))

    def sums(self, done: Callable[[int], object]) -> Scores:
        """(n / _WINDOW, N_STATE) scores of windows of the whole file. done: is told how many lines more were scored."""
        found = []
        for start, end in _chunks(self._spool.n_pair):
            found.append(_in_windows(self.scores(start, end)))
            done(end - start)
        return np.concatenate(found)

    def learn(self, sums: Scores, way: NDArray[np.int8]) -> None:
        """Learn what goes together from lines that do on a path. The even shares judge the odd ones, and these them."""
        if not self.alignment(sums, way).can_be_judged:
            # The path rests on nothing: whatever one shift of the whole file shows is a better beginning.
            nearest = sorted(range(_N_OFFSET), key=lambda d: abs(d - FARTHEST))
            way = max((np.full_like(way, d) for d in nearest), key=lambda way: self._told(way))
        learnt = self._learnt(way, _MOST_LEARNT)
        self._likeness = [new or old for new, old in zip(learnt[::-1], self._likeness, strict=True)]
        if any(learnt):
            starts = range(0, len(way), max(1, len(way) * _WINDOW // _MOST_TRIED))
            sums = np.concatenate([_in_windows(self.scores(*self._window(k))) for k in starts])
            strength = self._strength(sums, way[list(starts)]) / (len(starts) * _WINDOW)
            self._alone = np.float32(_SHARE_ALONE * strength)

    def _window(self, k: int) -> tuple[int, int]:
        return k * _WINDOW, min((k + 1) * _WINDOW, self._spool.n_pair)

    @staticmethod
    def _strength(sums: Scores, way: NDArray[np.int8]) -> float:
        """Nats by which lines on a path go better with their own than with others."""
        good = way != _NONE
        own = sums[good, way[good]].sum(dtype=np.float64)
        others = (sums[good, :_N_OFFSET].sum(dtype=np.float64) - own) / (_N_OFFSET - 1)
        return float(own - others)

    def _told(self, way: NDArray[np.int8]) -> float:
        """How much can be learnt on a path, from some lines."""
        return sum(float((each.rho**2).sum()) for each in self._learnt(way, _MOST_TRIED) if each is not None)

    def _learnt(self, way: NDArray[np.int8], most: int) -> list[Likeness | None]:
        """What the even shares say of the odd ones, and these of them, from about so many lines of each."""
        n_share = -(-self._spool.n_pair // self._share)
        stride = 2 * max(1, n_share * self._share // (2 * most))
        chosen = [n for n in range(n_share) if n % stride < 2]
        marks = Marks()
        for n in chosen:
            marks.count(*self._together(n, way))
        of_marks = marks.chosen()
        halves = Half(of_marks), Half(of_marks)
        for n in chosen:
            halves[n % 2].add(*self._together(n, way))
        return [halves[0].learn(halves[1]), halves[1].learn(halves[0])]

    def _together(self, n: int, way: NDArray[np.int8]) -> tuple[Records, Records]:
        """The pairs of one share of the file by a path."""
        start, end = n * self._share, min((n + 1) * self._share, self._spool.n_pair)
        wide = self._spool.read(start - FARTHEST, end + FARTHEST)
        src = np.arange(end - start)
        state = way[(src + start) // _WINDOW].astype(np.int64)
        trg = src + state
        good = (
            (state != _NONE)
            & (wide["src_len"][src + FARTHEST] > 0)
            & (wide["trg_len"][np.minimum(trg, len(wide) - 1)] > 0)
        )
        return wide[src[good] + FARTHEST], wide[trg[good]]

    def scores(self, start: int, end: int) -> Scores:
        """(N_STATE, end - start): source line start + i with target line start + i + d - FARTHEST; last, with none."""
        shares = range(start // self._share, -(-end // self._share))
        found = [
            self._scores(
                max(start, n * self._share), min(end, (n + 1) * self._share), self._likeness[n % 2], self._alone
            )
            for n in shares
        ]
        return np.concatenate(found, axis=1)

    def _scores(self, start: int, end: int, likeness: Likeness, alone: np.float32 | None) -> Scores:
        wide = self._spool.read(start - FARTHEST, end + FARTHEST)
        n, rho = end - start, likeness.rho
        src, trg = likeness.numbers(wide[FARTHEST : FARTHEST + n], wide)
        slope, bend = rho / (1 - rho**2), rho**2 / (2 * (1 - rho**2))
        # Not by BLAS, some of whose kernels raise the flag of an invalid number that is none of ours.
        of_src = -np.float32(0.5 * np.log(1 - rho**2).sum()) - np.einsum("nk,k->n", src * src, bend)
        of_trg = np.einsum("nk,k->n", trg * trg, bend)
        src = src * slope
        anchors = np.ascontiguousarray(wide["src_anchors"][FARTHEST : FARTHEST + n].T)
        others = np.ascontiguousarray(wide["trg_anchors"].T)
        beside = sliding_window_view(others, n, axis=1)  # (N_ANCHOR, _N_OFFSET, n) of the target lines
        weights = self._weight[anchors]
        scores = np.zeros((_N_STATE, n), dtype=np.float32)
        of_offsets = scores[:_N_OFFSET]
        for d in range(_N_OFFSET):
            of_offsets[d] = np.einsum("nk,nk->n", src, trg[d : d + n]) + of_src - of_trg[d : d + n]
        for anchor, weight in zip(anchors, weights, strict=True):
            shared = anchor == beside[0]
            for other in beside[1:]:
                shared |= anchor == other
            places = np.flatnonzero(shared)  # few
            of_offsets.reshape(-1)[places] += weight[places % n]
        np.clip(of_offsets, -_MOST_FROM_ONE_LINE, _MOST_FROM_ONE_LINE, out=of_offsets)
        if alone is not None:
            src_len, trg_len = wide["src_len"][FARTHEST : FARTHEST + n], wide["trg_len"]
            of_offsets[(src_len == 0) | (sliding_window_view(trg_len, n) == 0)] = 0.0
            scores[_NONE] = scores[:_N_OFFSET].mean(axis=0)
            scores[_NONE, (src_len > 0) | (trg_len[FARTHEST : FARTHEST + n] > 0)] += alone
        return scores

    def alignment(self, sums: Scores, way: NDArray[np.int8]) -> Alignment:
        """Which lines go together, by the state of each window."""
        n = self._spool.n_pair
        changes = (np.flatnonzero(way[1:] != way[:-1]) + 1).tolist()
        ends = [*(self._place(int(way[k - 1]), int(way[k]), k * _WINDOW) for k in changes), n]
        ends = np.maximum.accumulate(ends).tolist()  # each was placed by itself
        stretches = []
        for k, after, first, end in zip([0, *changes], [*changes, len(way)], [0, *ends[:-1]], ends, strict=True):
            state = int(way[k])
            if state == FARTHEST or first == end or (state == _NONE and not self._are_alone(first, end)):
                continue
            gain = float((sums[k:after, state] - sums[k:after, FARTHEST]).sum(dtype=np.float64))
            stretches.append(Stretch(first + 1, end, None if state == _NONE else state - FARTHEST, gain))
        found = Alignment(n, tuple(stretches), self._strength(sums, way) / n)
        # Where nothing goes together, what goes best does so by chance: a path through noise is no shift.
        return found if found.can_be_judged else replace(found, stretches=())

    def _are_alone(self, first: int, end: int) -> bool:
        """Whether lines that seem to go with none are worth a word: many, and their lengths and anchors deny it, too.

        What was learnt elsewhere may not be true of lines of another kind.
        """
        if end - first < _FEWEST_ALONE:
            return False
        total = np.zeros(_N_OFFSET)
        for a, b in _chunks(end - first):
            scores = self._scores(first + a, first + b, self._at_first, alone=None)
            total += scores[:_N_OFFSET].sum(axis=1, dtype=np.float64)
        return bool(total.max() < PRICE)

    def _place(self, before: int, after: int, near: int) -> int:
        """The line, counted from 0, from which the second state is better than the first."""
        start, end = max(0, near - 3 * _WINDOW), min(self._spool.n_pair, near + 3 * _WINDOW)
        scores = self.scores(start, end)
        gain = np.cumsum(scores[before] - scores[after], dtype=np.float64)
        return start + int(np.append(0.0, gain).argmax())
