"""Learning pieces from words and how often each occurs: merges of BPE, and a unigram vocabulary.

Merges are learnt by the tokenizers library. Its unigram trainer is not used: it gives other pieces each time.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

Floats = NDArray[np.float64]

_AT_ONCE = 1000  # times that a word stands in one text for the library


def merges_of(
    words: Mapping[str, int],
    letters: Mapping[str, int],
    n_piece: int,
    longest: int,
    saved: Mapping[str, int] = MappingProxyType({}),
) -> tuple[list[str], list[tuple[str, str]]]:
    """Learn from words: the pieces in the order of their ids, letters first, and the merges in their order.

    words: how often each occurs. letters: that they are made of, and how many bytes each is. n_piece: at most; longest:
    bytes that a piece stays under. saved: letters that may be left out, and how many pieces each saves, at least as
    many as it occurs: it becomes a piece before a merge that saves fewer.
    """
    vocab = sorted(letters)
    trainer = trainers.BpeTrainer(
        vocab_size=n_piece + len(saved),
        initial_alphabet=vocab,
        special_tokens=[],
        max_token_length=longest,
        show_progress=False,
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit("\n")
    tokenizer.train_from_iterator(_repeated(words), trainer)
    n_byte, merges = dict(letters), list[tuple[str, str]]()
    for a, b in json.loads(tokenizer.to_str())["model"]["merges"]:
        # The library counts letters, where bytes are meant.
        if a in n_byte and b in n_byte and n_byte[a] + n_byte[b] < longest:
            n_byte[a + b] = n_byte[a] + n_byte[b]
            merges.append((a, b))

    saves = _saved_by(words, [*n_byte], merges) if saved else [0] * len(merges)
    by_use = sorted(saved, key=lambda letter: (-saved[letter], letter))
    n_always, n_used = len(vocab) - len(saved), 0
    made = dict[str, None]()
    for n_merge, ((a, b), n_saved) in enumerate(zip(merges, saves, strict=True)):
        while n_used < len(saved) and saved[by_use[n_used]] >= n_saved:
            n_used += 1
        if n_always + n_used + len(made) >= n_piece:
            del merges[n_merge:]
            break
        made[a + b] = None
    left_out = set(by_use[n_piece - n_always - len(made) :])
    return [piece for piece in (*vocab, *made) if piece not in left_out], merges


def _repeated(words: Mapping[str, int]) -> Iterator[str]:
    for word, n in words.items():
        for start in range(0, n, _AT_ONCE):
            yield "\n".join([word] * min(n - start, _AT_ONCE))


def _saved_by(words: Mapping[str, int], vocab: Sequence[str], merges: Sequence[tuple[str, str]]) -> list[int]:
    """Count how often each merge was made: as many times as its piece is left in the end, or became part of others."""
    model = models.BPE({piece: i for i, piece in enumerate(vocab)}, list(merges))
    n_of = Counter[str]()
    for word, n in words.items():
        for token in model.tokenize(word):
            n_of[token.value] += n
    saves, most = [], 0
    for a, b in reversed(merges):
        n_of[a] += n_of[a + b]
        n_of[b] += n_of[a + b]
        most = max(most, n_of[a + b])  # the first are the most, but for "00": the trainer sees it in "000" twice
        saves.append(most)
    return saves[::-1]


# Learning a unigram vocabulary.
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
