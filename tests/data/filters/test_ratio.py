"""Filter of length ratios: the usual ratio of a corpus and the bounds around it."""

import numpy as np
import pytest

from nmt.data.filters import UsualRatio, is_unusual, usual_ratio
from tests.samples import SAMPLES, sample


@pytest.mark.parametrize("languages", SAMPLES)
def test_default_max_ratio_drops_less_than_one_percent_of_any_sample(languages):
    pairs = sample(languages)
    usual = usual_ratio(pairs, 4.0)
    assert sum(is_unusual(len(src), len(trg), usual) for src, trg in pairs) < len(pairs) / 100


@pytest.mark.parametrize(
    ("n_src", "n_trg", "expected"), [(40, 80, False), (40, 81, True), (50, 24, True), (10, 39, False), (3, 40, True)]
)
def test_only_ratios_outside_the_bounds_are_unusual(n_src, n_trg, expected):
    assert is_unusual(n_src, n_trg, UsualRatio(1.0, 0.5, 2.0)) == expected


def corpus(ratio, n=2000):
    rng = np.random.default_rng(1)
    n_src = rng.integers(50, 500, n)
    n_trg = np.maximum(1, np.round(n_src * ratio * np.exp(0.2 * rng.standard_normal(n)))).astype(int)
    return [("字" * a, "y" * b) for a, b in zip(n_src.tolist(), n_trg.tolist(), strict=True)]


@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.5])
def test_usual_ratio_is_that_of_the_corpus_despite_a_fifth_of_noise(ratio):
    usual = usual_ratio(corpus(ratio), 3.0)
    assert usual.median == pytest.approx(ratio, rel=0.03), "characters count, not bytes"
    assert (usual.low, usual.high) == pytest.approx((usual.median / 3, usual.median * 3))
    noisy = [*corpus(ratio), *[("x" * 40, "y" * 4000)] * 500]
    assert usual_ratio(noisy, 3.0).median == pytest.approx(usual.median, rel=0.1)


def test_one_long_pair_does_not_change_the_usual_ratio_of_short_ones():
    usual = usual_ratio([("x" * 10, "y" * 12)] * 9 + [("x" * 300, "y")], 4.0)
    assert usual.median == pytest.approx(1.2) and is_unusual(300, 1, usual)


def test_usual_ratio_is_none_without_text_or_filter():
    assert usual_ratio([(None, "x" * 99), ("", "x" * 99)], 4.0) is None
    assert usual_ratio(corpus(1.0), 0.0) is None, "no filter asks for it"
