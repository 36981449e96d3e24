"""Batches with subword sampling keep their token budget: no pair exceeds its planned length."""

import functools

import numpy as np
import pytest

from nmt.data.arrays import Ragged
from nmt.data.batches import make_batch, make_packed
from nmt.data.plan import Plan
from nmt.data.resample import Resampled
from nmt.recipe.data_options import SubwordsConfig
from nmt.recipe.training_options import BatchConfig
from tests.learnt import learnt_subwords

WORDS = ["the", "a", "man", "woman", "two", "dogs", "sleeping", "unbelievable", "quickly", "house-boat",
    "über", "<url>"]  # fmt: skip
BATCH = {"bpe": BatchConfig(bpe_dropout=0.3), "unigram": BatchConfig(unigram_alpha=0.05)}


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


@functools.cache
def pairs_of(kind, joint, n):
    return Pairs(subwords_of(kind, joint), n)


def make_resampled(kind="bpe", *, n=1000, most=1000, joint=True, seed=1):
    subwords, corpus = subwords_of(kind, joint), pairs_of(kind, joint, n)
    return subwords, corpus, Resampled(corpus, subwords, BATCH[kind], seed=seed, most=most)


@pytest.mark.parametrize("kind", BATCH)
@pytest.mark.parametrize("joint", [True, False])
def test_sampled_pairs_keep_planned_lengths_and_differ_between_epochs(kind, joint):
    _, corpus, resampled = make_resampled(kind, joint=joint)
    rows = np.arange(corpus.n_pair)
    for planned, stored in ((resampled.src_len, corpus.src_len), (resampled.trg_len, corpus.trg_len)):
        assert (planned >= stored).all() and planned.sum() > 1.05 * stored.sum()
    epochs = []
    for epoch in range(3):
        epochs.append(resampled.cut(*corpus.picked(rows), rows, epoch))
        for side, planned in zip(epochs[-1], (resampled.src_len, resampled.trg_len), strict=True):
            assert (side.lengths <= planned).all()
            assert side.lengths.sum() > 0.9 * planned.sum()
    is_same = [np.array_equal(a, b) for a, b in zip(epochs[0][0].rows(), epochs[1][0].rows(), strict=True)]
    assert np.mean(is_same) < 0.2


def plan(lengths, **options):
    return Plan(lengths.src_len, lengths.trg_len, seed=1, max_tokens=1000, per_update=1, pool=100_000, **options)


def batches(corpus, resampled, rows_of, make):
    return [make(*resampled.cut(*corpus.picked(rows), rows, 0)) for (rows,) in rows_of]


def test_batches_keep_their_budget_with_little_extra_padding():
    _, corpus, resampled = make_resampled()
    used = held = 0
    for batch in batches(corpus, resampled, plan(resampled).updates(0), make_batch):
        assert max(batch.src_seq.numel(), batch.gold.numel()) <= 1000
        used += int((batch.src_seq != 0).sum()) + batch.n_gold
        held += batch.src_seq.numel() + batch.gold.numel()
    assert 1 - used / held < plan(corpus).totals(0)[1] + 0.1


def test_packed_rows_are_filled_within_their_length():
    _, corpus, resampled = make_resampled(most=300)
    planned = plan(resampled, packed=True)

    def make(src, trg):
        return make_packed(src, trg, 1000, planned.most_packed, 301)

    full = [
        (batch.n_gold, int((batch.src_seq != 0).sum()))
        for batch in batches(corpus, resampled, planned.updates(0), make)
    ]
    assert np.mean([max(sides) for sides in full[:-1]]) > 850


def test_no_side_grows_beyond_the_maximum_length():
    _, corpus, resampled = make_resampled(most=30)
    assert (resampled.src_len <= np.maximum(corpus.src_len, 30)).all()
    rows = np.flatnonzero(corpus.src_len >= 30)
    (src, _), (stored, _) = resampled.cut(*corpus.picked(rows), rows, 0), corpus.picked(rows)
    assert len(rows) and (src.lengths <= stored.lengths).all()
