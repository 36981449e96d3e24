"""Learning the merges of BPE from words and how often each occurs: those that the tokenizers library finds in the text.

All different words lie end to end in one array of symbols with links to their neighbours. A merge looks at the places
where its pair stands and at nothing else, so its cost goes with those; numpy takes them together. Held for each letter
of the different words: 16 bytes, and as many again for the places of pairs.
"""

import heapq
import itertools
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int32]
Keys = NDArray[np.int64]

NO_PIECE = -1
_DEAD = -1  # the symbol of a place that became part of the one before
_NOWHERE = -1
_MANY = 500  # places; from so many on numpy takes less time to count them than Python


class Merges(NamedTuple):
    """The pieces in the order of their ids, letters first; the merges in their order; and how they cut the words.

    values, lengths: the pieces of all words, end to end, and how many each has, NO_PIECE for a letter that is left out;
    None where a piece came up twice, and the order in which merges are applied may be another than that in which they
    were found.
    """

    vocab: list[str]
    merges: list[tuple[str, str]]
    values: Places | None
    lengths: NDArray[np.int64] | None


def merges_of(
    words: Mapping[str, int],
    letters: Mapping[str, int],
    n_piece: int,
    longest: int,
    saved: Mapping[str, int] = MappingProxyType({}),
) -> Merges:
    """Learn from words.

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
    pieces = [piece for piece in vocab if piece not in left_out]
    if len(vocab) > len(letters) + len(merges):
        return Merges(pieces, list(merges), None, None)
    values, lengths = text.cut()
    number = {piece: n for n, piece in enumerate(pieces)}
    return Merges(pieces, list(merges), np.array([number.get(piece, NO_PIECE) for piece in vocab])[values], lengths)


class _Text:
    """All different words as symbols, and where each pair of them stands."""

    def __init__(self, words: Mapping[str, int], letters: Mapping[str, int], longest: int) -> None:
        code_of = np.zeros(max(map(ord, letters)) + 1, np.int32)
        code_of[[ord(letter) for letter in sorted(letters)]] = np.arange(len(letters))
        joined = "".join(words).encode("utf-32-le")
        self._symbol = code_of[np.frombuffer(joined, np.uint32)]
        n_letter = np.fromiter(map(len, words), np.int32, len(words))
        n_place = len(self._symbol)
        self._word = np.repeat(np.arange(len(words), dtype=np.int32), n_letter)
        self._count = np.fromiter(words.values(), np.int64, len(words))
        ends = np.cumsum(n_letter)
        self._next = np.arange(1, n_place + 1, dtype=np.int32)
        self._next[ends - 1] = _NOWHERE
        self._before = np.arange(-1, n_place - 1, dtype=np.int32)
        self._before[ends - n_letter] = _NOWHERE
        self._is_merged = np.zeros(n_place, dtype=bool)
        self._longest = longest
        self._length = np.ones(1 << max(10, len(letters).bit_length()), np.int32)  # bytes of each symbol
        self._length[: len(letters)] = [letters[letter] for letter in sorted(letters)]
        self._n_of: dict[int, int] = {}  # how often each pair occurs
        # Where a pair came to stand, a group for each time that a merge made it: each waits in the queue by itself.
        self._places: dict[int, list[array[int]]] = {}
        self._queue: list[tuple[int, int, int]] = []
        self._begin()

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
        while new >= len(self._length):
            self._length = np.concatenate([self._length, self._length])
        self._length[new] = self._length[a] + self._length[b]
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
        was = follower.copy()
        was[self._is_merged[after]] = a
        self._is_merged[first] = False
        places = np.concatenate([before, first[has_right]])
        count = self._count[self._word[places]]
        gone = np.concatenate([neighbour << 32 | a, was | b << 32])
        come = np.concatenate([neighbour << 32 | new, follower | new << 32])
        fits = self._length[new] + self._length[np.concatenate([neighbour, follower])] < self._longest
        (self._recount_many if len(places) > _MANY else self._recount)(gone, come, count, places, fits)

    def _recount(self, gone: Keys, come: Keys, count: Keys, places: Places, fits: NDArray[np.bool_]) -> None:
        """At some places other pairs stand now. gone, come: what each was and is; count: of its word; fits: if short.

        With numpy a group at a time would cost more than it saves where most have one place.
        """
        n_of = self._n_of
        counts = count.tolist()
        for pair, n in zip(gone.tolist(), counts, strict=True):
            n_of[pair] = n_of.get(pair, 0) - n
        fresh: dict[int, list[int]] = {}
        for pair, n, place, fit in zip(come.tolist(), counts, places.tolist(), fits.tolist(), strict=True):
            if not fit:
                continue
            n_of[pair] = n_of.get(pair, 0) + n
            if pair in fresh:
                fresh[pair].append(place)
            else:
                fresh[pair] = [place]
        for pair, where in fresh.items():
            self._wait(pair, array("i", where))

    def _recount_many(self, gone: Keys, come: Keys, count: Keys, places: Places, fits: NDArray[np.bool_]) -> None:
        """At many places other pairs stand now: what `_recount` does, and of the same, by numpy."""
        n_of = self._n_of
        for pair, n, _ in _by_key(gone, count, places):
            n_of[pair] = n_of.get(pair, 0) - n
        fresh = _by_key(come[fits], count[fits], places[fits])
        for pair, n, _ in fresh:
            n_of[pair] = n_of.get(pair, 0) + n
        for pair, _, where in fresh:
            self._wait(pair, where)

    def cut(self) -> tuple[Places, NDArray[np.int64]]:
        """The symbols of all words, end to end, and how many each has."""
        alive = self._symbol != _DEAD
        return self._symbol[alive], np.bincount(self._word[alive], minlength=len(self._count))

    def _standing(self, key: int, nth: int, a: int, b: int) -> Places:
        """Places of the pair in the words of a group, none overlapping another, from left to right."""
        groups = [np.frombuffer(where, np.int32) for where in self._places[key]]
        first = groups[nth]
        if len(groups) > 1:
            every = np.concatenate(groups)
            first = np.sort(every[np.isin(self._word[every], self._word[first])])
        after = self._next[first]
        first = first[(self._symbol[first] == a) & (after >= 0) & (self._symbol[after] == b)]
        if a == b and len(first):
            first = np.sort(first)
            begins = np.append(True, self._next[first[:-1]] != first[1:])
            starts = np.flatnonzero(begins)
            of_run = np.arange(len(first)) - np.repeat(starts, np.diff(starts, append=len(first)))
            first = first[of_run % 2 == 0]
        found: Places = first
        return found

    def _begin(self) -> None:
        """Count all pairs, and let them wait."""
        first = np.flatnonzero(self._next >= 0).astype(np.int32)
        keys = self._symbol[first].astype(np.int64) << 32 | self._symbol[first + 1]
        for key, n, where in _by_key(keys, self._count[self._word[first]], first):
            self._n_of[key] = n
            self._wait(key, where)

    def _wait(self, key: int, where: "array[int]") -> None:
        groups = self._places.setdefault(key, [])
        groups.append(where)
        if self._n_of[key] > 0:
            heapq.heappush(self._queue, (-self._n_of[key], key, len(groups) - 1))


def _by_key(keys: Keys, count: Keys, places: Places) -> list[tuple[int, int, "array[int]"]]:
    """Each key, the sum of its counts, and its places in their order."""
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(np.diff(keys, prepend=_NOWHERE))
    if not len(starts):
        return []
    sums = np.add.reduceat(count[order], starts).tolist()
    raw, ends = places[order].tobytes(), (places.itemsize * np.append(starts, len(places))).tolist()
    where = (array("i", raw[start:stop]) for start, stop in itertools.pairwise(ends))
    return list(zip(keys[starts].tolist(), sums, where, strict=True))


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
