"""Time budget, learning-rate schedules, and what is due after an update. Wall time, which cannot be reproduced, affects
only the schedule and the end of training: pairs, order and dropout of an update are the same under any clock."""

import math
import time
from collections.abc import Callable
from typing import Any

from nmt.recipe.options import Recipe
from nmt.recipe.training_options import WITHOUT_END, OptimConfig, TrainConfig
from nmt.training.state import TrainState

# Shares of the budget, unless the comment says otherwise.
_FIRST_VALIDATION = 0.25  # time of a first validation, unless a regular one is due before _SOON
_SOON = 0.5
_MIN_SCHEDULE = 0.05  # kept for the schedule, however long a validation took
_LATE = 0.6  # passed after the first update if set-up took most of the time
_RESERVE_IF_LATE = 0.3, 0.15  # of the time that is left then: for the last validation, and for saving once
_VALID_EVERY = 0.1  # of the time or of the updates, between two validations if valid.every is auto
_MIN_INTERVAL = 5.0  # least time between two such validations, in durations of one
_MAX_FOR_CHOICE = 0.2  # kept for models other than the last, at most
_SLOWER = 0.2  # of a validation: the last may be slower by this, as outputs grow and machines are shared
_MAX_SLOWER = 0.03  # kept for that, at most
_N_SAVE = 2  # the last checkpoint and the final model
_GRACE = 0.02  # after this excess nothing new is begun


def foreseen(recipe: Recipe, *, update_seconds: float, valid_seconds: float) -> tuple[int, int]:
    """Estimate the updates of a run, at most train.updates and what fits into train.time_budget, and its validations.

    update_seconds, valid_seconds: duration of one. Set-up and saving are ignored.
    """
    train, every, budget = recipe.train, recipe.valid.every, recipe.train.budget_seconds
    tenth = min(_VALID_EVERY * budget / update_seconds, _VALID_EVERY * train.updates)
    least = max(1.0, _MIN_INTERVAL * valid_seconds / update_seconds)
    interval = float(max(tenth, least) if every == "auto" else every)  # in updates
    n_update = float(train.updates)
    if budget:
        rest = budget - n_measured_at_end(train) * valid_seconds
        n_in_time = max(_MIN_SCHEDULE * budget / update_seconds, rest / (update_seconds + valid_seconds / interval))
        n_update = max(1.0, min(n_update, n_in_time))
    return int(n_update), max(1, math.ceil(n_update / interval))


def n_measured_at_end(config: TrainConfig) -> int:
    """Count the models that are measured after the updates: the last weights, their average and the moving average."""
    return 1 + (config.average != "none") + (config.ema > 0)


