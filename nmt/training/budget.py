"""The wall time that a run may take: how much has passed, and how much must be left for what follows the updates. Time
is the one thing here that cannot be computed again. It drives nothing but the schedule and the end of training: the
pairs of an update, their order and their dropout are the same under any clock."""

import math
import time
from collections.abc import Callable

from nmt.recipe.options import Recipe
from nmt.recipe.training_options import WITHOUT_END, OptimConfig, TrainConfig
from nmt.training.state import TrainState

# All but _RESTS and _SAVED are shares of the budget.
_PLANNED_AT = 0.25  # a first validation is made here, unless one is due before _LONG
_LONG = 0.5
_LEAST = 0.05  # is left to the schedule, however long a validation took
_LATE = 0.6  # is over after the first update where set-up took most of the time
_FOR_LATE = 0.3, 0.15  # of what is left then is kept for the validation at the end, and for saving once
_BY_CLOCK = 0.1  # between two validations whose interval is auto
_RESTS = 5.0  # times as long as a validation is the time from one to the next then, at least
_FOR_CHOICE = 0.2  # at most is kept for models beside the last
_SLOWER = 0.2  # of a validation: the last may be so much slower, as outputs grow and machines are shared
_MOST_SLOWER = 0.03  # kept for that at most
_SAVED = 2  # the last checkpoint, and the model that translates
_GRACE = 0.02  # after which nothing more is begun


def foreseen(recipe: Recipe, *, update_seconds: float, valid_seconds: float) -> tuple[int, int]:
    """About how many updates a run comes to, train.updates or what train.time_budget has room for, and validations.
    update_seconds, valid_seconds: what one of each takes. Set-up and saving are left out of account."""
    train, every, budget = recipe.train, recipe.valid.every, recipe.train.budget_seconds
    between = float(max(_BY_CLOCK * budget, _RESTS * valid_seconds) / update_seconds if every == "auto" else every)
    n_update = float(train.updates)
    if budget:
        left = budget - n_measured_at_end(train) * valid_seconds
        in_time = max(_LEAST * budget / update_seconds, left / (update_seconds + valid_seconds / between))
        n_update = max(1.0, min(n_update, in_time))
    return int(n_update), max(1, math.ceil(n_update / between))


def n_measured_at_end(config: TrainConfig) -> int:
    """Models that are measured when the updates are over: the last weights, and what `finish` averages."""
    return 1 + (config.average != "none") + (config.ema > 0)


