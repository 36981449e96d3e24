"""Many words cut together are each cut as one word is cut by the rule of BPE-dropout, merge by merge."""

import itertools

import numpy as np
import pytest

from nmt.data.bpe_dropout import _PLACES, Merges
from nmt.data.chance import mixed, seeds_of


def one_by_one(word, merges, rate, seed):
    """The rule, in words: (letters, merges, rate, seed of the word) -> ids."""
    parts, places, turn = list(word), list(range(len(word))), 0

    def is_left_out(n):
        number = np.array([places[n] + turn * _PLACES])
        return int(mixed(np.array([seed]) + seeds_of(number))[0]) < int(rate * 2.0**64)

    def possible():
        pairs = enumerate(itertools.pairwise(parts))
        return [(merges[pair][0], n) for n, pair in pairs if pair in merges and not is_left_out(n)]

    while found := possible():
        n = min(found)[1]
        parts[n : n + 2] = [merges[parts[n], parts[n + 1]][1]]
        del places[n + 1]
        turn += 1
    return parts


@pytest.fixture(scope="module")
def merges():
    """Merges of five letters, and of what they make."""
    rng, found = np.random.default_rng(1), {}
    while len(found) < 40:
        pair = tuple(rng.integers(0, 5 + len(found), 2).tolist())
        found.setdefault(pair, (len(found), 5 + len(found)))
    return found


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_words_together_are_words_alone(merges, rate):
    rng = np.random.default_rng(2)
    words = [rng.integers(0, 5, rng.integers(0, 30)) for _ in range(300)]
    seeds = rng.integers(0, 2**64, len(words), dtype=np.uint64)
    ids, n_id = Merges(merges, rate).cut(words, seeds)
    found = [way.tolist() for way in np.split(ids, np.cumsum(n_id)[:-1])]
    assert found == [one_by_one(word.tolist(), merges, rate, seed) for word, seed in zip(words, seeds, strict=True)]
    assert rate == 0.9 or max(map(max, filter(None, found))) > 10  # merges of merges were made


def test_nothing_is_merged_where_nothing_is_there(merges):
    words = [np.array([0, 1, 2]), np.array([], dtype=np.int64)]
    for none in ([], [np.array([], dtype=np.int64)]):
        ids, n_id = Merges(merges, 0.1).cut(none, np.zeros(len(none), dtype=np.uint64))
        assert len(ids) == 0 and n_id.tolist() == [0] * len(none)
    ids, n_id = Merges({}, 0.1).cut(words, np.zeros(2, dtype=np.uint64))
    assert (ids.tolist(), n_id.tolist()) == ([0, 1, 2], [3, 0])
