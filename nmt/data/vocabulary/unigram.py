"""Learning a unigram vocabulary: pieces with probabilities under which the text is likely (Kudo 2018).

Pieces begin as those of BPE with many merges. In turns, their probabilities are made those of the text by expectation
maximisation over all ways to cut each word, and the pieces that the text misses least are dropped. The tokenizers
library encodes with what comes out; its own trainer gives other pieces for another number of threads.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Words that are learnt from, the most frequent ones: about 30 places for pieces each, of some 20 bytes.
_MOST_WORDS = 400_000
_ROUNDS = 2  # of expectation maximisation between droppings
_KEPT = 0.75  # share of the pieces that a dropping keeps
_LEAST = 1e-3  # occurrences that a piece is taken to have at least
_DECIMALS = 6


def learn_scores(
    words: Counter[str], pieces: Sequence[str], always: Sequence[str], n_piece: int
) -> tuple[list[str], list[float]]:
    """The n_piece most useful of the pieces and their log-probabilities, the most likely first.

    words: how often each occurs. pieces: to choose from. always: those of one letter, which stay whatever happens.
    """
    frequent = sorted(words.items(), key=lambda each: (-each[1], each[0]))[:_MOST_WORDS]
    kept = list(dict.fromkeys([*always, *pieces]))
    lattice = Lattice([word for word, _ in frequent], kept)
    n_of = np.array([n for _, n in frequent], dtype=np.float64)
    n_always = len(always)
    alive = np.ones(len(kept), dtype=bool)
    score = np.full(len(kept), -np.log(len(kept)))
    inside = Lattice(kept, kept, whole=False)  # how a piece would be cut if there were no such piece
    while True:
        for _ in range(_ROUNDS):
            count = np.maximum(lattice.expected(score, n_of), _LEAST)
            score = np.where(alive, np.log(count) - np.log(count[alive].sum()), -np.inf)
        n_alive = int(alive.sum())
        if n_alive <= n_piece:
            break
        loss = np.where(alive, count * (score - inside.best(score)), -np.inf)
        loss[:n_always] = np.inf
        target = max(n_piece, int(n_alive * _KEPT))
        order = np.lexsort((np.arange(len(kept)), -loss))
        alive[order[target:]] = False
        score[~alive] = -np.inf
    rounded = score.round(_DECIMALS)
    order = np.array([i for i in np.lexsort((np.arange(len(kept)), -rounded)) if alive[i]])
    return [kept[i] for i in order], [float(rounded[i]) for i in order]


class Lattice:
    """All the ways to put words together from pieces, as edges between the places of their letters."""

    def __init__(self, words: Sequence[str], pieces: Sequence[str], *, whole: bool = True) -> None:
        """whole: whether a word may be one piece of more than a letter."""
        id_of = {piece: i for i, piece in enumerate(pieces)}
        longest = max(map(len, pieces))
        begin: list[int] = []
        end: list[int] = []
        piece_of: list[int] = []
        self._first = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1]  # place before the first letter
        self._last = self._first + [len(word) for word in words]
        for word, first in zip(words, self._first.tolist(), strict=True):
            n = len(word)
            for i in range(n):
                for j in range(i + 1, min(n, i + longest) + 1):
                    piece = id_of.get(word[i:j])
                    if piece is not None and (whole or n == 1 or j - i < n):
                        begin.append(first + i)
                        end.append(first + j)
                        piece_of.append(piece)
        self.n_piece, self.n_place = len(pieces), int(self._last[-1]) + 1 if words else 0
        self._begin, self._end = np.array(begin, np.int32), np.array(end, np.int32)
        self._piece = np.array(piece_of, np.int32)
        # Letters before each place.
        depth = np.arange(self.n_place) - np.repeat(self._first, self._last - self._first + 1)
        self._by_end = _levels(depth[self._end], self._end)
        self._by_begin = _levels(-depth[self._begin], self._begin)

    def expected(self, score: Floats, n_of: Floats) -> Floats:
        """(n_piece,) how often each occurs if each word is cut in all its ways, each as often as it is likely.

        score: (n_piece,) log-probabilities. n_of: how often each word occurs.
        """
        alpha, beta = np.full((2, self.n_place), -np.inf)
        alpha[self._first] = beta[self._last] = 0.0
        of_edge = score[self._piece]
        for edges in self._by_end:
            _add_up(alpha, self._end[edges], alpha[self._begin[edges]] + of_edge[edges])
        for edges in self._by_begin:
            _add_up(beta, self._begin[edges], beta[self._end[edges]] + of_edge[edges])
        total = np.repeat(alpha[self._last], self._last - self._first + 1)
        weight = np.repeat(n_of, self._last - self._first + 1)
        share = np.exp(alpha[self._begin] + of_edge + beta[self._end] - total[self._begin])
        count = np.zeros(self.n_piece)
        count += np.bincount(self._piece, share * weight[self._begin], minlength=self.n_piece)
        return count

    def best(self, score: Floats) -> Floats:
        """(n_word,) the log-probability of the likeliest way to cut each word."""
        alpha = np.full(self.n_place, -np.inf)
        alpha[self._first] = 0.0
        for edges in self._by_end:
            end, reached = self._end[edges], alpha[self._begin[edges]] + score[self._piece[edges]]
            first = np.flatnonzero(np.diff(end, prepend=-1))
            alpha[end[first]] = np.maximum.reduceat(reached, first)
        reached_at_end: Floats = alpha[self._last]
        return reached_at_end


def _levels(depth: NDArray[np.int64], place: NDArray[np.int32]) -> list[NDArray[np.int64]]:
    """Edges by their depth, those of the least first, and within a depth by their place."""
    order = np.lexsort((place, depth))
    return np.split(order, np.flatnonzero(np.diff(depth[order])) + 1) if len(order) else []


def _add_up(total: Floats, place: NDArray[np.int32], value: Floats) -> None:
    """total[p] = log of the sum of the exponentials of the values at place p. place: ascending."""
    first = np.flatnonzero(np.diff(place, prepend=-1))
    most = np.maximum.reduceat(value, first)
    most = np.where(np.isneginf(most), 0.0, most)
    n = np.diff(first, append=len(place))
    with np.errstate(divide="ignore"):
        total[place[first]] = np.log(np.add.reduceat(np.exp(value - np.repeat(most, n)), first)) + most