class Budget:
    """The clock of one process of a run, from when it is made; that of rank 0 rules. What it counts is the time of the
    whole command, in all parts of a run that was resumed: first embeddings, compilation, updates, validations, saving.
    The state has the sum, so that a checkpoint has it too."""

    def __init__(self, config: TrainConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = config.budget_seconds
        self._n_measure = n_measured_at_end(config)
        self.clock = clock
        self._last = clock()

    def count_time(self, state: TrainState) -> float:
        """Count the time until now. Returns the share that has passed of what updates may take; 0 without a budget."""
        now = self.clock()
        state.wall_seconds += now - self._last
        self._last = now
        return self.share(state)

    def left(self, state: TrainState) -> float:
        """Seconds until the time is over, by when time was counted last; infinite without a budget."""
        return max(0.0, self.seconds - state.wall_seconds) if self.seconds else math.inf

    def has_time(self, state: TrainState, seconds: float = 0.0) -> bool:
        """Return whether something that takes so long, begun now, leaves the time to save, or hardly less."""
        spent = state.wall_seconds + self.clock() - self._last + seconds + _SAVED * state.save_seconds
        return not self.seconds or spent <= (1 + _GRACE) * self.seconds

    def resume(self, state: TrainState) -> float:
        """Take up a run that was stopped or had ended. Returns the share of the schedule that has passed. Where it has
        another end now, what is left of the schedule is spread anew."""
        # Earlier versions did not write down for which end they had planned.
        changed = state.planned_share > 1 if state.planned_for is None else state.planned_for != self.seconds
        if self.seconds and changed:
            state.planned_at = state.wall_seconds
            state.planned_share = min(1.0, state.wall_seconds / self.seconds)
            state.validated_share = min(state.validated_share, state.planned_share)
        state.planned_for = self.seconds
        state.measure_share = self.measure_share(state)
        return self.share(state)

    def began(self, state: TrainState, share: float) -> None:
        """Plan after the first update. share: of the schedule, by the clock of rank 0.

        Where set-up took most of the time, nothing is measured before the end, for which a part of the rest is kept.
        """
        state.validated_share = share  # set-up is no time after which anything is to be measured
        if _LATE < share < 1:
            state.measure_seconds, state.save_seconds = (part * (1 - share) * self.seconds for part in _FOR_LATE)
            self.plan(state, share)
            state.measure_share = 1 - share

    def measured(self, state: TrainState, seconds: float, share: float) -> None:
        """Plan again after a validation that took so long. share: of the schedule, at the last update. The next is
        expected to take as long, or longer if those before did, of whose excess half is forgotten each time."""
        state.measure_seconds = max(seconds, (seconds + state.measure_seconds) / 2)
        self.plan(state, share)
        state.measure_share = self.measure_share(state)

    def saved(self, state: TrainState, seconds: float, share: float) -> None:
        """Plan again after a checkpoint that took so long, if none before took longer. share: at the last update."""
        if seconds > state.save_seconds:
            state.save_seconds = seconds
            self.plan(state, share)

    def plan(self, state: TrainState, share: float) -> None:
        """Spread what is left of the schedule over the time that is left, now that more is known of what is needed for
        what comes after the updates. share: that of the last update, so that it neither falls nor jumps."""
        if self.seconds:
            self.count_time(state)
            state.planned_at, state.planned_share = state.wall_seconds, min(1.0, share)
            state.planned_for = self.seconds

    def share(self, state: TrainState) -> float:
        """The share of the schedule that had passed when time was counted last, at most 1. It comes to all of it as
        long as there is time at all, even where what follows the updates leaves little of it, since a learning rate
        that never came down is worse than a last validation that is cut short."""
        if not self.seconds:
            return 0.0
        if state.wall_seconds >= self.seconds:
            return 1.0
        left = 1 - state.planned_share
        return min(1.0, state.planned_share + left * (state.wall_seconds - state.planned_at) / self._room(state))

    def measure_share(self, state: TrainState) -> float:
        """The share of the schedule that would pass in the time of a validation; 0 without a budget."""
        return (1 - state.planned_share) * state.measure_seconds / self._room(state) if self.seconds else 0.0

    def _room(self, state: TrainState) -> float:
        """Seconds from when it was planned until the updates are to be over."""
        one = state.measure_seconds
        # The model that ships is chosen and written besides the last validation and the last checkpoint.
        beside = (self._n_measure - 1) * one
        if self._n_measure * one > _FOR_CHOICE * self.seconds:
            beside = 0.0  # then it is chosen from what is known
        slower = min(_SLOWER * (one + beside), _MOST_SLOWER * self.seconds)
        ending = one + beside + slower + _SAVED * state.save_seconds
        return max(self.seconds - ending - state.planned_at, _LEAST * (1 - state.planned_share) * self.seconds, 1e-9)


# The learning rate.


def share_of_run(update: int, *, n_update: int, time_share: float = 0.0) -> float:
    """Return the share of the run that `update` updates are, in [0, 1], by updates or by the clock, whichever is nearer
    the end. time_share: share of the time budget that has passed; 0 without one."""
    return min(1.0, max(update / n_update, time_share))


def _linear(update: int, warmup: int, share: float, config: OptimConfig) -> float:
    # The warm-up took warmup / update of the share so far: exactly so by updates, nearly so by the clock.
    return _falling(1 - share * (update - warmup) / (update - share * warmup), config)


def _cosine(update: int, warmup: int, share: float, config: OptimConfig) -> float:
    done = share * (update - warmup) / (update - share * warmup)
    return _falling(0.5 * (1 + math.cos(math.pi * done)), config)


def _wsd(update: int, warmup: int, share: float, config: OptimConfig) -> float:
    """Warm-up, stable, decay (Hu et al. 2024, MiniCPM) in the last `decay_share` of the run, as one less a root (Hägele
    et al. 2024)."""
    return _falling(1 - math.sqrt(max(0.0, 1 - (1 - share) / config.decay_share)), config)


def _falling(left: float, config: OptimConfig) -> float:
    """Map what is left of the decay, from 1 to 0, to factors from 1 to `end_factor`."""
    return config.end_factor + (1 - config.end_factor) * left


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


# What is due when.


def bound_to_length(recipe: Recipe) -> list[str]:
    """Return the options by which an update depends on the length of the run; without any, a longer run begins with
    the very updates of a shorter one."""
    bound = [] if recipe.optim.schedule in WITHOUT_END else ["optim.schedule"]
    later = [name for name in ("r_drop_from", "simcut_from") if getattr(recipe.regularize, name)]
    return bound + [f"regularize.{name}" for name in later]


def share(state: TrainState, recipe: Recipe, time_share: float, *, under_way: bool) -> float:
    """Return the share of the run that has passed, by updates tried: how the last one went may not be known yet.

    under_way: whether there is such an update.
    """
    tried = state.update + state.n_skipped + under_way
    return share_of_run(tried, n_update=recipe.train.updates, time_share=time_share)


def rate_factor(state: TrainState, recipe: Recipe, time_share: float) -> float:
    """Return the factor of the learning rate in the next update: see `learning_rate_factor`."""
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
    """Return whether this update is to be validated, and was not yet."""
    is_new = state.update > 0 and all(entry["update"] != state.update for entry in state.history)
    return is_new and _validates(state.update, state, recipe, time_share)


def stop_reason(state: TrainState, recipe: Recipe, time_share: float) -> str:
    """Return why training is over: 'done', 'time', 'patience', or '' if it is not."""
    if state.update >= recipe.train.updates:
        return "done"
    if time_share >= 1:
        return "time"
    return "patience" if state.out_of_patience(recipe.valid.metric, recipe.valid.patience) else ""


def undo_end(state: TrainState, recipe: Recipe) -> None:
    """Of a run that had ended and goes on: what there was only for that end leaves no trace, as for a stop."""
    u = state.update
    if not recipe.valid.is_regular(u):
        state.history = [entry for entry in state.history if entry["update"] != u]
        if u % recipe.train.save_every and u not in state.stops:
            state.stops.append(u)


def _is_last(update: int, recipe: Recipe, time_share: float) -> bool:
    """Return whether the updates or the time for them end here."""
    return update >= recipe.train.updates or time_share >= 1


def _validates(update: int, state: TrainState, recipe: Recipe, time_share: float) -> bool:
    """Return whether an update is validated: the last, a regular one, or the first, which shows how long one takes."""
    valid = recipe.valid
    if _is_last(update, recipe, time_share):
        return True
    if recipe.train.time_budget and time_share + state.measure_share >= 1:
        return False  # one that was begun now would take the place of the last, which follows soon
    if valid.every == "auto":
        is_regular = time_share - state.validated_share >= max(_BY_CLOCK, _RESTS * state.measure_share)
        follows_soon = False
    else:
        is_regular = valid.is_regular(update)
        follows_soon = time_share * valid.every <= _LONG * update
    return is_regular or (not state.history and time_share >= _PLANNED_AT and not follows_soon)
