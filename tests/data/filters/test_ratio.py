"""The two bounds on the ratio of lengths."""

import math

import numpy as np
import pytest

from nmt.data.filters.ratio import UsualRatio, is_too_unlike, is_unusual, usual_ratio


@pytest.mark.parametrize(
    ("src", "trg", "found"),
    [
        ("Ja.", "x" * 39, False),  # a ratio of 13, but short
        ("Ja.", "x" * 40, True),
        ("x" * 40, "x" * 80, False),
        ("x" * 40, "x" * 81, True),
        ("x" * 81, "x" * 40, True),
        ("日本" * 10, "x" * 31, False),  # bytes count, not characters
    ],
)
def test_a_ratio_of_bytes_beyond_the_bound(src, trg, found):
    assert is_too_unlike(src, trg, 2.0) == found


@pytest.mark.parametrize(
    ("n_src", "n_trg", "found"), [(40, 80, False), (40, 81, True), (50, 24, True), (10, 39, False)]
)
def test_a_ratio_that_is_not_usual(n_src, n_trg, found):
    assert is_unusual("x" * n_src, "y" * n_trg, UsualRatio(1.0, 0.5, 2.0)) == found


def corpus(ratio, sigma, n=2000, seed=1):
    rng = np.random.default_rng(seed)
    n_src = rng.integers(50, 500, n)
    n_trg = np.maximum(1, np.round(n_src * ratio * np.exp(sigma * rng.standard_normal(n)))).astype(int)
    return [("x" * a, "y" * b) for a, b in zip(n_src.tolist(), n_trg.tolist(), strict=True)]


@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.5])
def test_what_is_learnt_is_the_ratio_of_the_corpus_and_its_spread(ratio):
    usual = usual_ratio(corpus(ratio, 0.2), 3.0)
    assert usual.median == pytest.approx(ratio, rel=0.03)
    assert math.log(usual.high / usual.median) == pytest.approx(3 * 0.2, rel=0.1)
    assert usual.high / usual.median == pytest.approx(usual.median / usual.low)


def test_a_fifth_of_rubbish_hardly_moves_what_is_learnt():
    clean = corpus(1.2, 0.2)
    dirty = [*clean, *[("x" * 40, "y" * 4000)] * 500]
    assert usual_ratio(dirty, 6.0).median == pytest.approx(usual_ratio(clean, 6.0).median, rel=0.1)


def test_copies_leave_some_leeway_and_short_pairs_nothing_to_learn():
    usual = usual_ratio([("x" * 100, "y" * 100)] * 10, 6.0)
    assert usual.low < 0.8 and usual.high > 1.25
    assert usual_ratio([("x", "y"), (None, "x" * 99), ("", "x" * 99)], 6.0) is None


@pytest.mark.parametrize("most", [63, 64, 100])
def test_of_a_large_corpus_pairs_are_taken_evenly_and_no_more_than_told(monkeypatch, most):
    """The ratio grows along the corpus: what is learnt is that of its middle."""
    monkeypatch.setattr("nmt.data.filters.ratio.MOST_LEARNT", most)
    taken: list[int] = []
    monkeypatch.setattr(
        "nmt.data.filters.ratio.np.frombuffer", lambda logs, dtype: taken.append(len(logs)) or np.array(logs)
    )
    usual = usual_ratio(iter([("x" * 100, "y" * (100 + n)) for n in range(1000)]), 1.0)
    assert most / 2 < taken[0] <= most
    assert usual.median == pytest.approx(6.0, rel=0.15)
