"""Sums over the updates since the last line of the log, and how long the rest of the run will take."""

import time
from collections import deque

from nmt.recipe.options import Recipe
from nmt.training.engine import Outcome
from nmt.training.state import Sums, TrainState


class Meter:
    """Adds up updates, going on from what was added up before. rate: of learning, at the last of them."""

    def __init__(self, sums: Sums | None = None) -> None:
        self.sums, self.rate = sums or Sums(), 0.0
        self.clock = time.perf_counter()

    def add(self, outcome: Outcome) -> float:
        """Count an update; its numbers only if it moved the weights. Returns the seconds since the one before."""
        now = time.perf_counter()
        seconds, self.clock = now - self.clock, now
        self.sums.seconds += seconds
        if outcome.moved:  # one that was not finite would make the mean so
            self.sums.loss += outcome.loss
            self.sums.norm += outcome.norm
            self.sums.n_gold += outcome.n_gold
            self.sums.n_update += 1
            self.rate = outcome.rate
        return seconds

    def restart_clock(self) -> None:
        """Leave out the time since the last update: it went into validating or saving."""
        self.clock = time.perf_counter()


class Pace:
    """How fast this process goes: the mean of its last hundred updates, less the first, which sets things up."""

    def __init__(self) -> None:
        self.n_update = 0
        self.recent = deque[float](maxlen=100)

    def add(self, seconds: float) -> None:
        """Count an update that took so long."""
        self.n_update += 1
        if self.n_update > 1:
            self.recent.append(seconds)

    @property
    def seconds(self) -> float:
        """Seconds of one update; 0 where nothing is known yet."""
        return sum(self.recent) / max(1, len(self.recent))

    def left(self, state: TrainState, recipe: Recipe) -> float:
        """Seconds until the last update: updates, and as many validations and savings as belong to them.

        An update is expected to take as long as the last ones, a validation and a saving as long as the longest so far,
        before the first no time at all.
        """
        n_left = recipe.train.updates - state.update
        every = recipe.valid.every
        n_validation = 0 if every == "auto" else n_left / every  # by the clock: the time is what ends it
        n_saving = n_validation + n_left / recipe.train.save_every
        return n_left * self.seconds + n_validation * state.measure_seconds + n_saving * state.save_seconds

    def reaches(self, state: TrainState, recipe: Recipe, seconds: float) -> int:
        """The update that is reached in so many seconds, which are less than there are `left`."""
        return state.update + int((recipe.train.updates - state.update) * seconds / self.left(state, recipe))
