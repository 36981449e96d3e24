"""State of a run: numbers that do not follow from the update number; and options that may change on resume."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from nmt.data.plan import VERSION, Position
from nmt.evaluation.metrics import METRICS
from nmt.training.memory import Memory

# Options that do not affect the weights, so a run may resume with other values.
MAY_CHANGE = (
    *("data.out", "data.workers", "data.alarms"),
    *("train.out", "train.device", "train.threads", "train.timeout", "train.parallel"),
    *("train.checkpoint_activations", "train.average", "train.keep_last", "train.keep_best", "train.save_every"),
    *("train.log_every", "train.tensorboard", "train.wandb", "decode.", "valid."),
    "train.epochs",  # its effect is in train.updates
    "data.valid",  # the content of the first set is compared by its bytes
)
# These may change where no update depends on the length of the run.
ENDS = ("train.updates", "train.time_budget")
Conditions = dict[str, dict[str, Any]]  # settings behind the scores: {"pairs": {name: value}, "translations": {...}}


@dataclass
class Sums:
    """Sums over the updates that moved the weights: losses, norms, target tokens, number of updates. Also the last
    learning rate, and the seconds of all updates."""

    loss: float = 0.0
    norm: float = 0.0
    n_gold: int = 0
    n_update: int = 0
    rate: float = 0.0
    seconds: float = 0.0


@dataclass
class TrainState:
    """State that a checkpoint keeps beside its tensors."""

    update: int = 0  # updates applied so far
    position: Position = field(default_factory=Position)  # of the next update in the data
    n_skipped: int = 0  # updates whose loss or gradient was not finite
    n_bad: int = 0  # skipped updates since the last good one
    n_token: int = 0  # target tokens seen
    seconds: float = 0.0  # spent in updates
    # One entry per validation: {update, loss, bleu, ...} of the first set, {name: {...}} of other sets under "sets",
    # and the conditions of the first set under "how".
    history: list[dict[str, Any]] = field(default_factory=list)
    scaler: dict[str, Any] = field(default_factory=dict)
    # Updates of checkpoints made only for a stop: they do not affect which checkpoints are kept and averaged.
    stops: list[int] = field(default_factory=list)
    wall_seconds: float = 0.0  # total time so far
    measure_seconds: float = 0.0  # of the longest validation
    save_seconds: float = 0.0  # of the slowest checkpoint
    # The last plan of the time budget: its wall time, the share of the schedule that had passed, and the budget.
    planned_at: float = 0.0
    planned_share: float = 0.0
    planned_for: float = 0.0
    validated_share: float = 0.0
    measure_share: float = 0.0
    memory: Memory = field(default_factory=Memory)
    since_log: Sums = field(default_factory=Sums)  # updates for the next line of the log
    conditions: Conditions = field(default_factory=dict)  # current "how", from the recipe; not in checkpoints

    def to_json(self, metric: str) -> dict[str, Any]:
        """The content of state.json."""
        content = asdict(self)
        del content["position"], content["measure_share"], content["conditions"]
        position = {"epoch": self.position.epoch, "update_in_epoch": self.position.update, "plan": VERSION}
        return {**content, **position, "best_update": self.best_update(metric)}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "TrainState":
        """Read the output of `to_json` of any version. An epoch that began with other batches starts again."""
        names = {f.name for f in fields(cls)}
        values = {name: value for name, value in state.items() if name in names}
        has_same_batches = state.get("plan") == VERSION
        values["position"] = Position(state["epoch"], state["update_in_epoch"] if has_same_batches else 0)
        values["memory"], values["since_log"] = Memory(**state.get("memory", {})), Sums(**state.get("since_log", {}))
        return cls(**values)

    def comparable(self, *metrics: str) -> list[dict[str, Any]]:
        """The validations that measured these metrics under the current conditions, as far as their entries say."""
        return [entry for entry in self.history if not any(changes(entry, self.conditions, name) for name in metrics)]

    def scores(self, metric: str) -> dict[int, float]:
        """Scores of the comparable validations: {update: score}, higher is better."""
        return scores_of(self.comparable(metric), metric)

    def scores_to_keep(self, metric: str) -> dict[int, float]:
        """Scores by which the best checkpoints are kept. Without a comparable validation, earlier scores count."""
        return self.scores(metric) or scores_of(self.history, metric) or self.scores("loss")

    def best_update(self, metric: str) -> int | None:
        """The update with the best score; of equal scores the earliest."""
        scores = self.scores(metric)
        return min(scores, key=lambda update: (-scores[update], update), default=None)

    def out_of_patience(self, metric: str, patience: int) -> bool:
        """Return whether the last `patience` validations brought no new best."""
        best = self.best_update(metric)
        later = [entry for entry in self.comparable(metric) if best is not None and entry["update"] > best]
        return bool(patience) and len(later) >= patience


def changes(entry: dict[str, Any], conditions: Conditions, metric: str) -> dict[str, tuple[Any, Any]]:
    """Return the settings of a metric that differ between a validation and now: {setting: (then, now)}. An entry of an
    earlier version has no settings; they count as equal."""
    kind = "translations" if metric in METRICS else "pairs"
    then, now = entry.get("how", {}).get(kind, {}), conditions.get(kind, {})
    return {name: (then[name], now[name]) for name in then.keys() & now.keys() if then[name] != now[name]}


def scores_of(history: list[dict[str, Any]], metric: str) -> dict[int, float]:
    """The finite scores of validations: {update: score}, higher is better."""
    scores = {int(entry["update"]): goodness(entry, metric) for entry in history}
    return {update: score for update, score in scores.items() if np.isfinite(score)}


def goodness(measured: dict[str, Any], metric: str) -> float:
    """A validation's score under a metric, higher is better; -inf if it is missing or NaN."""
    lower_is_better = metric in ("loss", "perplexity") or (metric in METRICS and not METRICS[metric].higher_is_better)
    score = (-1 if lower_is_better else 1) * float(measured.get(metric, float("nan")))
    return float("-inf") if np.isnan(score) else score


def dropout_seed(seed: int, position: Position, index: int) -> int:
    """Seed of batch `index` of the update at `position`. It is computed, so there is no generator state to save. The
    index counts over all ranks, so the masks do not depend on the number of ranks."""
    sequence = np.random.SeedSequence([seed, position.epoch, position.update, index])
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def refused_changes(changed: dict[str, tuple[Any, Any]], *, may_end: bool = False) -> dict[str, tuple[Any, Any]]:
    """Of the options that differ between a run and the given recipe, return those that would alter the run. A resumed
    run may omit train.init_from, but not name another. may_end: the run may end elsewhere; no update depends on it."""
    allowed = (*MAY_CHANGE, *ENDS) if may_end else MAY_CHANGE
    return {
        name: (old, new)
        for name, (old, new) in changed.items()
        if not name.startswith(allowed) and not (name == "train.init_from" and not new)
    }
