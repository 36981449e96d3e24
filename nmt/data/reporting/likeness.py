"""Which lines of two languages go together, learnt from the file itself: what one contains tells what the other does.

Canonical correlation (Hotelling 1936) between the commonest marks of the lines (words, characters and signs as
`text/facts.py` hashes them) and the lengths: a few numbers for each line, such that the j-th of a line and the j-th of
its translation have the greatest correlation that there is. No dictionary is needed and no language is known. It is
learnt from two halves of the file, each to judge the other, so that no line speaks for itself.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.data.text.facts import N_HASH
from nmt.data.text.split_names import SIDES

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
    """What is known before anything is learnt: the logarithms of lengths, (2,) means and deviations of the sides."""
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
        """What this half says of the lines of the other; None where it says nothing.

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
    """What makes numbers with these correlations independent, each of deviation 1: W.T (R + ridge) W = 1."""
    lower = np.linalg.cholesky(related + _RIDGE * np.eye(len(related)))
    return np.linalg.inv(lower).T
