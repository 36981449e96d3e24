"""Learners of BPE merges and of unigram pieces, from words and their counts.

The merges equal those of the tokenizers library.
"""

import heapq
import itertools
import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from operator import add
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays import Ints, positions

Counts = Mapping[str, int]


def merges_of(
    words: Counts, letters: Mapping[str, int], n_piece: int, longest: int, saved: Counts = MappingProxyType({})
) -> tuple[list[str], list[tuple[str, str]]]:
    """Learn the pieces in the order of their ids, letters first, and the merges in their order.

    words: their counts. letters: those of the words, with their numbers of bytes. n_piece: number of pieces to learn.
    longest: bound on the bytes of a piece, exclusive. saved: optional letters, with the number of pieces that each of
    them saves, at least its count: such a letter becomes a piece before a merge that saves fewer.
    The most frequent pair is merged first; of equally frequent ones, that of the lowest ids.
    """
    vocab = sorted(letters)
    id_of = {piece: i for i, piece in enumerate(vocab)}
    merges: dict[tuple[str, str], None] = {}
    optional = sorted(saved, key=lambda letter: (-saved[letter], letter))
    n_used = 0  # optional letters that are pieces
    # A symbol is the character whose code point is the id of a piece. Words and pairs are strings of symbols.
    n_byte = {chr(i): letters[letter] for i, letter in enumerate(vocab)}
    symbol_of = str.maketrans({letter: chr(i) for i, letter in enumerate(vocab)})
    texts, count_of = [word.translate(symbol_of) for word in words], list(words.values())
    words_of = defaultdict[str, list[int]](list)  # numbers of the words with each pair
    for word, text in enumerate(texts):
        for pair in map(add, text, text[1:]):
            words_of[pair].append(word)
    n_pair = defaultdict[str, int](int)
    n_pair.update((pair, sum(map(count_of.__getitem__, numbers))) for pair, numbers in words_of.items())
    # Negative count, pair, and the words in which a merge created it; an entry for each merge that created some.
    turn = itertools.count()
    queue = [(-n_pair[pair], pair, next(turn), numbers) for pair, numbers in words_of.items()]
    heapq.heapify(queue)
    while queue:
        negative_count, pair, entry, numbers = heapq.heappop(queue)
        if (count := n_pair[pair]) != -negative_count:
            if count > 0:
                heapq.heappush(queue, (-count, pair, entry, numbers))
            continue
        while n_used < len(optional) and saved[optional[n_used]] >= count:
            n_used += 1
        if len(vocab) - len(optional) + n_used >= n_piece or len(vocab) > sys.maxunicode:
            break
        first, second = pair[0], pair[1]
        a, b = vocab[ord(first)], vocab[ord(second)]
        if (i := id_of.setdefault(a + b, len(vocab))) == len(vocab):
            vocab.append(a + b)
        merges.pop((a, b), None)  # a pair that is merged again takes its later rank
        merges[a, b] = None
        new = chr(i)
        n_byte[new] = n_byte[first] + n_byte[second]
        # Words by the symbol before or after the new one; "" for another new symbol before it.
        before, after = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
        for word in numbers:
            parts = texts[word].split(pair)
            texts[word] = new.join(parts)
            for n, (left, right) in enumerate(itertools.pairwise(parts)):
                if left or n:
                    before[left[-1:]].append(word)
                if right:
                    after[right[0]].append(word)
        changes = [((left or second) + first, (left or new) + new, numbers) for left, numbers in before.items()]
        changes += [(second + right, new + right, numbers) for right, numbers in after.items()]
        words_of = defaultdict(list)
        for old_pair, new_pair, numbers in changes:
            count = sum(map(count_of.__getitem__, numbers))
            n_pair[old_pair] -= count
            if n_byte[new_pair[0]] + n_byte[new_pair[1]] < longest:
                n_pair[new_pair] += count
                words_of[new_pair] += numbers
        for pair, numbers in words_of.items():
            if n_pair[pair] > 0:
                heapq.heappush(queue, (-n_pair[pair], pair, next(turn), numbers))
    left_out = set(optional[n_piece - (len(vocab) - len(optional)) :])
    return [piece for piece in vocab if piece not in left_out], list(merges)


# Learning a unigram vocabulary.
Floats = NDArray[np.float64]
Places = NDArray[np.int32]

# Number of words to learn from, the most frequent ones: each has about 30 places of pieces, of some 20 bytes.
_MOST_WORDS = 400_000
_N_ROUND = 2  # rounds of expectation maximisation before each pruning
_KEPT = 0.75  # share of the pieces that a pruning keeps
_MIN_COUNT = 1e-3  # lower bound on the expected count of a piece
_DECIMALS = 6


