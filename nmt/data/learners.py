"""Learners of BPE merges and of unigram pieces, from words and their counts.

The merges equal those of the tokenizers library. All different words are concatenated in one array of symbols with
links to their neighbours, and a merge visits only the places of its pair.
"""

import heapq
from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays import Ints, turns

Counts = Mapping[str, int]
Places = NDArray[np.int32]

_DEAD = -1  # the symbol of a place that was merged into the one before
_NOWHERE = -1  # the link at the end of a word


def merges_of(
    words: Counts, letters: Mapping[str, int], n_piece: int, longest: int, saved: Counts = MappingProxyType({})
) -> tuple[list[str], list[tuple[str, str]]]:
    """Learn the pieces in the order of their ids, letters first, and the merges in their order.

    words: their counts. letters: those of the words, with their numbers of bytes. n_piece: number of pieces to learn.
    longest: bound on the bytes of a piece, exclusive. saved: optional letters, with the number of pieces that each of
    them saves, at least its count: such a letter becomes a piece before a merge that saves fewer.
    The most frequent pair is merged first; of equally frequent ones, that of the lowest ids.
    """
    text = _Text(words, letters, longest)
    vocab = sorted(letters)
    id_of = {piece: i for i, piece in enumerate(vocab)}
    merges: dict[tuple[str, str], None] = {}
    optional = sorted(saved, key=lambda letter: (-saved[letter], letter))
    n_used = 0  # optional letters that are pieces
    while found := text.most_frequent():
        key, group, count = found
        while n_used < len(optional) and saved[optional[n_used]] >= count:
            n_used += 1
        if len(vocab) - len(optional) + n_used >= n_piece:
            break
        a, b = vocab[key >> 32], vocab[key & 0xFFFFFFFF]
        if (new := id_of.setdefault(a + b, len(vocab))) == len(vocab):
            vocab.append(a + b)
        merges.pop((a, b), None)  # a pair that is merged again takes its later rank
        merges[a, b] = None
        text.merge(key, group, new)
    left_out = set(optional[n_piece - (len(vocab) - len(optional)) :])
    return [piece for piece in vocab if piece not in left_out], list(merges)


class _Text:
    """All different words as symbols, with the places of each pair of neighbours.

    Memory: 16 bytes for each letter of the words, and as many again for the places of pairs.
    """

    def __init__(self, words: Counts, letters: Mapping[str, int], longest: int) -> None:
        code_of = np.zeros(max(map(ord, letters)) + 1, np.int32)
        code_of[[ord(letter) for letter in sorted(letters)]] = np.arange(len(letters))
        self._symbol = code_of[np.frombuffer("".join(words).encode("utf-32-le"), np.uint32)]
        n_letter = np.fromiter(map(len, words), np.int32, len(words))
        self._word = np.repeat(np.arange(len(words), dtype=np.int32), n_letter)
        self._count = np.fromiter(words.values(), np.int64, len(words))
        ends = np.cumsum(n_letter)
        self._next = np.arange(1, len(self._symbol) + 1, dtype=np.int32)
        self._next[ends - 1] = _NOWHERE
        self._before = np.arange(-1, len(self._symbol) - 1, dtype=np.int32)
        self._before[ends - n_letter] = _NOWHERE
        self._is_merged = np.zeros(len(self._symbol), dtype=bool)
        self._longest, self._length = longest, [letters[letter] for letter in sorted(letters)]  # bytes of each symbol
        self._n_pair = defaultdict[int, int](int)  # count of each pair
        # Places of each pair, one group for each merge that created some; each group has its own entry in the queue.
        self._places: dict[int, list[array[int]]] = {}
        self._queue: list[tuple[int, int, int]] = []  # negative count, pair, number of the group
        first = np.flatnonzero(self._next >= 0).astype(np.int32)
        if len(first):
            keys = self._symbol[first].astype(np.int64) << 32 | self._symbol[first + 1]
            order = np.argsort(keys, kind="stable")
            starts = np.flatnonzero(np.diff(keys[order], prepend=_NOWHERE))
            counts = np.add.reduceat(self._count[self._word[first[order]]], starts).tolist()
            for key, n, places in zip(
                keys[order[starts]].tolist(), counts, np.split(first[order], starts[1:]), strict=True
            ):
                self._n_pair[key] = n
                self._enqueue(key, array("i", places.tobytes()))

    def most_frequent(self) -> tuple[int, int, int] | None:
        """The pair to merge, the number of its group of places, and its count; None if no pair is left."""
        while self._queue:
            count, key, group = heapq.heappop(self._queue)
            if -count == self._n_pair[key]:
                return key, group, -count
            if self._n_pair[key] > 0:
                heapq.heappush(self._queue, (-self._n_pair[key], key, group))
        return None

    def merge(self, key: int, group: int, new: int) -> None:
        """Replace a pair by a new symbol, at all its places in the words of a group."""
        a, b = key >> 32, key & 0xFFFFFFFF
        first = self._places_in(key, group, a, b)
        if new == len(self._length):
            self._length.append(self._length[a] + self._length[b])
        second = self._next[first]
        left, right = self._before[first], self._next[second]
        self._symbol[first], self._symbol[second] = new, _DEAD
        self._next[first] = right
        has_right = right >= 0
        self._before[right[has_right]] = first[has_right]
        self._is_merged[first] = True
        # If two merged symbols are neighbours, the left one accounts for the pair between them.
        has_left = (left >= 0) & (self._symbol[left] != _DEAD)
        before, after = left[has_left], right[has_right]
        left_symbol = self._symbol[before].astype(np.int64)
        right_symbol = self._symbol[after].astype(np.int64)
        old_right = np.where(self._is_merged[after], a, right_symbol)
        self._is_merged[first] = False
        old_pairs = np.concatenate([left_symbol << 32 | a, old_right | b << 32]).tolist()
        new_pairs = np.concatenate([left_symbol << 32 | new, right_symbol | new << 32]).tolist()
        neighbours = np.concatenate([left_symbol, right_symbol]).tolist()
        places = np.concatenate([before, first[has_right]])
        counts = self._count[self._word[places]].tolist()
        n_pair, places_of = self._n_pair, defaultdict[int, list[int]](list)
        room = self._longest - self._length[new]
        for pair, n in zip(old_pairs, counts, strict=True):
            n_pair[pair] -= n
        # Most pairs have few places, for which numpy would cost more than it saves.
        for pair, neighbour, n, place in zip(new_pairs, neighbours, counts, places.tolist(), strict=True):
            if self._length[neighbour] < room:
                n_pair[pair] += n
                places_of[pair].append(place)
        for pair, new_places in places_of.items():
            self._enqueue(pair, array("i", new_places))

    def _places_in(self, key: int, group: int, a: int, b: int) -> Places:
        """Places of the pair in the words of a group, from left to right, without overlaps."""
        groups = [np.frombuffer(places, np.int32) for places in self._places[key]]
        first: Places = groups[group]
        if len(groups) > 1:
            all_places = np.concatenate(groups)
            first = np.sort(all_places[np.isin(self._word[all_places], self._word[first])])
        after = self._next[first]
        first = first[(self._symbol[first] == a) & (after >= 0) & (self._symbol[after] == b)]
        if a == b and len(first):
            first = np.sort(first)
            starts = np.flatnonzero(np.append(True, self._next[first[:-1]] != first[1:]))
            place_in_run = turns(np.diff(starts, append=len(first)))
            first = first[place_in_run % 2 == 0]
        return first

    def _enqueue(self, key: int, places: "array[int]") -> None:
        groups = self._places.setdefault(key, [])
        groups.append(places)
        if self._n_pair[key] > 0:
            heapq.heappush(self._queue, (-self._n_pair[key], key, len(groups) - 1))


