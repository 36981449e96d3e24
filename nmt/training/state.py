"""State of a run: the few numbers that do not follow from the update number, and what may change on resume."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from nmt.data.plan import VERSION, Position, same_batches
from nmt.evaluation.metrics import METRICS
from nmt.training.memory import Memory

# Options that leave the weights alone, so that a run may go on under other values of them.
MAY_CHANGE = (
    *("data.out", "data.workers", "data.alarms"),
    *("train.out", "train.device", "train.threads", "train.timeout", "train.parallel"),
    *("train.checkpoint_activations", "train.average", "train.keep_last", "train.keep_best", "train.save_every"),
    *("train.log_every", "train.tensorboard", "train.wandb", "decode.", "valid."),
    "train.epochs",  # which train.updates has
    "data.valid",  # what the first set holds is compared by its bytes
)
# And these only say when it ends, where no update depends on that.
ENDS = ("train.updates", "train.time_budget")
Conditions = dict[str, dict[str, Any]]  # what numbers rest on: {"pairs": {what: its value}, "translations": {...}}


@dataclass
class Sums:
    """Of updates that moved the weights: losses, norms, target tokens, their number, the last rate; and all seconds."""

    loss: float = 0.0
    norm: float = 0.0
    n_gold: int = 0
    n_update: int = 0
    rate: float = 0.0
    seconds: float = 0.0


@dataclass
class TrainState:
    """State that a checkpoint keeps beside tensors."""

    update: int = 0  # updates applied so far
    position: Position = field(default_factory=Position)  # of the next update in the data
    n_skipped: int = 0  # updates whose gradient was not finite
    n_bad: int = 0  # of those, without a good one since
    n_token: int = 0  # target tokens seen
    seconds: float = 0.0  # spent in updates
    # An entry for each validation: {update, loss, bleu, ...} of the first set, under "sets" {name: {...}} of others,
    # and under "how" what those of the first rest on.
    history: list[dict[str, Any]] = field(default_factory=list)
    scaler: dict[str, Any] = field(default_factory=dict)
    # Checkpoints that are there only for a stop: they leave no trace in what is kept and averaged.
    stops: list[int] = field(default_factory=list)
    wall_seconds: float = 0.0  # all the time so far
    measure_seconds: float = 0.0  # of the longest validation
    save_seconds: float = 0.0  # of the slowest checkpoint
    # When it was last found out how much time is needed at the end, the share of the schedule that had passed then, and
    # the budget it was planned for.
    planned_at: float = 0.0
    planned_share: float = 0.0
    planned_for: float | None = None
    validated_share: float = 0.0
    measure_share: float = 0.0
    memory: Memory = field(default_factory=Memory)
    since_log: Sums = field(default_factory=Sums)  # updates that the next line of the log will tell of, too
    conditions: Conditions = field(default_factory=dict)  # "how" it is now, which the recipe says and no checkpoint

    def to_json(self, metric: str) -> dict[str, Any]:
        """As state.json holds it."""
        found = asdict(self)
        del found["position"], found["measure_share"], found["conditions"]
        place = {"epoch": self.position.epoch, "update_in_epoch": self.position.update, "plan": VERSION}
        return {**found, **place, "best_update": self.best_update(metric)}

    @classmethod
    def from_json(cls, state: dict[str, Any], *, packed: bool) -> "TrainState":
        """Read what `to_json` wrote, in any version. An epoch that was begun in other batches begins anew. packed:
        whether batches are."""
        found = {name: value for name, value in state.items() if name in {one.name for one in fields(cls)}}
        anew = begun_in_other_batches(state, packed=packed)
        found["position"] = Position(state["epoch"], 0 if anew else state["update_in_epoch"])
        found["memory"], found["since_log"] = Memory(**state.get("memory", {})), Sums(**state.get("since_log", {}))
        return cls(**found)

    def comparable(self, *metrics: str) -> list[dict[str, Any]]:
        """The validations that measured these metrics as they are measured now, as far as an entry says."""
        return [
            entry for entry in self.history if not any(changes(entry, self.conditions, metric) for metric in metrics)
        ]

    def scores(self, metric: str) -> dict[int, float]:
        """Validated updates with their score, higher is better, of those that can be compared with one of now."""
        return scores_of(self.comparable(metric), metric)

    def scores_to_keep(self, metric: str) -> dict[int, float]:
        """Scores by which the best checkpoints are kept: until something was measured as it is now those of before."""
        return self.scores(metric) or scores_of(self.history, metric) or self.scores("loss")

    def best_update(self, metric: str) -> int | None:
        """The update with the best score, the earliest of equals."""
        scores = self.scores(metric)
        return min(scores, key=lambda update: (-scores[update], update)) if scores else None

    def out_of_patience(self, metric: str, patience: int) -> bool:
        """Return whether the last `patience` validations brought no new best."""
        best = self.best_update(metric)
        later = [entry for entry in self.comparable(metric) if best is not None and entry["update"] > best]
        return bool(patience) and len(later) >= patience


def begun_in_other_batches(state: dict[str, Any], *, packed: bool) -> bool:
    """Return whether a checkpoint lies within an epoch whose batches this version makes of other pairs."""
    return bool(state["update_in_epoch"]) and not same_batches(state.get("plan", 1), packed=packed)


def changes(entry: dict[str, Any], conditions: Conditions, metric: str) -> dict[str, tuple[Any, Any]]:
    """Return the settings of a metric that differ between a validation and now: {setting: (then, now)}.

    An entry of an earlier version does not say on what; it is taken to be the same.
    """
    on = "translations" if metric in METRICS else "pairs"
    then, now = entry.get("how", {}).get(on, {}), conditions.get(on, {})
    return {what: (then[what], now[what]) for what in then.keys() & now.keys() if then[what] != now[what]}


def scores_of(history: list[dict[str, Any]], metric: str) -> dict[int, float]:
    """The score of each validation by its update, higher is better. What is not finite is not a score."""
    found = {int(entry["update"]): goodness(entry, metric) for entry in history}
    return {update: score for update, score in found.items() if np.isfinite(score)}


def goodness(measured: dict[str, Any], metric: str) -> float:
    """A validation's score under a metric: higher is better. What is no number is worse than any."""
    lower = metric in ("loss", "perplexity") or (metric in METRICS and not METRICS[metric].higher_is_better)
    score = (-1 if lower else 1) * float(measured.get(metric, float("nan")))
    return float("-inf") if np.isnan(score) else score


def dropout_seed(seed: int, position: Position, index: int) -> int:
    """Seed of batch `index` of the update at `position`: arithmetic, so there is no generator state to lose. The index
    counts over all ranks, so the masks do not depend on how many there are."""
    sequence = np.random.SeedSequence([seed, position.epoch, position.update, index])
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def refused_changes(changed: dict[str, tuple[Any, Any]], *, may_end: bool = False) -> dict[str, tuple[Any, Any]]:
    """Of the options that differ between a run and the recipe given now, those that would alter the run. What a run
    began with need not be named again; to name another origin is to want another run. may_end: whether the run may end
    elsewhere, where no update depends on that."""
    free = (*MAY_CHANGE, *ENDS) if may_end else MAY_CHANGE
    return {
        name: (old, new)
        for name, (old, new) in changed.items()
        if not name.startswith(free) and not (name == "train.init_from" and not new)
    }
