"""Many ways cut together are each cut as one is by the rule of BPE-dropout, and as often as the rule has them."""

import itertools
import random
from collections import Counter

import numpy as np
import pytest

from nmt.data.arrays import Ragged, mixed, seeds_of
from nmt.data.resample import Merges


def by_the_rule(word, merges, left_out):
    """Letters -> ids. left_out: whether each of n merges that could be made is left out, from the turn and n."""
    parts, turns = list(word), itertools.count()

    def made():
        pairs = enumerate(itertools.pairwise(parts))
        possible = sorted((merges[pair][0], n) for n, pair in pairs if pair in merges)
        are_out = left_out(next(turns), len(possible))
        return [n for (_, n), is_out in zip(possible, are_out, strict=True) if not is_out]

    while found := made():
        n = found[0]
        parts[n : n + 2] = [merges[parts[n], parts[n + 1]][1]]
    return parts


def drawn(rate, seed):
    """The first so many are left out, as many as one number says."""

    def left_out(turn, n):
        number = int(mixed(np.array([seed]) + seeds_of(np.array([turn])))[0])
        return [number < int(rate ** (k + 1) * 2.0**64) for k in range(n)]

    return left_out


@pytest.fixture(scope="module")
def merges():
    """Merges of five letters, and of what they make."""
    rng, found = np.random.default_rng(1), {}
    while len(found) < 40:
        pair = tuple(rng.integers(0, 5 + len(found), 2).tolist())
        found.setdefault(pair, (len(found), 5 + len(found)))
    return found


def cut(merges, rate, words, seeds):
    """A way of each word, as tuples."""
    return [tuple(way.tolist()) for way in Merges(merges, rate).cut(Ragged.of(words), seeds).rows()]


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_words_together_are_cut_by_the_rule_as_each_alone(merges, rate):
    rng = np.random.default_rng(2)
    words = [rng.integers(0, 5, rng.integers(0, 30)).tolist() for _ in range(400)]
    seeds = rng.integers(0, 2**64, len(words), dtype=np.uint64)
    found = cut(merges, rate, words, seeds)
    assert found == [
        tuple(by_the_rule(word, merges, drawn(rate, seed))) for word, seed in zip(words, seeds, strict=True)
    ]
    assert rate == 0.9 or max(max(way) for way in found if way) > 10  # merges of merges were made


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_a_way_is_as_likely_as_when_each_merge_is_left_out_by_itself(merges, rate):
    chance = random.Random(4)
    pairs = list(merges)
    word, n_way = [*pairs[0], *pairs[1], *pairs[0]], 6_000
    word = [part for part in word if part < 5] + [0, 1, 2]
    ruled = Counter(
        tuple(by_the_rule(word, merges, lambda _, n: [chance.random() < rate for _ in range(n)])) for _ in range(n_way)
    )
    seeds = np.random.default_rng(3).integers(0, 2**64, n_way, dtype=np.uint64)
    found = Counter(cut(merges, rate, [word] * n_way, seeds))
    assert len(ruled) > 5
    for way in ruled | found:
        assert found[way] / n_way == pytest.approx(ruled[way] / n_way, abs=0.03)


def test_nothing_is_merged_where_nothing_is_there(merges):
    for none in ([], [[]], [[], []]):
        assert cut(merges, 0.1, none, np.zeros(len(none), dtype=np.uint64)) == [()] * len(none)
    assert cut({}, 0.1, [[0, 1, 2], [], [3]], np.zeros(3, dtype=np.uint64)) == [(0, 1, 2), (), (3,)]
