"""Corpora that are visited more or less often: counts are exact, and nothing is copied."""

import numpy as np
import pytest

from nmt.data.plan import Mixture, mixture_of
from nmt.errors import RecipeError
from nmt.recipe.data_options import DataConfig


def corpora(*weights, **options):
    return DataConfig(train=[{"src": "a", "trg": "b", "weight": weight} for weight in weights], **options)


def visits(mixture, epochs, seed=1):
    counts = np.zeros(sum(mixture.sizes), dtype=int)
    for epoch in epochs:
        np.add.at(counts, mixture.rows(seed, epoch), 1)
    return np.split(counts, np.cumsum(mixture.sizes)[:-1])


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("weight", [0.1, 0.25, 1.0, 1.5, 2.0, 3.3])
def test_a_weight_is_how_often_each_pair_is_visited_in_an_epoch(weight, seed):
    mixture = Mixture((40, 20), (weight, 1.0))
    one, other = visits(mixture, [0], seed)
    assert set(one) <= {int(weight), -int(-weight // 1)} and one.sum() == round(40 * weight)
    assert set(other) == {1}
    many, _ = visits(mixture, range(20), seed)
    assert many.sum() == round(20 * 40 * weight)
    assert many.max() - many.min() <= 1  # no pair is left behind for others


def test_each_epoch_takes_another_part_of_a_corpus_and_an_epoch_is_arithmetic():
    mixture = Mixture((40,), (0.5,))
    first, second = mixture.rows(1, 0), mixture.rows(1, 1)
    assert sorted([*first, *second]) == list(range(40))
    assert np.array_equal(mixture.rows(1, 1), second)
    assert not np.array_equal(mixture.rows(2, 0), first)


def test_temperature_makes_the_shares_go_with_a_root_of_the_sizes():
    sizes = (1600, 100, 400)
    found = mixture_of(corpora(1, 1, 1, temperature=2.0), sizes)
    share = np.array(found.weights) * sizes
    assert np.allclose(share / share.sum(), np.sqrt(sizes) / np.sqrt(sizes).sum())
    assert found.weights[0] == 1.0  # the largest is visited once
    doubled = mixture_of(corpora(1, 2, 1, temperature=2.0), sizes)
    assert doubled.weights == (found.weights[0], 2 * found.weights[1], found.weights[2])
    assert mixture_of(corpora(1, 1, 1), sizes).weights == (1.0, 1.0, 1.0) != found.weights


def test_corpora_that_cannot_be_told_apart_are_not_weighted():
    assert mixture_of(corpora(1, 1), (7,)).weights == (1.0,)
    for data in (corpora(1, 2), corpora(1, 1, temperature=3.0)):
        with pytest.raises(RecipeError, match="the recipe has 2 corpora, but the data was prepared from 1"):
            mixture_of(data, (7,))
    with pytest.raises(RecipeError, match=r"weights of 0\.1, 0\.2 an epoch would have no pair"):
        mixture_of(corpora(0.1, 0.2), (3, 4))
    assert mixture_of(corpora(1, 1, temperature=2.0), (0, 4)).weights == (0.0, 1.0)  # all of it was dropped
