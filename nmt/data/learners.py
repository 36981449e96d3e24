"""Learning the merges of BPE, and the pieces of a unigram vocabulary, from words and how often each occurs.

The merges are those that the tokenizers library finds in the text. All different words lie end to end in one array of
symbols with links to their neighbours, and a merge looks at nothing but the places where its pair stands.
"""

import heapq
from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int32]
Ints = NDArray[np.int64]

_DEAD = -1  # the symbol of a place that became part of the one before
_NOWHERE = -1


def merges_of(
    words: Mapping[str, int],
    letters: Mapping[str, int],
    n_piece: int,
    longest: int,
    saved: Mapping[str, int] = MappingProxyType({}),
) -> tuple[list[str], list[tuple[str, str]]]:
    """Learn the pieces, in the order of their ids, letters first, and the merges in their order.

    words: how often each occurs. letters: that they are made of, and how many bytes each is. n_piece: to stop at;
    longest: bytes that a piece stays under. saved: letters that may be left out, and how many pieces each saves, at
    least as many as it occurs: it becomes a piece before a merge that saves fewer.
    The pair that occurs most is merged first; of several, that of the lowest ids.
    """
    text = _Text(words, letters, longest)
    vocab = sorted(letters)
    id_of = {piece: i for i, piece in enumerate(vocab)}
    merges: dict[tuple[str, str], None] = {}
    by_use = sorted(saved, key=lambda letter: (-saved[letter], letter))
    n_used = 0  # of these
    while found := text.most_frequent():
        key, nth, count = found
        while n_used < len(by_use) and saved[by_use[n_used]] >= count:
            n_used += 1
        if len(vocab) - len(by_use) + n_used >= n_piece:
            break
        a, b = vocab[key >> 32], vocab[key & 0xFFFFFFFF]
        if (new := id_of.setdefault(a + b, len(vocab))) == len(vocab):
            vocab.append(a + b)
        merges.pop((a, b), None)  # a pair that comes up again counts from then on
        merges[a, b] = None
        text.merge(key, nth, new)
    left_out = set(by_use[n_piece - (len(vocab) - len(by_use)) :])
    return [piece for piece in vocab if piece not in left_out], list(merges)


class _Text:
    """All different words as symbols, and where each pair of them stands. Held for each letter of the words: 16 bytes,
    and as many again for the places of pairs.
    """

    def __init__(self, words: Mapping[str, int], letters: Mapping[str, int], longest: int) -> None:
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
        self._n_of = defaultdict[int, int](int)  # how often each pair occurs
        # Where a pair came to stand, a group for each time that a merge made it: each waits in the queue by itself.
        self._places: dict[int, list[array[int]]] = {}
        self._queue: list[tuple[int, int, int]] = []
        first = np.flatnonzero(self._next >= 0).astype(np.int32)
        if len(first):
            keys = self._symbol[first].astype(np.int64) << 32 | self._symbol[first + 1]
            order = np.argsort(keys, kind="stable")
            starts = np.flatnonzero(np.diff(keys[order], prepend=_NOWHERE))
            counts = np.add.reduceat(self._count[self._word[first[order]]], starts).tolist()
            for key, n, where in zip(
                keys[order[starts]].tolist(), counts, np.split(first[order], starts[1:]), strict=True
            ):
                self._n_of[key] = n
                self._wait(key, array("i", where.tobytes()))

    def most_frequent(self) -> tuple[int, int, int] | None:
        """The pair to merge, the number of its group of places, and how often it occurs. None: no pair is left."""
        while self._queue:
            count, key, nth = heapq.heappop(self._queue)
            if -count == self._n_of[key]:
                return key, nth, -count
            if self._n_of[key] > 0:
                heapq.heappush(self._queue, (-self._n_of[key], key, nth))
        return None

    def merge(self, key: int, nth: int, new: int) -> None:
        """Make one symbol of a pair, wherever it stands in the words of a group."""
        a, b = key >> 32, key & 0xFFFFFFFF
        first = self._standing(key, nth, a, b)
        if new == len(self._length):
            self._length.append(self._length[a] + self._length[b])
        second = self._next[first]
        left, right = self._before[first], self._next[second]
        self._symbol[first], self._symbol[second] = new, _DEAD
        self._next[first] = right
        has_right = right >= 0
        self._before[right[has_right]] = first[has_right]
        self._is_merged[first] = True
        # Of two merged ones side by side the left one accounts for the pair between them.
        has_left = (left >= 0) & (self._symbol[left] != _DEAD)
        before, after = left[has_left], right[has_right]
        neighbour = self._symbol[before].astype(np.int64)
        follower = self._symbol[after].astype(np.int64)
        was = np.where(self._is_merged[after], a, follower)
        self._is_merged[first] = False
        gone = np.concatenate([neighbour << 32 | a, was | b << 32]).tolist()
        come = np.concatenate([neighbour << 32 | new, follower | new << 32]).tolist()
        others = np.concatenate([neighbour, follower]).tolist()
        places = np.concatenate([before, first[has_right]])
        counts = self._count[self._word[places]].tolist()
        n_of, fresh = self._n_of, defaultdict[int, list[int]](list)
        room = self._longest - self._length[new]
        for pair, n in zip(gone, counts, strict=True):
            n_of[pair] -= n
        # With numpy a merge at a time would cost more than it saves where most have few places.
        for pair, other, n, place in zip(come, others, counts, places.tolist(), strict=True):
            if self._length[other] < room:
                n_of[pair] += n
                fresh[pair].append(place)
        for pair, where in fresh.items():
            self._wait(pair, array("i", where))

    def _standing(self, key: int, nth: int, a: int, b: int) -> Places:
        """Places of the pair in the words of a group, none overlapping another, from left to right."""
        groups = [np.frombuffer(where, np.int32) for where in self._places[key]]
        first: Places = groups[nth]
        if len(groups) > 1:
            every = np.concatenate(groups)
            first = np.sort(every[np.isin(self._word[every], self._word[first])])
        after = self._next[first]
        first = first[(self._symbol[first] == a) & (after >= 0) & (self._symbol[after] == b)]
        if a == b and len(first):
            first = np.sort(first)
            starts = np.flatnonzero(np.append(True, self._next[first[:-1]] != first[1:]))
            of_run = np.arange(len(first)) - np.repeat(starts, np.diff(starts, append=len(first)))
            first = first[of_run % 2 == 0]
        return first

    def _wait(self, key: int, where: "array[int]") -> None:
        groups = self._places.setdefault(key, [])
        groups.append(where)
        if self._n_of[key] > 0:
            heapq.heappush(self._queue, (-self._n_of[key], key, len(groups) - 1))


