"""Misaligned lines of two files: a stray or a missing line shifts all lines after it.

Line i of the source should go with line i of the target. Here it is asked whether i + d fits better, for d up to
FARTHEST lines either way, or nothing at all: lengths of translations go together, and so do numbers and names that both
sides spell alike. The path of the best d through the file is found by dynamic programming over windows of lines, in
which each change of d has a price. From the lines that match on that path more signs of a
match are learnt (`Half`), the path is found once more with those, and each change is placed to the line. Numbers are
read from a file of one `RECORD`, 52 bytes, a pair; in memory there are some six bytes a pair.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from nmt.data.text import N_ANCHOR, N_HASH, N_MARK, NO_ANCHOR, SIDES, Anchors, Block

# Which lines of two languages go together, learnt from the file itself.
FARTHEST_OUT = 3.0  # standard deviations that count
HIGHEST_RHO = 0.95  # of lengths alone, or the odd pair would outweigh many

_MOST_MARKS = 200  # of each side that are learnt from
_LINES_A_MARK = 16  # that must be there in a half, or chance is learnt
_MOST_NUMBERS = 16  # of a line
_RIDGE = 0.3  # of the variance of a mark: what is rare is trusted less
# A text of another kind than the rest may be far out in several numbers at once; many that each say little outvote it.
_HIGHEST_LEARNT = 0.7
_LOWEST_LEARNT = 0.1  # below is chance

Records = NDArray[Any]
Numbers = NDArray[np.float32]
_Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class _Side:
    """Makes the numbers of a line: for each of its marks a row of `table`, and for its length so much."""

    name: str
    row_of: NDArray[np.int16]  # (N_HASH,) the last row of the table is of marks that do not count
    table: Numbers  # (n_mark + 1, k)
    of_length: Numbers  # (k,)
    mean: Numbers  # (k,)

    def numbers(self, records: Records) -> Numbers:
        """(n,) records -> (n, k), of mean 0 and deviation 1; 0 for an empty line."""
        lengths = records[f"{self.name}_len"]
        found = np.log1p(lengths.astype(np.float32))[:, None] * self.of_length - self.mean
        if len(self.table) > 1:
            rows = self.row_of[records[f"{self.name}_marks"]]
            for column in rows.T:
                found += self.table[column]
        np.clip(found, -FARTHEST_OUT, FARTHEST_OUT, out=found)
        found[lengths == 0] = 0.0
        return found


@dataclass(frozen=True)
class Likeness:
    """Numbers of lines of both sides, and how those of translations go together."""

    src: _Side
    trg: _Side
    rho: Numbers  # (k,)

    def numbers(self, src: Records, trg: Records) -> tuple[Numbers, Numbers]:
        """The numbers of n sources, (n, k), and of m targets, (m, k)."""
        return self.src.numbers(src), self.trg.numbers(trg)


def by_lengths(mean: NDArray[np.float64], deviation: NDArray[np.float64], rho: float) -> Likeness:
    """Likeness by the logarithms of lengths, before anything is learnt: (2,) means and deviations of the sides."""
    sides = []
    for name, m, d in zip(SIDES, mean, deviation, strict=True):
        slope = 1 / d if d > 1e-6 else 0.0
        none = np.zeros(N_HASH, dtype=np.int16), np.zeros((1, 1), dtype=np.float32)
        sides.append(_Side(name, *none, np.array([slope], np.float32), np.array([m * slope], np.float32)))
    return Likeness(sides[0], sides[1], np.array([rho], np.float32))


class Marks:
    """The commonest marks of each side, counted, then chosen once."""

    def __init__(self) -> None:
        self._counts = np.zeros((2, N_HASH), dtype=np.int64)
        self._n_pair = 0

    def count(self, src: Records, trg: Records) -> None:
        """See some pairs."""
        self._n_pair += len(src)
        for counts, name, records in zip(self._counts, SIDES, (src, trg), strict=True):
            counts += np.bincount(records[f"{name}_marks"].ravel(), minlength=N_HASH)

    def chosen(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The marks of each side to learn from, few where there are few lines; what is in nearly all tells nothing."""
        most = min(_MOST_MARKS, self._n_pair // (2 * _LINES_A_MARK))
        found = []
        for counts in self._counts:
            counts[0] = 0
            counts[counts > 0.98 * self._n_pair] = 0
            found.append(np.argsort(-counts, kind="stable")[: min(most, int((counts > 0).sum()))])
        return found[0], found[1]


class Half:
    """Sums over the pairs of one half of a file: all that is learnt from it. A few MB whatever it has."""

    def __init__(self, marks: tuple[NDArray[np.int64], NDArray[np.int64]]) -> None:
        self.n_pair, self._marks, self._row_of = 0, marks, []
        for chosen in marks:
            row_of = np.full(N_HASH, len(chosen), dtype=np.int16)
            row_of[chosen] = np.arange(len(chosen))
            self._row_of.append(row_of)
        self._n = [len(chosen) + 1 for chosen in marks]  # and the length
        self._sum = np.zeros(sum(self._n))
        self._product = np.zeros((sum(self._n), sum(self._n)))

    def add(self, src: Records, trg: Records) -> None:
        """See some pairs."""
        seen = np.zeros((len(src), sum(self._n)), dtype=np.float32)
        start = 0
        for name, records, row_of, n in zip(SIDES, (src, trg), self._row_of, self._n, strict=True):
            rows = row_of[records[f"{name}_marks"]]
            line, place = np.nonzero(rows < n - 1)
            seen[line, start + rows[line, place]] = 1.0
            seen[:, start + n - 1] = np.log1p(records[f"{name}_len"].astype(np.float32))
            start += n
        self.n_pair += len(src)
        self._sum += seen.sum(axis=0)
        self._product += seen.T @ seen

    def _moments(self) -> tuple[NDArray[np.float64], _Matrix]:
        """(n,) means and (n, n) covariances of everything that is seen of both sides."""
        mean = self._sum / self.n_pair
        return mean, self._product / self.n_pair - np.outer(mean, mean)

    def learn(self, other: "Half") -> Likeness | None:
        """Learn from this half to judge the lines of the other; None where nothing is learnt.

        How far that is true, and what is usual, is measured there.
        """
        if min(self.n_pair, other.n_pair) < _LINES_A_MARK:
            return None
        a = self._n[0]
        _, covariance = self._moments()
        deviation = np.sqrt(np.maximum(np.diag(covariance), 0.0))
        scale = np.where(deviation > 1e-6, 1 / np.maximum(deviation, 1e-6), 0.0)
        related = covariance * np.outer(scale, scale)
        src, trg = (_whitening(related[part, part]) for part in (slice(0, a), slice(a, None)))
        left, _, right = np.linalg.svd(src.T @ related[:a, a:] @ trg, full_matrices=False)
        ways = [src @ left[:, :_MOST_NUMBERS], trg @ right[:_MOST_NUMBERS].T]
        ways = [way * part[:, None] for way, part in zip(ways, (scale[:a], scale[a:]), strict=True)]
        mean, there = other._moments()
        variance = [
            np.einsum("ik,ij,jk->k", way, part, way)
            for way, part in zip(ways, (there[:a, :a], there[a:, a:]), strict=True)
        ]
        together = np.einsum("ik,ij,jk->k", ways[0], there[:a, a:], ways[1])
        spread = [np.sqrt(np.maximum(each, 1e-12)) for each in variance]
        rho = together / (spread[0] * spread[1])
        good = rho > _LOWEST_LEARNT
        if not good.any():
            return None
        sides = []
        for name, way, each, row_of, of_mean in zip(
            SIDES, ways, spread, self._row_of, (mean[:a], mean[a:]), strict=True
        ):
            scaled = (way / each)[:, good]
            table = np.concatenate([scaled[:-1], np.zeros((1, scaled.shape[1]))])
            sides.append(
                _Side(name, row_of, *(part.astype(np.float32) for part in (table, scaled[-1], of_mean @ scaled)))
            )
        return Likeness(sides[0], sides[1], np.minimum(rho[good], _HIGHEST_LEARNT).astype(np.float32))


def _whitening(related: _Matrix) -> _Matrix:
    """Return W that makes correlated numbers independent, each of deviation 1: W.T (R + ridge) W = 1."""
    lower = np.linalg.cholesky(related + _RIDGE * np.eye(len(related)))
    return np.linalg.inv(lower).T


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
    """Stretches that are not parallel, and the strength of the match where lines are parallel.

    strength: nats by which a line goes better with its own than with another; near 0 nothing can be told, as where all
    lines are equally long.
    """

    n_pair: int
    stretches: tuple[Stretch, ...]
    strength: float

    @property
    def can_be_judged(self) -> bool:
        """True if a shift would have been found."""
        return self.n_pair >= FEWEST and self.strength >= WEAKEST


def records_of(src: Block, trg: Block, anchors: Anchors) -> Records:
    """Records of some pairs for `find_shifts`, all lines in the order of the file."""
    records = np.empty(len(src.lines), RECORD)
    for name, block in zip(_LENGTHS, (src, trg), strict=True):
        records[name] = np.minimum(block.lengths, LONGEST)
    records["src_anchors"], records["trg_anchors"] = anchors.pick(src, trg)
    records["src_marks"], records["trg_marks"] = src.marks(), trg.marks()
    return records


def find_shifts(path: Path, first: int, n_pair: int) -> Alignment:
    """Look for misaligned lines among the records first to first + n_pair of a file of `RECORD`s."""
    if n_pair < FEWEST:
        return Alignment(n_pair, (), 0.0)
    judge = _Judge(_Spool(path, first, n_pair))
    sums = judge.sums()
    judge.learn(sums, _best_way(sums))
    sums = judge.sums()
    return judge.alignment(sums, _best_way(sums))


def _in_windows(scores: Scores) -> Scores:
    """(N_STATE, n) scores of lines -> (n / _WINDOW, N_STATE) sums."""
    return np.add.reduceat(scores, np.arange(0, scores.shape[1], _WINDOW), axis=1).T


def _best_way(sums: Scores) -> NDArray[np.int8]:
    """The state of each window, by the sum of its scores less `PRICE` for each change of state."""
    n = len(sums)
    stays, came_from = np.empty((n, _N_STATE), dtype=bool), np.empty(n, dtype=np.int8)
    best = np.where(np.arange(_N_STATE) == FARTHEST, 0.0, -PRICE)  # a file is parallel until shown otherwise
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
        """Correlation of lengths where lines match: the median over pieces of the file at their best offsets."""
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

    def sums(self) -> Scores:
        """(n / _WINDOW, N_STATE) scores of windows of the whole file."""
        return np.concatenate([_in_windows(self.scores(*chunk)) for chunk in _chunks(self._spool.n_pair)])

    def learn(self, sums: Scores, way: NDArray[np.int8]) -> None:
        """Learn what goes together from lines that do on a path. The even shares judge the odd ones, and these them."""
        if not self.alignment(sums, way).can_be_judged:
            # The path rests on nothing: whatever one shift of the whole file shows is a better beginning.
            nearest = sorted(range(_N_OFFSET), key=lambda d: abs(d - FARTHEST))
            way = max(
                (np.full_like(way, d) for d in nearest),
                key=lambda way: sum(
                    float((each.rho**2).sum()) for each in self._learnt(way, _MOST_TRIED) if each is not None
                ),
            )
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

    def _learnt(self, way: NDArray[np.int8], most: int) -> list[Likeness | None]:
        """Learn from the even shares to judge the odd ones, and the reverse, from about so many lines of each."""
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
        """Stretches of misaligned lines by the state of each window."""
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
        """True if lines without a match should be reported: many, and their lengths and anchors say the same.

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