def learn_scores(words: Counter[str], pieces: Sequence[str], always: Sequence[str], n_piece: int) -> dict[str, float]:
    """The n_piece most useful pieces with their log-probabilities, the most likely first.

    words: their counts. pieces: candidates. always: pieces of one letter, which are never dropped.
    """
    frequent = sorted(words.items(), key=lambda item: (-item[1], item[0]))[:_MOST_WORDS]
    candidates = list(dict.fromkeys([*always, *pieces]))
    lattice = Lattice([word for word, _ in frequent], candidates)
    piece_lattice = Lattice(candidates, candidates, whole=False)  # segmentations of a piece if it were dropped
    word_count = np.array([n for _, n in frequent], dtype=np.float64)
    alive = np.ones(len(candidates), dtype=bool)
    score = np.full(len(candidates), -np.log(len(candidates)))
    while True:
        for _ in range(_N_ROUND):
            count = np.maximum(lattice.expected(score, word_count), _MIN_COUNT)
            score = np.where(alive, np.log(count) - np.log(count[alive].sum()), -np.inf)
        n_alive = int(alive.sum())
        if n_alive <= n_piece:
            break
        loss = np.where(alive, count * (score - piece_lattice.best(score)), -np.inf)
        loss[: len(always)] = np.inf
        alive[np.argsort(-loss, kind="stable")[max(n_piece, int(n_alive * _KEPT)) :]] = False
        score[~alive] = -np.inf
    rounded = score.round(_DECIMALS)
    order = np.argsort(-rounded, kind="stable")[: int(alive.sum())].tolist()
    return {candidates[i]: float(rounded[i]) for i in order}


class Lattice:
    """All segmentations of words into pieces, as edges between the places of their letters."""

    def __init__(self, words: Sequence[str], pieces: Sequence[str], *, whole: bool = True) -> None:
        """whole: whether a word of several letters may be one piece."""
        id_of = {piece: i for i, piece in enumerate(pieces)}
        longest = max(map(len, pieces))
        n_place = np.array([len(word) + 1 for word in words], np.int64)
        self._last = np.cumsum(n_place) - 1
        self._first = self._last - n_place + 1  # place before the first letter
        begins, ends, piece_of = array("i"), array("i"), array("i")
        for word, first in zip(words, self._first.tolist(), strict=True):
            n = len(word)
            for i in range(n):
                for j in range(i + 1, min(n, i + longest) + 1):
                    piece = id_of.get(word[i:j])
                    if piece is not None and (whole or n == 1 or j - i < n):
                        begins.append(first + i)
                        ends.append(first + j)
                        piece_of.append(piece)
        self._begin, self._end, self._piece = (np.array(values, np.int32) for values in (begins, ends, piece_of))
        self._n_place = n_place
        depth = positions(n_place)  # letters before each place
        self._by_end = _levels(depth[self._end], self._end)
        self._by_begin = _levels(-depth[self._begin], self._begin)

    def expected(self, score: Floats, word_count: Floats) -> Floats:
        """(n_piece,) expected count of each piece over all segmentations of the words. score: log-probabilities."""
        edge_score = score[self._piece]
        before = self._path_scores(edge_score, np.logaddexp)
        after = self._path_scores(edge_score, np.logaddexp, backwards=True)
        total = np.repeat(before[self._last], self._n_place)
        weight = np.repeat(word_count, self._n_place)
        share = np.exp(before[self._begin] + edge_score + after[self._end] - total[self._begin])
        return np.bincount(self._piece, share * weight[self._begin], minlength=len(score)).astype(np.float64)

    def best(self, score: Floats) -> Floats:
        """(n_word,) log-probability of the likeliest segmentation of each word."""
        best: Floats = self._path_scores(score[self._piece], np.maximum)[self._last]
        return best

    def _path_scores(self, edge_score: Floats, combine: np.ufunc, *, backwards: bool = False) -> Floats:
        """(n_place,) combined log-probability of all paths to each place from the start of its word, or its end."""
        scores = np.full(int(self._n_place.sum()), -np.inf)
        scores[self._last if backwards else self._first] = 0.0
        source, target = (self._end, self._begin) if backwards else (self._begin, self._end)
        for edges in self._by_begin if backwards else self._by_end:
            place = target[edges]
            first = np.flatnonzero(np.diff(place, prepend=-1))
            scores[place[first]] = combine.reduceat(scores[source[edges]] + edge_score[edges], first)
        return scores


def _levels(depth: Ints, place: Places) -> list[Ints]:
    """Edges grouped by ascending depth, and sorted by place within each group."""
    order = np.lexsort((place, depth))
    return np.split(order, np.flatnonzero(np.diff(depth[order])) + 1) if len(order) else []
