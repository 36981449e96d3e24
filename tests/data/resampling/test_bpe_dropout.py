"""BPE-dropout: same segmentations and frequencies as a plain reference implementation."""

import itertools
import random
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from nmt.data.arrays import mixed, seeds_of
from nmt.data.resample import dropout_cut
from nmt.data.subwords import N_SPECIAL


def reference(word, merges, is_dropped):
    """Letters -> pieces. is_dropped(step, n): for each of n possible merges, whether it is dropped."""
    parts, steps = list(word), itertools.count()

    def kept_merges():
        pairs = enumerate(itertools.pairwise(parts))
        possible = sorted((merges[pair][0], n) for n, pair in pairs if pair in merges)
        dropped = is_dropped(next(steps), len(possible))
        return [n for (_, n), out in zip(possible, dropped, strict=True) if not out]

    while found := kept_merges():
        n = found[0]
        parts[n : n + 2] = [merges[parts[n], parts[n + 1]][1]]
    return parts


def seeded(rate, seed):
    """Drop the first k possible merges; one random number per step decides k."""

    def is_dropped(step, n):
        number = int(mixed(np.array([seed]) + seeds_of(np.array([step])))[0])
        return [number < int(rate ** (k + 1) * 2.0**64) for k in range(n)]

    return is_dropped


@pytest.fixture(scope="module")
def merges():
    """Forty merges of five letters and of their results."""
    rng, pieces, table = np.random.default_rng(1), [*"abcde"], {}
    while len(table) < 40:
        a, b = (pieces[n] for n in rng.integers(0, len(pieces), 2))
        table.setdefault((a, b), (len(table), a + b))
        pieces = [*"abcde", *(piece for _, piece in table.values())]
    return table


def segment(merges, rate, words, seeds):
    """Segment each word; returns a tuple of pieces for each."""
    vocab = list(dict.fromkeys([*"abcde", *(piece for _, piece in merges.values())]))
    cut = dropout_cut(SimpleNamespace(vocab=vocab, merges=list(merges)), rate)
    draws = [mixed(seed + seeds_of(np.arange(len(word)))).tolist() for word, seed in zip(words, seeds, strict=True)]
    return [tuple(vocab[i - N_SPECIAL] for i in cut(*each)) for each in zip(words, draws, strict=True)]


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_segmented_words_equal_the_reference(merges, rate):
    rng = np.random.default_rng(2)
    words = ["".join(rng.choice([*"abcde"], rng.integers(0, 30))) for _ in range(400)]
    seeds = rng.integers(0, 2**64, len(words), dtype=np.uint64)
    found = segment(merges, rate, words, seeds)
    assert found == [
        tuple(reference(word, merges, seeded(rate, seed))) for word, seed in zip(words, seeds, strict=True)
    ]
    assert rate == 0.9 or max(len(piece) for pieces in found for piece in pieces) > 2  # pieces were merged again


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_segmentations_are_as_frequent_as_with_independent_dropout(merges, rate):
    rng = random.Random(4)
    pairs = list(merges)
    word, n_sample = "".join(filter("abcde".__contains__, (*pairs[0], *pairs[1], *pairs[0]))) + "abc", 6_000
    expected = Counter(
        tuple(reference(word, merges, lambda _, n: [rng.random() < rate for _ in range(n)])) for _ in range(n_sample)
    )
    seeds = np.random.default_rng(3).integers(0, 2**64, n_sample, dtype=np.uint64)
    found = Counter(segment(merges, rate, [word] * n_sample, seeds))
    assert len(expected) > 5
    for ids in expected | found:
        assert found[ids] / n_sample == pytest.approx(expected[ids] / n_sample, abs=0.03)


def test_empty_words_and_empty_merge_tables_merge_nothing(merges):
    for words in ([], [""], ["", ""]):
        assert segment(merges, 0.1, words, np.zeros(len(words), dtype=np.uint64)) == [()] * len(words)
    assert segment({}, 0.1, ["abc", "", "d"], np.zeros(3, dtype=np.uint64)) == [("a", "b", "c"), (), ("d",)]
