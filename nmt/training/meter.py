"""Sums over the updates since the last line of the log."""

import time

from nmt.training.engine import Outcome


class Meter:
    """Loss, norm, tokens and seconds of some updates."""

    def __init__(self) -> None:
        self.loss = self.norm = self.rate = self.seconds = 0.0
        self.n_gold = self.n_update = 0
        self.clock = time.perf_counter()

    def add(self, outcome: Outcome) -> float:
        """Count an update; its numbers only if it moved the weights. Returns the seconds since the one before."""
        now = time.perf_counter()
        seconds, self.clock = now - self.clock, now
        self.seconds += seconds
        if outcome.moved:  # one that was not finite would make the mean so
            self.loss += outcome.loss
            self.norm += outcome.norm
            self.rate = outcome.rate
            self.n_gold += outcome.n_gold
            self.n_update += 1
        return seconds

    def restart_clock(self) -> None:
        """Leave out the time since the last update: it went into validating or saving."""
        self.clock = time.perf_counter()
