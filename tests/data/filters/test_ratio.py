"""The bounds on the ratio of lengths, and the usual ratio that they are bounds around."""

import math

import numpy as np
import pytest

from nmt.data.filters import UsualRatio, is_unusual, usual_ratio
from nmt.recipe.data_options import FilterConfig
from tests.samples import SAMPLES, sample

BY_FACTOR, BY_SPREAD = FilterConfig(max_ratio=4.0), FilterConfig(max_ratio=0.0, max_ratio_spread=6.0)


@pytest.mark.parametrize("languages", SAMPLES)
def test_the_default_drops_less_than_one_in_a_hundred_pairs_of_any_sample(languages):
    pairs = sample(languages)
    usual = usual_ratio(pairs, FilterConfig())
    assert sum(is_unusual(len(src), len(trg), usual) for src, trg in pairs) < len(pairs) / 100


@pytest.mark.parametrize(
    ("n_src", "n_trg", "found"), [(40, 80, False), (40, 81, True), (50, 24, True), (10, 39, False), (3, 40, True)]
)
def test_a_ratio_that_is_not_usual(n_src, n_trg, found):
    assert is_unusual(n_src, n_trg, UsualRatio(1.0, 0.5, 2.0)) == found


def corpus(ratio, sigma, n=2000, seed=1):
    rng = np.random.default_rng(seed)
    n_src = rng.integers(50, 500, n)
    n_trg = np.maximum(1, np.round(n_src * ratio * np.exp(sigma * rng.standard_normal(n)))).astype(int)
    return [("字" * a, "y" * b) for a, b in zip(n_src.tolist(), n_trg.tolist(), strict=True)]


@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.5])
def test_what_is_learnt_is_the_ratio_of_the_corpus_and_its_spread(ratio):
    usual = usual_ratio(corpus(ratio, 0.2), FilterConfig(max_ratio=0, max_ratio_spread=3.0))
    assert usual.median == pytest.approx(ratio, rel=0.03), "characters count, not bytes"
    assert math.log(usual.high / usual.median) == pytest.approx(3 * 0.2, rel=0.1)
    assert usual.high / usual.median == pytest.approx(usual.median / usual.low)
    usual = usual_ratio(corpus(ratio, 0.2), BY_FACTOR)
    assert (usual.low, usual.high) == pytest.approx((usual.median / 4, usual.median * 4))


def test_of_two_bounds_the_narrower_one_counts():
    for factor, spread in ((1.5, 6.0), (8.0, 2.0)):
        options = [(factor, 0), (0, spread), (factor, spread)]
        configs = [FilterConfig(max_ratio=ratio, max_ratio_spread=sigmas) for ratio, sigmas in options]
        one, other, both = (usual_ratio(corpus(1.2, 0.2), config).high for config in configs)
        assert both == min(one, other) and one != other


def test_a_fifth_of_rubbish_hardly_moves_what_is_learnt():
    clean = corpus(1.2, 0.2)
    dirty = [*clean, *[("x" * 40, "y" * 4000)] * 500]
    assert usual_ratio(dirty, BY_FACTOR).median == pytest.approx(usual_ratio(clean, BY_FACTOR).median, rel=0.1)


def test_one_long_pair_among_short_ones_does_not_say_what_is_usual():
    usual = usual_ratio([("x" * 10, "y" * 12)] * 9 + [("x" * 300, "y")], BY_FACTOR)
    assert usual.median == pytest.approx(1.2) and is_unusual(300, 1, usual)


def test_copies_leave_some_leeway_and_nothing_is_learnt_from_no_text():
    usual = usual_ratio([("x" * 100, "y" * 100)] * 10, BY_SPREAD)
    assert usual.low < 0.8 and usual.high > 1.25
    assert usual_ratio([(None, "x" * 99), ("", "x" * 99)], BY_FACTOR) is None
    assert usual_ratio(corpus(1.0, 0.1), FilterConfig(max_ratio=0)) is None, "no filter asks for it"
