"""Learning rates against their formulas."""

import math

import pytest

from nmt.recipe.training_options import OptimConfig
from nmt.training.budget import learning_rate_factor, share_of_run


def factor(update, n_update=1000, passed=0.0, **options):
    share = share_of_run(update, n_update=n_update, passed=passed)
    return learning_rate_factor(update, OptimConfig(**options), share=share, d_model=512)


def test_noam_is_the_formula_of_the_paper():
    for u in (1, 10, 4000, 4001, 100_000):
        wanted = 2.0 * 512**-0.5 * min(u**-0.5, u * 4000**-1.5)
        assert factor(u, schedule="noam", warmup=4000, lr_mul=2.0) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "cosine", "linear", "wsd", "constant"])
def test_warm_up_is_linear_and_ends_at_the_peak(schedule):
    found = [factor(u, schedule=schedule, warmup=100) for u in (1, 50, 100)]
    assert found == pytest.approx([0.01, 0.5, 1.0], rel=1e-12)


def test_after_the_warm_up():
    assert factor(400, schedule="inverse_sqrt", warmup=100) == pytest.approx(0.5)
    assert factor(550, schedule="linear", warmup=100) == pytest.approx(0.5)
    assert factor(550, schedule="cosine", warmup=100) == pytest.approx(0.5)
    assert factor(325, schedule="cosine", warmup=100) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))
    assert factor(900, schedule="constant", warmup=100) == 1.0


def test_linear_and_cosine_follow_the_updates_since_the_warm_up():
    for u in (101, 333, 999):
        done = (u - 100) / 900
        assert factor(u, schedule="linear", warmup=100) == pytest.approx(1 - done, rel=1e-9)
        assert factor(u, schedule="cosine", warmup=100) == pytest.approx(0.5 * (1 + math.cos(math.pi * done)), rel=1e-9)


def test_wsd_stays_and_then_falls_as_one_less_the_root_of_what_of_the_decay_is_done():
    options = {"schedule": "wsd", "warmup": 100, "decay_share": 0.25, "end_factor": 0.1}
    assert {factor(u, **options) for u in range(100, 751)} == {1.0}
    for u in (751, 850, 999):
        wanted = 0.1 + 0.9 * (1 - math.sqrt((u - 750) / 250))
        assert factor(u, **options) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
@pytest.mark.parametrize("warmup", [0, 7, 1000])
def test_the_last_update_ends_at_the_end_factor_and_stays_there(schedule, warmup):
    for u in (1001, 1200):
        assert factor(u, schedule=schedule, warmup=warmup, end_factor=0.1) == pytest.approx(0.1)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_at_an_even_pace_a_clock_gives_the_rates_of_the_updates(schedule):
    for u in range(1, 1001, 37):
        options = {"schedule": schedule, "warmup": 50, "end_factor": 0.05}
        by_clock = factor(u, n_update=10**6, passed=u / 1000, **options)
        assert by_clock == pytest.approx(factor(u, **options), rel=1e-9)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_a_run_that_ends_by_the_clock_ends_annealed_whatever_its_pace(schedule):
    options = {"schedule": schedule, "warmup": 10}
    for n_done in (11, 500, 99_999):
        assert factor(n_done, n_update=10**5, passed=1.0, **options) == pytest.approx(0.0, abs=1e-12)
    # and where its updates run out first, so does the rate
    assert factor(10**5, n_update=10**5, passed=0.4, **options) == pytest.approx(0.0, abs=1e-12)