class Budget:
    """Clock of one process; that of rank 0 decides. It counts the whole command, in all parts of a resumed run: initial
    embeddings, compilation, updates, validations and saving. The sum is in the state, so in checkpoints."""

    def __init__(self, config: TrainConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = config.budget_seconds
        self._n_measure = n_measured_at_end(config)
        self.clock = clock
        self._last = clock()

    def count_time(self, state: TrainState) -> float:
        """Count the time until now. Returns the share of the schedule that has passed; 0 without a budget."""
        now = self.clock()
        state.wall_seconds += now - self._last
        self._last = now
        return self.share(state)

    def has_time(self, state: TrainState, seconds: float = 0.0) -> bool:
        """Return whether work of so many seconds, begun now, still leaves time to save, up to a small excess."""
        spent = state.wall_seconds + self.clock() - self._last + seconds + _N_SAVE * state.save_seconds
        return not self.seconds or spent <= (1 + _GRACE) * self.seconds

    def resume(self, state: TrainState) -> float:
        """Resume a run that was stopped or had ended. Returns the share of the schedule that has passed. If its end has
        changed, the rest of the schedule is planned again."""
        if self.seconds and state.planned_for != self.seconds:
            state.planned_at = state.wall_seconds
            state.planned_share = min(1.0, state.wall_seconds / self.seconds)
            state.validated_share = min(state.validated_share, state.planned_share)
        state.planned_for = self.seconds
        state.measure_share = self._measure_share(state)
        return self.share(state)

    def began(self, state: TrainState, share: float) -> None:
        """Plan after the first update. share: of the schedule, by the clock of rank 0. If set-up took most of the time,
        there is no validation before the end, and part of the rest is kept for it."""
        state.validated_share = share  # no validation is due because of set-up time
        if _LATE < share < 1:
            reserve = (part * (1 - share) * self.seconds for part in _RESERVE_IF_LATE)
            state.measure_seconds, state.save_seconds = reserve
            self._plan(state, share)
            state.measure_share = 1 - share

    def measured(self, state: TrainState, seconds: float, share: float) -> None:
        """Plan again after a validation of so many seconds. share: of the schedule, at the last update. The next one is
        expected to take as long, or, if earlier ones took longer, longer by half of the excess."""
        state.measure_seconds = max(seconds, (seconds + state.measure_seconds) / 2)
        self._plan(state, share)
        state.measure_share = self._measure_share(state)

    def saved(self, state: TrainState, seconds: float, share: float) -> None:
        """Plan again after a checkpoint, if it took longer than all before. share: at the last update."""
        if seconds > state.save_seconds:
            state.save_seconds = seconds
            self._plan(state, share)

    def _plan(self, state: TrainState, share: float) -> None:
        """Spread the rest of the schedule over the rest of the time, after a new estimate of the time that is needed
        after the updates. share: that of the last update, so that it neither falls nor jumps."""
        if self.seconds:
            self.count_time(state)
            state.planned_at, state.planned_share = state.wall_seconds, min(1.0, share)

    def share(self, state: TrainState) -> float:
        """Return the share of the schedule that had passed at the last count, at most 1. The schedule is completed even
        in little time: a learning rate that never came down is worse than a last validation cut short."""
        if not self.seconds:
            return 0.0
        if state.wall_seconds >= self.seconds:
            return 1.0
        rest = 1 - state.planned_share
        return min(1.0, state.planned_share + rest * (state.wall_seconds - state.planned_at) / self._update_time(state))

    def _measure_share(self, state: TrainState) -> float:
        """Return the share of the schedule that passes during a validation; 0 without a budget."""
        return (1 - state.planned_share) * state.measure_seconds / self._update_time(state) if self.seconds else 0.0

    def _update_time(self, state: TrainState) -> float:
        """Return the seconds that are available for updates after the last plan."""
        validation = state.measure_seconds
        # The choice of the final model comes on top of the last validation and the last checkpoint.
        choice = (self._n_measure - 1) * validation
        if self._n_measure * validation > _MAX_FOR_CHOICE * self.seconds:
            choice = 0.0  # then the choice relies on earlier measurements
        slower = min(_SLOWER * (validation + choice), _MAX_SLOWER * self.seconds)
        ending = validation + choice + slower + _N_SAVE * state.save_seconds
        least = _MIN_SCHEDULE * (1 - state.planned_share) * self.seconds
        return max(self.seconds - ending - state.planned_at, least, 1e-9)


def share_of_run(update: int, *, n_update: int, time_share: float = 0.0) -> float:
    """Return the share of the run after `update` updates, in [0, 1]: the larger of the shares by updates and by time.

    time_share: share of the time budget that has passed; 0 without one.
    """
    return min(1.0, max(update / n_update, time_share))


def _linear(update: int, warmup: int, share: float, config: OptimConfig) -> float:
    # The warm-up took warmup / update of the share so far: exactly by updates, approximately by time.
    return _scaled(1 - share * (update - warmup) / (update - share * warmup), config)


def _cosine(update: int, warmup: int, share: float, config: OptimConfig) -> float:
    done = share * (update - warmup) / (update - share * warmup)
    return _scaled(0.5 * (1 + math.cos(math.pi * done)), config)


def _wsd(update: int, warmup: int, share: float, config: OptimConfig) -> float:
    """Warm-up, stable, decay (Hu et al. 2024, MiniCPM). The decay, in the last `decay_share` of the run, is 1 - sqrt
    (Hägele et al. 2024)."""
    return _scaled(1 - math.sqrt(max(0.0, 1 - (1 - share) / config.decay_share)), config)


def _scaled(decay: float, config: OptimConfig) -> float:
    """Map a decay from 1 to 0 to factors from 1 to `end_factor`."""
    return config.end_factor + (1 - config.end_factor) * decay


# The factor of the peak rate after the linear warm-up: (update, updates of warm-up, share of the run, options).
SCHEDULES: dict[str, Callable[[int, int, float, OptimConfig], float]] = {
    "inverse_sqrt": lambda update, warmup, share, config: math.sqrt(warmup / update),
    "constant": lambda update, warmup, share, config: 1.0,
    "linear": _linear,
    "cosine": _cosine,
    "wsd": _wsd,
}


def learning_rate_factor(update: int, config: OptimConfig, *, share: float, d_model: int) -> float:
    """Return the factor of the peak learning rate at `update`, which counts from 1; for noam, the rate itself.

    share: of the run with this update done, see `share_of_run`. All but noam rise linearly over `warmup` updates.
    noam: lr_mul * d_model^-0.5 * min(u^-0.5, u * warmup^-1.5) (Vaswani et al. 2017, section 5.3; lr_mul as upstream).
    """
    assert update >= 1 and config.schedule != "auto"
    warmup = max(1, config.n_warmup)
    if config.schedule == "noam":
        return config.lr_mul / math.sqrt(d_model) * min(1 / math.sqrt(update), update / (warmup * math.sqrt(warmup)))
    return update / warmup if update <= warmup else SCHEDULES[config.schedule](update, warmup, share, config)


def bound_to_length(recipe: Recipe) -> list[str]:
    """Return the options by which updates depend on the length of the run; without any, a longer run begins alike."""
    names = [] if recipe.optim.schedule in WITHOUT_END else ["optim.schedule"]
    starts = [name for name in ("r_drop_from", "simcut_from") if getattr(recipe.regularize, name)]
    return names + [f"regularize.{name}" for name in starts]


def rate_factor(state: TrainState, recipe: Recipe, time_share: float) -> float:
    """Return the factor of the learning rate in the next update; see `learning_rate_factor`."""
    update = state.update + 1
    share = share_of_run(update, n_update=recipe.train.updates, time_share=time_share)
    return learning_rate_factor(update, recipe.optim, share=share, d_model=recipe.model.d_model)


def anything_is_due(update: int, state: TrainState, recipe: Recipe, time_share: float) -> bool:
    """Return whether anything is due after an update, so that its outcome must be known at once."""
    is_saved = update % recipe.train.save_every == 0
    return is_saved or log_is_due(update, recipe, time_share) or _validates(update, state, recipe, time_share)


def log_is_due(update: int, recipe: Recipe, time_share: float) -> bool:
    """Return whether a line of the log is due."""
    return update % recipe.train.log_every == 0 or _is_last(update, recipe, time_share)


def validation_is_due(state: TrainState, recipe: Recipe, time_share: float) -> bool:
    """Return whether the update is due for validation and has not been validated."""
    is_new = state.update > 0 and all(entry["update"] != state.update for entry in state.history)
    return is_new and _validates(state.update, state, recipe, time_share)


def stop_reason(state: TrainState, recipe: Recipe, time_share: float) -> str:
    """Return the reason why training is over: 'done', 'time' or 'patience'; '' if it is not over."""
    if state.update >= recipe.train.updates:
        return "done"
    if time_share >= 1:
        return "time"
    return "patience" if state.out_of_patience(recipe.valid.metric, recipe.valid.patience) else ""


def undo_end(state: TrainState, recipe: Recipe, ends: dict[str, Any]) -> None:
    """Undo the end of a continued run, unless that was by valid.patience: forget a validation due only there, and mark
    the checkpoint as one of a stop. ends: what its final model records of the end."""
    last, every = state.update, recipe.valid.every
    is_early = state.out_of_patience(ends.get("metric", recipe.valid.metric), ends.get("patience", 0))
    if (every == "auto" or last % every) and not (last < ends.get("updates", 0) and is_early):
        state.history = [entry for entry in state.history if entry["update"] != last]
        if last % recipe.train.save_every and last not in state.stops:
            state.stops.append(last)


def _is_last(update: int, recipe: Recipe, time_share: float) -> bool:
    return update >= recipe.train.updates or time_share >= 1


def _validates(update: int, state: TrainState, recipe: Recipe, time_share: float) -> bool:
    """Return whether an update is validated: the last, a regular one, or an early one that measures the duration."""
    valid = recipe.valid
    if _is_last(update, recipe, time_share):
        return True
    if recipe.train.time_budget and time_share + state.measure_share >= 1:
        return False  # no time would be left for the last validation
    is_early = not state.history and time_share >= _FIRST_VALIDATION
    if valid.every == "auto":
        passed, last = time_share - state.validated_share, max((entry["update"] for entry in state.history), default=0)
        is_tenth = passed >= _VALID_EVERY or update - last >= _VALID_EVERY * recipe.train.updates
        return is_early or (is_tenth and passed >= _MIN_INTERVAL * state.measure_share)
    follows_soon = time_share * valid.every <= _SOON * update
    return update % valid.every == 0 or (is_early and not follows_soon)
