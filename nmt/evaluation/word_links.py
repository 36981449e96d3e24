"""Which words of two texts belong together, by how they occur together: IBM Model 1 in both directions.

P. Brown et al. 1993, "The mathematics of statistical machine translation": every word of one side comes from a word of
the other or from none, all of them equally likely at first; expectation maximisation then finds how likely a word is to
come from another. It is what alignments can be compared with where nobody has marked any.
"""

import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nmt.errors import DataError
from nmt.evaluation.alignment_error import Gold

N_ROUND = 8  # of expectation maximisation, which changes little after five or so
_TIE = 1e-6  # how much words far from the diagonal fall behind, which decides between equal ones and nothing else

MOST_PAIRS = 10_000_000  # of words that stand in the same line: what is kept of each makes a GB or two of this many

Words = Sequence[Sequence[str]]


def word_links(src: Words, trg: Words) -> list[Gold]:
    """Links of the words of each pair: sure where both directions say so, possible where one does.

    Raises DataError where there is too much to count.
    """
    n_pair = 0
    for number, (left, right) in enumerate(zip(src, trg, strict=True)):
        n_pair += (len(left) + 1) * (len(right) + 1)
        if n_pair > MOST_PAIRS:
            raise DataError(
                f"{len(src):,} lines are too many to count which words occur together: give the first {number:,}, or "
                "links by people."
            )
    forth = _directed(src, trg)
    back = [{(i, j) for j, i in links} for links in _directed(trg, src)]
    return [Gold(frozenset(a & b), frozenset(a | b)) for a, b in zip(forth, back, strict=True)]


def bare(words: Sequence[str]) -> list[str]:
    """Words as they are counted: without case and without punctuation at their ends, if anything is left."""
    return [_bare(word) for word in words]


def _bare(word: str) -> str:
    first, end = 0, len(word)
    while first < end and unicodedata.category(word[first])[0] in "PS":
        first += 1
    while first < end and unicodedata.category(word[end - 1])[0] in "PS":
        end -= 1
    return (word[first:end] or word).casefold()


def _directed(src: Words, trg: Words) -> list[set[tuple[int, int]]]:
    """Of each word of trg the word of src that it comes from, if from any, by Model 1 with a word for "none"."""
    known_src: dict[str, int] = {}
    known_trg: dict[str, int] = {}
    columns: list[NDArray[np.int64]] = []  # source, target, place in source (-1: none), in target, line, far
    far: list[NDArray[np.float64]] = []
    for line, (left, right) in enumerate(zip(src, trg, strict=True)):
        s = np.array([0, *(known_src.setdefault(word, len(known_src) + 1) for word in left)], dtype=np.int64)
        t = np.array([known_trg.setdefault(word, len(known_trg)) for word in right], dtype=np.int64)
        i, j = np.arange(-1, len(left)), np.arange(len(right))
        grid = [np.broadcast_to(s, (len(t), len(s))), np.broadcast_to(t[:, None], (len(t), len(s)))]
        grid += [np.broadcast_to(i, grid[0].shape), np.broadcast_to(j[:, None], grid[0].shape)]
        columns.append(np.stack([*(one.ravel() for one in grid), np.full(grid[0].size, line)]))
        far.append(np.abs((i + 0.5) / max(1, len(left)) - (j[:, None] + 0.5) / max(1, len(right))).ravel())
    found: list[set[tuple[int, int]]] = [set() for _ in src]
    if not columns or not sum(one.shape[1] for one in columns):
        return found
    s, t, i, j, line_of = np.concatenate(columns, axis=1)
    starts = np.flatnonzero(i == -1)  # what each word of trg may come from stands together, beginning with none
    slot = np.cumsum(i == -1) - 1
    kinds, kind = np.unique(s * len(known_trg) + t, return_inverse=True)
    s_of_kind = kinds // len(known_trg)
    share = np.ones(len(kinds))
    for _ in range(N_ROUND):
        weight = share[kind]
        weight /= np.add.reduceat(weight, starts)[slot]
        count = np.bincount(kind, weight, len(kinds))
        share = count / np.bincount(s_of_kind, count)[s_of_kind]
    weight = share[kind] * (1.0 - _TIE * np.concatenate(far))
    best = np.maximum.reduceat(weight, starts)[slot] == weight
    taken: set[int] = set()
    for n in np.flatnonzero(best & (i >= 0)):
        if slot[n] not in taken:
            taken.add(int(slot[n]))
            found[line_of[n]].add((int(i[n]), int(j[n])))
    return found
