"""What is due when: tables of where a run stands."""

import math
from typing import get_args

import pytest

from nmt.recipe.options import Recipe
from nmt.recipe.training_options import WITHOUT_END, OptimConfig
from nmt.training import budget
from nmt.training.budget import SCHEDULES, learning_rate_factor, share_of_run
from nmt.training.state import TrainState

RECIPE = Recipe.model_validate(
    {
        "name": "due",
        "optim": {"schedule": "linear", "warmup": 10},
        "train": {"updates": 100, "log_every": 4, "save_every": 6},
        "valid": {"every": 10, "patience": 2, "metric": "loss"},
    }
)


def state_at(update, *losses, **others):
    """After `update` updates, with validations of such losses every ten."""
    history = [{"update": 10 * number, "loss": loss} for number, loss in enumerate(losses, start=1)]
    return TrainState(update, history=history, **others)


@pytest.mark.parametrize(
    ("update", "losses", "time_share", "log", "save", "validate", "over"),
    [
        (0, [], 0.0, True, True, False, ""),  # before the first update nobody asks for the first two
        (3, [], 0.0, False, False, False, ""),
        (4, [], 0.0, True, False, False, ""),
        (6, [], 0.0, False, True, False, ""),
        (10, [], 0.0, False, False, True, ""),
        (10, [5], 0.0, False, False, False, ""),  # measured already
        (12, [5], 0.0, True, True, False, ""),
        (20, [5], 0.0, True, False, True, ""),
        (100, [5] * 9, 0.0, True, False, True, "done"),
        (100, [5] * 10, 0.0, True, False, False, "done"),
        (101, [5] * 10, 0.0, True, False, True, "done"),  # train.updates was lowered
        # by the clock
        (3, [], 0.24, False, False, False, ""),
        (3, [], 0.25, False, False, True, ""),  # to know what the last one will take
        (7, [], 0.3, False, False, False, ""),  # as it will be known at update 10
        (13, [5], 0.5, False, False, False, ""),
        (13, [5], 1.0, True, False, True, "time"),
        (100, [5] * 10, 1.0, True, False, False, "done"),
        # patience
        (30, [5, 4, 4], 0.0, False, True, False, ""),
        (40, [5, 4, 4, 6], 0.0, True, False, False, "patience"),
        (40, [5, 4, 4, 3], 0.0, True, False, False, ""),
    ],
)
def test_what_is_due_after_an_update(update, losses, time_share, log, save, validate, over):
    state = state_at(update, *losses)
    assert budget.log_is_due(state, RECIPE, time_share) == log
    assert budget.checkpoint_is_due(state, RECIPE) == save
    assert budget.validation_is_due(state, RECIPE, time_share) == validate
    assert budget.stop_reason(state, RECIPE, time_share) == over


@pytest.mark.parametrize("time_share", [0.0, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("losses", [[], [5.0]])
def test_the_outcome_of_an_update_is_waited_for_where_anything_follows_it_and_only_there(losses, time_share):
    for update in range(1, 101):
        state = state_at(update, *losses)
        done = (
            budget.log_is_due(state, RECIPE, time_share),
            budget.checkpoint_is_due(state, RECIPE),
            budget.validation_is_due(state, RECIPE, time_share),
        )
        before = state_at(update - 1, *losses)  # the outcome is asked for before the update is counted
        validated = update in [entry["update"] for entry in state.history]  # which a run that resumes there may have
        assert validated or budget.anything_is_due(update, before, RECIPE, time_share) == any(done)


@pytest.mark.parametrize(
    ("update", "n_skipped", "under_way", "time_share", "share"),
    [
        (0, 0, False, 0.0, 0.0),
        (40, 0, False, 0.0, 0.4),
        (40, 5, True, 0.0, 0.46),  # by updates tried
        (40, 0, False, 0.7, 0.7),  # by the measure that is nearer its end
        (99, 5, True, 0.0, 1.0),
    ],
)
def test_the_share_of_the_run_goes_by_updates_tried(update, n_skipped, under_way, time_share, share):
    state = state_at(update, n_skipped=n_skipped)
    assert budget.share(state, RECIPE, time_share, under_way=under_way) == pytest.approx(share)


@pytest.mark.parametrize(
    ("update", "n_skipped", "time_share", "factor"),
    [(0, 0, 0.0, 0.1), (4, 3, 0.0, 0.5), (9, 0, 0.0, 1.0), (54, 7, 0.0, 0.5), (99, 0, 0.0, 0.0), (54, 0, 1.0, 0.0)],
)
def test_the_rate_of_the_next_update_goes_by_updates_that_moved_the_weights(update, n_skipped, time_share, factor):
    assert budget.rate_factor(state_at(update, n_skipped=n_skipped), RECIPE, time_share) == pytest.approx(factor)


# Learning rates against their formulas.


def factor(update, n_update=1000, time_share=0.0, **options):
    share = share_of_run(update, n_update=n_update, time_share=time_share)
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
        by_clock = factor(u, n_update=10**6, time_share=u / 1000, **options)
        assert by_clock == pytest.approx(factor(u, **options), rel=1e-9)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_a_run_that_ends_by_the_clock_ends_annealed_whatever_its_pace(schedule):
    options = {"schedule": schedule, "warmup": 10}
    for n_done in (11, 500, 99_999):
        assert factor(n_done, n_update=10**5, time_share=1.0, **options) == pytest.approx(0.0, abs=1e-12)
    # and where its updates run out first, so does the rate
    assert factor(10**5, n_update=10**5, time_share=0.4, **options) == pytest.approx(0.0, abs=1e-12)


def test_a_schedule_is_a_function_in_the_table(monkeypatch):
    monkeypatch.setitem(SCHEDULES, "square", lambda update, warmup, share, config: (1 - share) ** 2)
    options = OptimConfig(warmup=10).model_copy(update={"schedule": "square"})
    found = [learning_rate_factor(u, options, share=u / 100, d_model=8) for u in (5, 10, 50, 100)]
    assert found == pytest.approx([0.5, 1.0, 0.25, 0.0])


def test_every_schedule_of_a_recipe_is_in_the_table():
    names = set(get_args(OptimConfig.model_fields["schedule"].annotation))
    assert names - {"auto", "noam"} == set(SCHEDULES) and set(WITHOUT_END) < names
