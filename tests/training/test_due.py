"""Due dates of logging, validation and the end of training; learning rates."""

import math

import pytest
import torch

from nmt.recipe.options import Recipe
from nmt.recipe.training_options import OptimConfig
from nmt.training import budget
from nmt.training.budget import SCHEDULES, Budget, learning_rate_factor, share_of_run
from nmt.training.reporter import TrainingReporter
from nmt.training.state import Sums, TrainState

RECIPE = Recipe.model_validate(
    {
        "name": "due",
        "optim": {"schedule": "linear", "warmup": 10},
        "train": {"updates": 100, "log_every": 4, "save_every": 6},
        "valid": {"every": 10, "patience": 2, "metric": "loss"},
    }
)


def state_at(update, *losses, **others):
    """Return the state after `update` updates, with a validation every ten. losses: one for each validation."""
    history = [{"update": 10 * number, "loss": loss} for number, loss in enumerate(losses, start=1)]
    return TrainState(update, history=history, **others)


@pytest.mark.parametrize(
    ("update", "losses", "time_share", "log", "validate", "over"),
    [
        (0, [], 0.0, True, False, ""),  # log and validate are not used before the first update
        (3, [], 0.0, False, False, ""),
        (4, [], 0.0, True, False, ""),
        (6, [], 0.0, False, False, ""),
        (10, [], 0.0, False, True, ""),
        (10, [5], 0.0, False, False, ""),  # measured already
        (12, [5], 0.0, True, False, ""),
        (20, [5], 0.0, True, True, ""),
        (100, [5] * 9, 0.0, True, True, "done"),
        (100, [5] * 10, 0.0, True, False, "done"),
        (101, [5] * 10, 0.0, True, True, "done"),  # train.updates was lowered
        # by the clock
        (3, [], 0.24, False, False, ""),
        (3, [], 0.25, False, True, ""),  # to predict the time of the last one
        (7, [], 0.3, False, False, ""),  # as it will be known at update 10
        (13, [5], 0.5, False, False, ""),
        (13, [5], 1.0, True, True, "time"),
        (100, [5] * 10, 1.0, True, False, "done"),
        # patience
        (30, [5, 4, 4], 0.0, False, False, ""),
        (40, [5, 4, 4, 6], 0.0, True, False, "patience"),
        (40, [5, 4, 4, 3], 0.0, True, False, ""),
    ],
)
def test_log_validation_and_end_are_due_at_their_updates(update, losses, time_share, log, validate, over):
    state = state_at(update, *losses)
    assert budget.log_is_due(update, RECIPE, time_share) == log
    assert budget.validation_is_due(state, RECIPE, time_share) == validate
    assert budget.stop_reason(state, RECIPE, time_share) == over


