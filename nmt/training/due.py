"""What is due when: the share of the run, the learning rate, logging, saving, validating, and the end.

Pure functions of the state, of the recipe, and of `passed`, the share of the time budget that has passed (0 without a
budget). What they say is done in `trainer.py`.
"""

from nmt.recipe.options import Recipe
from nmt.training.budget import is_due_by_clock, is_to_be_planned
from nmt.training.schedule import learning_rate_factor, share_of_run
from nmt.training.state import TrainState


def share(state: TrainState, recipe: Recipe, passed: float, *, under_way: bool) -> float:
    """The share of the run that has passed, by updates tried: how the last one went may not be known yet.

    under_way: whether there is such an update.
    """
    tried = state.update + state.n_skipped + under_way
    return share_of_run(tried, n_update=recipe.train.updates, passed=passed)


def rate_factor(state: TrainState, recipe: Recipe, passed: float) -> float:
    """What the learning rate is multiplied by in the next update: see `learning_rate_factor`."""
    update = state.update + 1
    share = share_of_run(update, n_update=recipe.train.updates, passed=passed)
    return learning_rate_factor(update, recipe.optim, share=share, d_model=recipe.model.d_model)


def anything_is_due(update: int, state: TrainState, recipe: Recipe, passed: float) -> bool:
    """Whether something is done after an update, so that its outcome must be known at once."""
    train = recipe.train
    regular = update % train.log_every == 0 or update % train.save_every == 0
    return regular or _is_to_be_validated(update, state, recipe, passed)


def log_is_due(state: TrainState, recipe: Recipe, passed: float) -> bool:
    """Whether a line of the log tells of the updates since the line before."""
    return state.update % recipe.train.log_every == 0 or _is_last(state.update, recipe, passed)


def checkpoint_is_due(state: TrainState, recipe: Recipe) -> bool:
    """Whether a checkpoint is, whatever else is; after a validation and at the end there is one, too."""
    return state.update % recipe.train.save_every == 0


def validation_is_due(state: TrainState, recipe: Recipe, passed: float) -> bool:
    """Whether this update is to be validated, and was not yet."""
    u = state.update
    return (
        u > 0 and _is_to_be_validated(u, state, recipe, passed) and all(entry["update"] != u for entry in state.history)
    )


def why_over(state: TrainState, recipe: Recipe, passed: float) -> str:
    """Why training is over: 'done', 'time', 'patience', or '' if it is not."""
    if state.update >= recipe.train.updates:
        return "done"
    if passed >= 1:
        return "time"
    return "patience" if state.out_of_patience(recipe.valid.metric, recipe.valid.patience) else ""


def forget_end(state: TrainState, recipe: Recipe) -> None:
    """Of a run that had ended and goes on: what there was only for that end leaves no trace, as for a stop."""
    u = state.update
    if not recipe.valid.is_regular(u):
        state.history = [entry for entry in state.history if entry["update"] != u]
        if not checkpoint_is_due(state, recipe) and u not in state.stops:
            state.stops.append(u)


def _is_last(update: int, recipe: Recipe, passed: float) -> bool:
    """Whether the updates or the time for them end here."""
    return update >= recipe.train.updates or passed >= 1


def _is_to_be_validated(update: int, state: TrainState, recipe: Recipe, passed: float) -> bool:
    """Whether a validation belongs to an update: the last, a regular one, or the first that tells what one takes."""
    if _is_last(update, recipe, passed):
        return True
    if recipe.train.time_budget and passed + state.measure_share >= 1:
        return False  # one that was begun now would take the place of the last, which follows soon
    valid = recipe.valid
    regular = is_due_by_clock(state, passed) if valid.every == "auto" else valid.is_regular(update)
    # Before the first, nobody knows how much of the time the last will need.
    return regular or (not state.history and is_to_be_planned(update, recipe, passed))