# Learning a unigram vocabulary.
Floats = NDArray[np.float64]

# Number of words to learn from, the most frequent ones: each has about 30 places of pieces, of some 20 bytes.
_MOST_WORDS = 400_000
_N_ROUND = 2  # rounds of expectation maximisation before each pruning
_KEPT = 0.75  # share of the pieces that a pruning keeps
_MIN_COUNT = 1e-3  # lower bound on the expected count of a piece
_DECIMALS = 6


def learn_scores(
    words: Counter[str], pieces: Sequence[str], always: Sequence[str], n_piece: int
) -> tuple[list[str], list[float]]:
    """The n_piece most useful pieces and their log-probabilities, the most likely first.

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
    return [candidates[i] for i in order], rounded[order].tolist()


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
        depth = turns(n_place)  # letters before each place
        self._by_end = _levels(depth[self._end], self._end)
        self._by_begin = _levels(-depth[self._begin], self._begin)

    def expected(self, score: Floats, word_count: Floats) -> Floats:
        """(n_piece,) expected count of each piece over all segmentations of the words. score: log-probabilities."""
        edge_score = score[self._piece]
        before = self._path_scores(self._first, self._by_end, self._begin, self._end, edge_score, np.logaddexp)
        after = self._path_scores(self._last, self._by_begin, self._end, self._begin, edge_score, np.logaddexp)
        total = np.repeat(before[self._last], self._n_place)
        weight = np.repeat(word_count, self._n_place)
        share = np.exp(before[self._begin] + edge_score + after[self._end] - total[self._begin])
        return np.bincount(self._piece, share * weight[self._begin], minlength=len(score)).astype(np.float64)

    def best(self, score: Floats) -> Floats:
        """(n_word,) log-probability of the likeliest segmentation of each word."""
        scores = self._path_scores(self._first, self._by_end, self._begin, self._end, score[self._piece], np.maximum)
        best: Floats = scores[self._last]
        return best

    def _path_scores(
        self, start: Ints, levels: list[Ints], source: Places, target: Places, edge_score: Floats, combine: np.ufunc
    ) -> Floats:
        """(n_place,) combined log-probability of all paths from a start to each place."""
        scores = np.full(int(self._n_place.sum()), -np.inf)
        scores[start] = 0.0
        for edges in levels:
            place = target[edges]
            first = np.flatnonzero(np.diff(place, prepend=-1))
            scores[place[first]] = combine.reduceat(scores[source[edges]] + edge_score[edges], first)
        return scores


def _levels(depth: Ints, place: Places) -> list[Ints]:
    """Edges grouped by ascending depth, and sorted by place within each group."""
    order = np.lexsort((place, depth))
    return np.split(order, np.flatnonzero(np.diff(depth[order])) + 1) if len(order) else []
