"""What is due when: tables of where a run stands."""

import pytest

from nmt.recipe.options import Recipe
from nmt.training import budget
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
    ("update", "losses", "passed", "log", "save", "validate", "over"),
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
def test_what_is_due_after_an_update(update, losses, passed, log, save, validate, over):
    state = state_at(update, *losses)
    assert budget.log_is_due(state, RECIPE, passed) == log
    assert budget.checkpoint_is_due(state, RECIPE) == save
    assert budget.validation_is_due(state, RECIPE, passed) == validate
    assert budget.why_over(state, RECIPE, passed) == over


@pytest.mark.parametrize("passed", [0.0, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("losses", [[], [5.0]])
def test_the_outcome_of_an_update_is_waited_for_where_anything_follows_it_and_only_there(losses, passed):
    for update in range(1, 101):
        state = state_at(update, *losses)
        done = (
            budget.log_is_due(state, RECIPE, passed),
            budget.checkpoint_is_due(state, RECIPE),
            budget.validation_is_due(state, RECIPE, passed),
        )
        before = state_at(update - 1, *losses)  # the outcome is asked for before the update is counted
        validated = update in [entry["update"] for entry in state.history]  # which a run that resumes there may have
        assert validated or budget.anything_is_due(update, before, RECIPE, passed) == any(done)


@pytest.mark.parametrize(
    ("update", "n_skipped", "under_way", "passed", "share"),
    [
        (0, 0, False, 0.0, 0.0),
        (40, 0, False, 0.0, 0.4),
        (40, 5, True, 0.0, 0.46),  # by updates tried
        (40, 0, False, 0.7, 0.7),  # by the measure that is nearer its end
        (99, 5, True, 0.0, 1.0),
    ],
)
def test_the_share_of_the_run_goes_by_updates_tried(update, n_skipped, under_way, passed, share):
    state = state_at(update, n_skipped=n_skipped)
    assert budget.share(state, RECIPE, passed, under_way=under_way) == pytest.approx(share)


@pytest.mark.parametrize(
    ("update", "n_skipped", "passed", "factor"),
    [(0, 0, 0.0, 0.1), (4, 3, 0.0, 0.5), (9, 0, 0.0, 1.0), (54, 7, 0.0, 0.5), (99, 0, 0.0, 0.0), (54, 0, 1.0, 0.0)],
)
def test_the_rate_of_the_next_update_goes_by_updates_that_moved_the_weights(update, n_skipped, passed, factor):
    assert budget.rate_factor(state_at(update, n_skipped=n_skipped), RECIPE, passed) == pytest.approx(factor)