# Learning a unigram vocabulary.
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
    inside = Lattice(kept, kept, whole=False)  # how a piece would be cut if there were no such piece
    n_of = np.array([n for _, n in frequent], dtype=np.float64)
    alive = np.ones(len(kept), dtype=bool)
    score = np.full(len(kept), -np.log(len(kept)))
    while True:
        for _ in range(_ROUNDS):
            count = np.maximum(lattice.expected(score, n_of), _LEAST)
            score = np.where(alive, np.log(count) - np.log(count[alive].sum()), -np.inf)
        n_alive = int(alive.sum())
        if n_alive <= n_piece:
            break
        loss = np.where(alive, count * (score - inside.best(score)), -np.inf)
        loss[: len(always)] = np.inf
        alive[np.argsort(-loss, kind="stable")[max(n_piece, int(n_alive * _KEPT)) :]] = False
        score[~alive] = -np.inf
    rounded = score.round(_DECIMALS)
    order = np.argsort(-rounded, kind="stable")[: int(alive.sum())].tolist()
    return [kept[i] for i in order], rounded[order].tolist()


class Lattice:
    """All the ways to put words together from pieces, as edges between the places of their letters."""

    def __init__(self, words: Sequence[str], pieces: Sequence[str], *, whole: bool = True) -> None:
        """whole: whether a word may be one piece of more than a letter."""
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
        self._begin, self._end, self._piece = (np.array(one, np.int32) for one in (begins, ends, piece_of))
        self._n_piece, self._n_place = len(pieces), n_place
        depth = np.arange(n_place.sum()) - np.repeat(self._first, n_place)  # letters before each place
        self._by_end = _levels(depth[self._end], self._end)
        self._by_begin = _levels(-depth[self._begin], self._begin)

    def expected(self, score: Floats, n_of: Floats) -> Floats:
        """(n_piece,) how often each occurs if each word is cut in all its ways, each as often as it is likely.

        score: (n_piece,) log-probabilities. n_of: how often each word occurs.
        """
        of_edge = score[self._piece]
        before = self._reached(self._first, self._by_end, self._begin, self._end, of_edge, np.logaddexp)
        after = self._reached(self._last, self._by_begin, self._end, self._begin, of_edge, np.logaddexp)
        total = np.repeat(before[self._last], self._n_place)
        weight = np.repeat(n_of, self._n_place)
        share = np.exp(before[self._begin] + of_edge + after[self._end] - total[self._begin])
        return np.bincount(self._piece, share * weight[self._begin], minlength=self._n_piece).astype(np.float64)

    def best(self, score: Floats) -> Floats:
        """(n_word,) the log-probability of the likeliest way to cut each word."""
        of_edge = score[self._piece]
        reached = self._reached(self._first, self._by_end, self._begin, self._end, of_edge, np.maximum)
        best: Floats = reached[self._last]
        return best

    def _reached(
        self, start: Ints, levels: list[Ints], source: Places, target: Places, of_edge: Floats, combine: np.ufunc
    ) -> Floats:
        """(n_place,) the log-probability of all ways from a start to each place, which are combined."""
        reached = np.full(int(self._n_place.sum()), -np.inf)
        reached[start] = 0.0
        for edges in levels:
            place = target[edges]
            first = np.flatnonzero(np.diff(place, prepend=-1))
            reached[place[first]] = combine.reduceat(reached[source[edges]] + of_edge[edges], first)
        return reached


def _levels(depth: Ints, place: Places) -> list[Ints]:
    """Edges by their depth, those of the least first, and within a depth by their place."""
    order = np.lexsort((place, depth))
    return np.split(order, np.flatnonzero(np.diff(depth[order])) + 1) if len(order) else []
