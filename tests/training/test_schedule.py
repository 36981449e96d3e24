"""Learning rates against their formulas."""

import math

import pytest

from nmt.recipe.training_options import OptimConfig
from nmt.training.schedule import learning_rate_factor


def factor(update, n_update=1000, **options):
    return learning_rate_factor(update, OptimConfig(**options), n_update=n_update, d_model=512)


def test_noam_is_the_formula_of_the_paper():
    for u in (1, 10, 4000, 4001, 100_000):
        wanted = 2.0 * 512**-0.5 * min(u**-0.5, u * 4000**-1.5)
        assert factor(u, schedule="noam", warmup=4000, lr_mul=2.0) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "cosine", "linear", "constant"])
def test_warm_up_is_linear_and_ends_at_the_peak(schedule):
    found = [factor(u, schedule=schedule, warmup=100) for u in (1, 50, 100)]
    assert found == pytest.approx([0.01, 0.5, 1.0], rel=1e-12)


def test_after_the_warm_up():
    assert factor(400, schedule="inverse_sqrt", warmup=100) == pytest.approx(0.5)
    assert factor(550, schedule="linear", warmup=100) == pytest.approx(0.5)
    assert factor(550, schedule="cosine", warmup=100) == pytest.approx(0.5)
    assert factor(325, schedule="cosine", warmup=100) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))
    assert factor(900, schedule="constant", warmup=100) == 1.0


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_the_last_update_ends_at_the_end_factor_and_stays_there(schedule):
    for u in (1000, 1200):
        assert factor(u, schedule=schedule, warmup=0, end_factor=0.1) == pytest.approx(0.1)