@pytest.mark.parametrize("time_share", [0.0, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("losses", [[], [5.0]])
def test_outcome_of_an_update_is_awaited_only_where_an_action_follows(losses, time_share):
    for update in range(1, 101):
        state = state_at(update, *losses)
        due = (
            budget.log_is_due(update, RECIPE, time_share),
            update % RECIPE.train.save_every == 0,
            budget.validation_is_due(state, RECIPE, time_share),
        )
        before = state_at(update - 1, *losses)  # the outcome is asked for before the update is counted
        validated = update in [entry["update"] for entry in state.history]  # possible in a resumed run
        assert validated or budget.anything_is_due(update, before, RECIPE, time_share) == any(due)


@pytest.mark.parametrize(
    ("update", "n_skipped", "time_share", "factor"),
    [(0, 0, 0.0, 0.1), (4, 3, 0.0, 0.5), (9, 0, 0.0, 1.0), (54, 7, 0.0, 0.5), (99, 0, 0.0, 0.0), (54, 0, 1.0, 0.0)],
)
def test_learning_rate_counts_only_updates_that_moved_the_weights(update, n_skipped, time_share, factor):
    assert budget.rate_factor(state_at(update, n_skipped=n_skipped), RECIPE, time_share) == pytest.approx(factor)


def factor(update, n_update=1000, time_share=0.0, **options):
    share = share_of_run(update, n_update=n_update, time_share=time_share)
    return learning_rate_factor(update, OptimConfig(**options), share=share, d_model=512)


NOAM = {"schedule": "noam", "lr_mul": 2.0}
WSD = {"schedule": "wsd", "decay_share": 0.25, "end_factor": 0.1}


@pytest.mark.parametrize(
    ("options", "update", "wanted"),
    [
        *((NOAM, u, 2.0 * 512**-0.5 * min(u**-0.5, u * 100**-1.5)) for u in (1, 100, 9000)),
        *(({"schedule": name}, u, u / 100) for name in SCHEDULES for u in (1, 100)),
        ({"schedule": "inverse_sqrt"}, 400, 0.5),
        ({"schedule": "constant"}, 900, 1.0),
        *(({"schedule": "linear"}, u, 1 - (u - 100) / 900) for u in (101, 550, 999)),
        *(({"schedule": "cosine"}, u, 0.5 * (1 + math.cos(math.pi * (u - 100) / 900))) for u in (101, 325, 999)),
        *((WSD, u, 1.0) for u in (100, 500, 750)),
        *((WSD, u, 0.1 + 0.9 * (1 - math.sqrt((u - 750) / 250))) for u in (751, 850, 999)),
    ],
)
def test_schedule_equals_its_formula(options, update, wanted):
    """Linear over a warm-up of 100 of 1,000 updates, except noam; then as in the papers."""
    assert factor(update, warmup=100, **options) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
@pytest.mark.parametrize("warmup", [0, 7, 1000])
def test_schedule_ends_at_the_end_factor_and_stays_there(schedule, warmup):
    for u in (1001, 1200):
        assert factor(u, schedule=schedule, warmup=warmup, end_factor=0.1) == pytest.approx(0.1)


def test_schedule_can_be_added_to_the_table(monkeypatch):
    monkeypatch.setitem(SCHEDULES, "square", lambda update, warmup, share, config: (1 - share) ** 2)
    options = OptimConfig(warmup=10).model_copy(update={"schedule": "square"})
    factors = [learning_rate_factor(u, options, share=u / 100, d_model=8) for u in (5, 10, 50, 100)]
    assert factors == pytest.approx([0.5, 1.0, 0.25, 0.0])


def test_run_that_ends_long_before_its_time_budget_validates_ten_times():
    changes = {"train": {"updates": 100, "time_budget": "10h"}, "valid": {"every": "auto", "metric": "loss"}}
    recipe, history = Recipe.model_validate({"name": "due", **changes}), []
    for update in range(1, 101):
        if budget.validation_is_due(TrainState(update, history=history), recipe, time_share=1e-5 * update):
            history.append({"update": update, "loss": 1.0})
    assert [entry["update"] for entry in history] == [*range(10, 101, 10)]


def test_time_left_follows_from_the_speed_or_the_time_budget(recipe_of):
    recipe = recipe_of(train={"updates": 1000, "time_budget": "10h"})
    reporter = TrainingReporter(recipe, None, Budget(recipe.train, lambda: 0.0), None, 0.0)
    assert reporter.seconds_left(TrainState(200, wall_seconds=400.0), 2.0) == 800 * 2.0
    assert reporter.seconds_left(TrainState(200, wall_seconds=35_000.0), 2.0) == 1000.0


class _Messages:
    def __init__(self) -> None:
        self.said: list[str] = []

    def write(self, *fields, **more) -> None: ...

    def row(self, text: str) -> None: ...

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.parametrize(("policy", "n"), [("active", 1), ("passive", 0), ("PASSIVE", 0)])
def test_a_slowdown_by_spinning_threads_is_reported_once(recipe_of, monkeypatch, policy, n):
    monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    recipe, messages = recipe_of(), _Messages()
    reporter = TrainingReporter(recipe, messages, Budget(recipe.train), torch.device("cpu"), 0.0)
    for seconds in (1.0, 2.0, 12.0, 13.0, 1.0):
        reporter.updates(TrainState(200, since_log=Sums(n_update=10, n_gold=1000, seconds=seconds)))
    slower = [text for text in messages.said if "slower" in text]
    assert len(slower) == n
    assert all("12 times slower" in text and "OMP_WAIT_POLICY=passive" in text for text in slower)
