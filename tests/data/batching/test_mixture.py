"""Corpus weights and temperature: the exact number of visits of each pair in an epoch."""

import numpy as np
import pytest

from nmt.data.plan import Mixture, mixture_of
from nmt.errors import RecipeError
from nmt.recipe.data_options import DataConfig


def data_config(*weights, **options):
    return DataConfig(train=[{"src": "a", "trg": "b", "weight": weight} for weight in weights], **options)


def visits(mixture, epochs, seed=1):
    counts = np.zeros(sum(mixture.sizes), dtype=int)
    for epoch in epochs:
        np.add.at(counts, mixture.rows(seed, epoch), 1)
    return np.split(counts, np.cumsum(mixture.sizes)[:-1])


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("weight", [0.1, 0.25, 1.0, 1.5, 2.0, 3.3])
def test_weight_is_the_number_of_visits_of_each_pair_in_an_epoch(weight, seed):
    mixture = Mixture((40, 20), (weight, 1.0))
    weighted, unweighted = visits(mixture, [0], seed)
    assert set(weighted) <= {int(weight), -int(-weight // 1)} and weighted.sum() == round(40 * weight)
    assert set(unweighted) == {1}
    total, _ = visits(mixture, range(20), seed)
    assert total.sum() == round(20 * 40 * weight)
    assert total.max() - total.min() <= 1  # no pair falls behind


def test_epochs_visit_different_parts_and_depend_only_on_seed_and_epoch():
    mixture = Mixture((40,), (0.5,))
    first, second = mixture.rows(1, 0), mixture.rows(1, 1)
    assert sorted([*first, *second]) == list(range(40))
    assert np.array_equal(mixture.rows(1, 1), second)
    assert not np.array_equal(mixture.rows(2, 0), first)


def test_temperature_makes_shares_proportional_to_a_root_of_the_sizes():
    sizes = (1600, 100, 400)
    mixture = mixture_of(data_config(1, 1, 1, temperature=2.0), sizes)
    shares = np.array(mixture.weights) * sizes
    assert np.allclose(shares / shares.sum(), np.sqrt(sizes) / np.sqrt(sizes).sum())
    assert mixture.weights[0] == 1.0  # the largest corpus is visited once
    doubled = mixture_of(data_config(1, 2, 1, temperature=2.0), sizes)
    assert doubled.weights == (mixture.weights[0], 2 * mixture.weights[1], mixture.weights[2])
    assert mixture_of(data_config(1, 1, 1), sizes).weights == (1.0, 1.0, 1.0) != mixture.weights


def test_weights_leave_at_least_one_pair():
    assert mixture_of(data_config(), (7,)).weights == (1.0,)
    with pytest.raises(RecipeError, match=r"weights of 0\.1, 0\.2 an epoch would have no pair"):
        mixture_of(data_config(0.1, 0.2), (3, 4))
    assert mixture_of(data_config(1, 1, temperature=2.0), (0, 4)).weights == (0.0, 1.0)  # all its pairs were dropped
