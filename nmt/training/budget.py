"""The wall time that a run may take: how much has passed, and how much must be left for what follows the updates.

Time is the one thing here that cannot be computed again. It drives nothing but the schedule and the end of training:
the pairs of an update, their order and their dropout are the same under any clock.
"""

import math
import time
from collections.abc import Callable

from nmt.recipe.options import Recipe
from nmt.recipe.training_options import TrainConfig
from nmt.training.state import TrainState

# Shares of the time: after which a validation is made, if none was due and none will be before another share; and that
# the schedule has for what is left of it, however long a validation took.
PLANNED_AT = 0.25
_LONG = 0.5
_LEAST = 0.05


def foreseen(recipe: Recipe, *, update_seconds: float, valid_seconds: float) -> tuple[int, int]:
    """About how many updates a run comes to, train.updates or what train.time_budget has room for, and validations.

    update_seconds, valid_seconds: what one of each takes. Set-up and saving are left out of account.
    """
    train, every, budget = recipe.train, recipe.valid.every, recipe.train.budget_seconds
    if not budget:
        return train.updates, -(-train.updates // every)
    planned_at = PLANNED_AT * budget / update_seconds
    is_planned = is_to_be_planned(planned_at, recipe, PLANNED_AT)
    left = budget - (n_measured_at_end(train) + is_planned) * valid_seconds
    in_time = left / (update_seconds + valid_seconds / every)
    if in_time < every:
        in_time = left / update_seconds
    in_time = max(in_time, (planned_at if is_planned else every) + _LEAST * budget / update_seconds)
    n_update = max(1, min(train.updates, int(in_time)))
    return n_update, -(-n_update // every) + (is_planned and planned_at < n_update)


def is_to_be_planned(update: float, recipe: Recipe, passed: float) -> bool:
    """Whether a validation is due after an update, if there was none, for nobody knows how long one takes, and so how
    much of the time the last ones will need. passed: the share of the time."""
    return passed >= PLANNED_AT and passed * recipe.valid.every > _LONG * update


def n_measured_at_end(config: TrainConfig) -> int:
    """Models that are measured when the updates are over: the last weights, and what `finish` averages."""
    return 1 + (config.average != "none") + (config.ema > 0)


class Budget:
    """The clock of one process of a run, from when it is made; that of rank 0 rules.

    What it counts is the time of the whole command, in all parts of a run that was resumed: first embeddings,
    compilation, updates, validations, saving. The state has the sum, so that a checkpoint has it too.
    """

    def __init__(self, config: TrainConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = config.budget_seconds
        self._n_measure = n_measured_at_end(config)
        self.clock = clock
        self._last = clock()

    def passed(self, state: TrainState) -> float:
        """Count the time until now. Returns the share that has passed of what updates may take; 0 without a budget."""
        now = self.clock()
        state.wall_seconds += now - self._last
        self._last = now
        return self.share(state)

    def left(self, state: TrainState) -> float:
        """Seconds until the time is over, by when time was counted last; infinite without a budget."""
        return max(0.0, self.seconds - state.wall_seconds) if self.seconds else math.inf

    def plan(self, state: TrainState, share: float) -> None:
        """Spread what is left of the schedule over the time that is left, now that more of it is known to be needed for
        what comes after the updates. share: that of the last update."""
        if self.seconds:
            self.passed(state)
            state.planned_at, state.planned_share = state.wall_seconds, share

    def share(self, state: TrainState) -> float:
        """The share of the schedule that had passed when time was counted last.

        It comes to all of it, even where what follows the updates leaves no time for that: then a little later than the
        time is over, since a learning rate that never came down is worse.
        """
        if not self.seconds:
            return 0.0
        # The last validation and the last checkpoint take as long as the longest before, and the model that ships is
        # chosen and written besides. The longest, and not the latest: a share that fell when one was quick would raise
        # the learning rate again, after it had come to its end.
        ending = self._n_measure * state.measure_seconds + 2 * state.save_seconds
        room = max(self.seconds - ending - state.planned_at, _LEAST * self.seconds)
        return state.planned_share + (1 - state.planned_share) * (state.wall_seconds - state.planned_at) / room
