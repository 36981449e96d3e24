"""Where a run stands: the few numbers that do not follow from the update number, and what may change on resume."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nmt.data.plan import Position

# Options that leave the weights alone, so that a run may go on under other values of them.
MAY_CHANGE = (
    "data.out",
    "data.workers",
    "train.out",
    "train.device",
    "train.threads",
    "train.parallel",
    "train.timeout",
    "train.log_every",
    "train.save_every",
    "train.keep_last",
    "train.keep_best",
    "train.average",
    "train.tensorboard",
    "valid.",
    "decode.",
)
# Higher is better for these; for the loss, lower.
_SIGN = {"bleu": 1, "chrf": 1, "accuracy": 1, "loss": -1}


@dataclass
class TrainState:
    """What a checkpoint must remember beside tensors.

    update: updates applied so far. position: the next update's place in the data. n_skipped: updates whose gradient
    was not finite, and n_bad of them without a good one since. n_token: target tokens seen. seconds: spent training.
    history: one entry a validation, {update, loss, accuracy, bleu, ...}.
    """

    update: int = 0
    position: Position = field(default_factory=Position)
    n_skipped: int = 0
    n_bad: int = 0
    n_token: int = 0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)
    scaler: dict[str, Any] = field(default_factory=dict)

    def to_json(self, metric: str) -> dict[str, Any]:
        """As state.json holds it; the best update is written for readers, not for `from_json`."""
        return {
            "update": self.update,
            "epoch": self.position.epoch,
            "update_in_epoch": self.position.update,
            "n_skipped": self.n_skipped,
            "n_bad": self.n_bad,
            "n_token": self.n_token,
            "seconds": self.seconds,
            "history": self.history,
            "scaler": self.scaler,
            "best_update": self.best_update(metric),
        }

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "TrainState":
        return cls(
            state["update"],
            Position(state["epoch"], state["update_in_epoch"]),
            state["n_skipped"],
            state["n_bad"],
            state["n_token"],
            state["seconds"],
            state["history"],
            state["scaler"],
        )

    def scores(self, metric: str) -> dict[int, float]:
        """Validated updates with their score, higher is better. What is not finite is not a score."""
        found = {int(entry["update"]): goodness(entry, metric) for entry in self.history}
        return {update: score for update, score in found.items() if np.isfinite(score)}

    def best_update(self, metric: str) -> int | None:
        """The update with the best score, the earliest of equals."""
        scores = self.scores(metric)
        return min(scores, key=lambda update: (-scores[update], update)) if scores else None

    def out_of_patience(self, metric: str, patience: int) -> bool:
        """Whether the last `patience` validations brought no new best."""
        best = self.best_update(metric)
        later = [entry for entry in self.history if best is not None and entry["update"] > best]
        return bool(patience) and len(later) >= patience


def goodness(measured: dict[str, float], metric: str) -> float:
    """A validation's score under a metric: higher is better."""
    return _SIGN[metric] * measured.get(metric, float("nan"))


def dropout_seed(seed: int, position: Position, index: int) -> int:
    """Seed of batch `index` of the update at `position`: arithmetic, so there is no generator state to lose.

    The index counts over all ranks, so the masks do not depend on how many there are.
    """
    sequence = np.random.SeedSequence([seed, position.epoch, position.update, index])
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def refused_changes(changed: dict[str, tuple[Any, Any]]) -> dict[str, tuple[Any, Any]]:
    """Of the options that differ between a run and the recipe given now, those that would alter the run."""
    return {name: values for name, values in changed.items() if not name.startswith(MAY_CHANGE)}
