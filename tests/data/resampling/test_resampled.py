"""Pairs that are cut anew are no longer than batches were planned for: the budget holds."""

import functools

import numpy as np
import pytest

from nmt.data.arrays import Ragged
from nmt.data.batches import make_batch, make_packed
from nmt.data.plan import Plan
from nmt.data.resample import Resampled
from nmt.recipe.data_options import SubwordsConfig
from tests.learnt import learnt_subwords

WORDS = ["the", "a", "man", "woman", "two", "dogs", "sleeping", "unbelievable", "quickly", "house-boat",
    "über", "<url>"]  # fmt: skip
RATES = {"bpe": {"bpe_dropout": 0.3, "unigram_alpha": 0.0}, "unigram": {"bpe_dropout": 0.0, "unigram_alpha": 0.05}}


def lines(n, seed):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, n_word)) for n_word in rng.integers(1, 40, n)]


@functools.cache
def subwords_of(kind, joint=True):
    config = SubwordsConfig(kind=kind, vocab_size=360, symbols=("<url>",), joint=joint)
    return learnt_subwords(lines(200, 8), lines(200, 9), config)


class Pairs:
    """A corpus in memory."""

    def __init__(self, subwords, n):
        self.sides = [
            [np.array(ids) for ids in codec.encode(lines(n, seed))]
            for seed, codec in enumerate((subwords.src, subwords.trg))
        ]
        self.src_len, self.trg_len = (np.array(list(map(len, side)), dtype=np.int32) for side in self.sides)
        self.n_pair = n

    def picked(self, rows):
        return tuple(Ragged.of([side[n] for n in rows], np.dtype(np.uint16)) for side in self.sides)

    def rows(self, start, stop):
        return tuple(
            Ragged(np.concatenate(side[start:stop]).astype(np.uint16), n[start:stop])
            for side, n in zip(self.sides, (self.src_len, self.trg_len), strict=True)
        )


@functools.cache
def pairs_of(kind, joint, n):
    return Pairs(subwords_of(kind, joint), n)


def made(kind="bpe", *, n=1000, most=1000, joint=True, seed=1):
    subwords, corpus = subwords_of(kind, joint), pairs_of(kind, joint, n)
    return subwords, corpus, Resampled(corpus, subwords, **RATES[kind], seed=seed, most=most)


@pytest.mark.parametrize("kind", RATES)
@pytest.mark.parametrize("joint", [True, False])
def test_pairs_become_no_longer_than_planned_and_others_in_each_epoch(kind, joint):
    _, corpus, resampled = made(kind, joint=joint)
    rows = np.arange(corpus.n_pair)
    for planned, stored in ((resampled.src_len, corpus.src_len), (resampled.trg_len, corpus.trg_len)):
        assert (planned >= stored).all() and planned.sum() > 1.05 * stored.sum()
    found = []
    for epoch in range(3):
        found.append(resampled.cut(*corpus.picked(rows), rows, epoch))
        for side, planned in zip(found[-1], (resampled.src_len, resampled.trg_len), strict=True):
            assert (side.lengths <= planned).all()
            assert side.lengths.sum() > 0.9 * planned.sum()
    same = [np.array_equal(a, b) for a, b in zip(found[0][0].rows(), found[1][0].rows(), strict=True)]
    assert np.mean(same) < 0.2


def plan(lengths, **options):
    return Plan(lengths.src_len, lengths.trg_len, seed=1, max_tokens=1000, per_update=1, pool=100_000, **options)


def batches(corpus, resampled, rows_of, make):
    return [make(*resampled.cut(*corpus.picked(rows), rows, 0)) for (rows,) in rows_of]


def test_a_batch_keeps_to_its_budget_and_holds_little_more_padding_than_without():
    _, corpus, resampled = made()
    used = held = 0
    for batch in batches(corpus, resampled, plan(resampled).updates(0), make_batch):
        assert max(batch.src_seq.numel(), batch.gold.numel()) <= 1000
        used += int((batch.src_seq != 0).sum()) + batch.n_gold
        held += batch.src_seq.numel() + batch.gold.numel()
    assert 1 - used / held < plan(corpus).padding_share(0) + 0.1


def test_packed_rows_are_filled_and_nothing_reaches_over_their_end():
    _, corpus, resampled = made(most=300)
    planned = plan(resampled, packed=True)

    def make(src, trg):
        return make_packed(src, trg, 1000, planned.most_packed, 301)

    full = [
        (batch.n_gold, int((batch.src_seq != 0).sum()))
        for batch in batches(corpus, resampled, planned.updates(0), make)
    ]
    assert np.mean([max(sides) for sides in full[:-1]]) > 850


def test_no_side_grows_over_the_longest_that_is_allowed_and_none_shrinks():
    _, corpus, resampled = made(most=30)
    assert (resampled.src_len <= np.maximum(corpus.src_len, 30)).all()
    rows = np.flatnonzero(corpus.src_len >= 30)
    (src, _), (stored, _) = resampled.cut(*corpus.picked(rows), rows, 0), corpus.picked(rows)
    assert len(rows) and (src.lengths <= stored.lengths).all()
