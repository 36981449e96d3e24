"""Ways of a unigram vocabulary: drawn for many words at once as for one alone."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from nmt.data.bpe_dropout import Unigram

SCORES = {"a": -2.0, "b": -2.5, "c": -3.0, "ab": -3.0, "bc": -2.0, "abc": -4.5, "cab": -5.0, "ca": -6.0}
PIECES = {piece: (n + 10, score) for n, (piece, score) in enumerate(SCORES.items())}
WORDS = ["abcabc", "", "c", "bca", "abcabc", "aaaaaaaabcabcabc"]
SEEDS = np.random.default_rng(5).integers(0, 2**64, 6_000, dtype=np.uint64)


def cut(alpha, words, seeds):
    ids, n_id = Unigram(PIECES, alpha).cut(words, seeds.reshape(len(words), -1))
    return [tuple(ids[begin:end].tolist()) for begin, end in pairwise([0, *np.cumsum(n_id).tolist()])]


def text(way):
    return "".join(piece for i in way for piece, (known, _) in PIECES.items() if known == i)


def test_words_together_are_cut_as_each_alone():
    words = [WORDS[n % len(WORDS)] for n in range(300)]
    alone = [cut(0.3, [word], SEEDS[n : n + 1])[0] for n, word in enumerate(words)]
    assert cut(0.3, words, SEEDS[:300]) == alone
    assert cut(0.3, words[::10], SEEDS[:300]) == [
        cut(0.3, [words[n - n % 10]], SEEDS[n : n + 1])[0] for n in range(300)
    ]
    assert len(set(alone[::6])) > 5
    assert list(map(text, alone)) == words


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_ways_are_as_likely_as_their_probabilities_to_the_power_of_alpha(alpha):
    def ways(rest):
        return [()] if not rest else [(p, *more) for p in SCORES if rest.startswith(p) for more in ways(rest[len(p) :])]

    weight = {way: np.exp(alpha * sum(map(SCORES.get, way))) for way in ways("cabc")}
    words = ["cabc", "abc"] * (len(SEEDS) // 2)
    found = Counter(cut(alpha, words, SEEDS)[::2])
    assert len(weight) == 7
    for way, each in weight.items():
        share = found[tuple(PIECES[piece][0] for piece in way)] / (len(SEEDS) // 2)
        assert share == pytest.approx(each / sum(weight.values()), abs=0.03)


def test_the_largest_and_the_smallest_draw_stay_in_their_word(monkeypatch):
    for drawn in (0, 2**64 - 1):
        monkeypatch.setattr("nmt.data.bpe_dropout.mixed", lambda seeds, drawn=drawn: np.full_like(seeds, drawn))
        assert list(map(text, cut(0.5, WORDS * 500, SEEDS[:3000]))) == WORDS * 500
