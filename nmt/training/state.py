"""State of a run: the few numbers that do not follow from the update number, and what may change on resume."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from nmt.data.plan import VERSION, Position, same_batches
from nmt.evaluation.metrics import METRICS
from nmt.languages import language_of
from nmt.training.memory import Memory

# Options that leave the weights alone, so that a run may go on under other values of them.
MAY_CHANGE = (
    "data.out",
    "data.workers",
    "train.out",
    "train.device",
    "train.threads",
    "train.checkpoint_activations",
    "train.parallel",
    "train.timeout",
    "train.log_every",
    "train.save_every",
    "train.keep_last",
    "train.keep_best",
    "train.average",
    "train.tensorboard",
    "train.wandb",
    "data.valid",  # what the first set holds is compared by its bytes
    "valid.",
    "decode.",
)
# And these only say when it ends, where no update depends on that.
ENDS = ("train.updates", "train.time_budget")
_NO_BATCH = 2**32 - 1  # an index that no batch has
Conditions = dict[
    str, dict[str, Any]
]  # on which of them, and found how: {"pairs": {what: its value}, "translations": {...}}


@dataclass
class Sums:
    """Of some updates that moved the weights: their losses and norms, target tokens and number; and all the seconds."""

    loss: float = 0.0
    norm: float = 0.0
    n_gold: int = 0
    n_update: int = 0
    seconds: float = 0.0


@dataclass
class TrainState:
    """State that a checkpoint keeps beside tensors.

    update: updates applied so far. position: the next update's place in the data. n_skipped: updates whose gradient
    was not finite, and n_bad of them without a good one since. n_token: target tokens seen. seconds: spent training.
    history: one entry a validation, {update, loss, accuracy, bleu, ...} of the first set, and those of further ones
    under "sets": {name: {loss, ...}}; "how" has what those of the first rest on. how: the same as it is now, which the
    recipe says and no checkpoint. stops: checkpoints that are there only because somebody stopped the run: they
    must leave no trace in what is kept and averaged later. wall_seconds: all the time so far; measure_seconds and
    save_seconds: what the longest validation and the slowest checkpoint took of it; planned_at: of all the time, when
    it was last found out how much is needed at the end, and planned_share of the schedule had passed. memory: what is
    known to be too large for it. since_log: updates that the next line of the log will tell of, too. best_before: the
    update that was best by what was measured before it was measured as now.
    """

    update: int = 0
    position: Position = field(default_factory=Position)
    n_skipped: int = 0
    n_bad: int = 0
    n_token: int = 0
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    scaler: dict[str, Any] = field(default_factory=dict)
    stops: list[int] = field(default_factory=list)
    wall_seconds: float = 0.0
    measure_seconds: float = 0.0
    save_seconds: float = 0.0
    planned_at: float = 0.0
    planned_share: float = 0.0
    planned_for: float | None = None
    validated_share: float = 0.0
    measure_share: float = 0.0
    memory: Memory = field(default_factory=Memory)
    since_log: Sums = field(default_factory=Sums)
    conditions: Conditions = field(default_factory=dict)
    best_before: int | None = None

    def to_json(self, metric: str) -> dict[str, Any]:
        """As state.json holds it."""
        return {
            "update": self.update,
            "epoch": self.position.epoch,
            "update_in_epoch": self.position.update,
            "plan": VERSION,
            "n_skipped": self.n_skipped,
            "n_bad": self.n_bad,
            "n_token": self.n_token,
            "seconds": self.seconds,
            "history": self.history,
            "scaler": self.scaler,
            "stops": self.stops,
            "wall_seconds": self.wall_seconds,
            "measure_seconds": self.measure_seconds,
            "save_seconds": self.save_seconds,
            "planned_at": self.planned_at,
            "planned_share": self.planned_share,
            "planned_for": self.planned_for,
            "validated_share": self.validated_share,
            "memory": asdict(self.memory),
            "since_log": asdict(self.since_log),
            "best_update": self.best_to_keep(metric),
        }

    @classmethod
    def from_json(cls, state: dict[str, Any], *, packed: bool) -> "TrainState":
        """Read what `to_json` wrote, in any version. An epoch that was begun in other batches begins anew.

        packed: whether batches are.
        """
        clocks = ("wall_seconds", "measure_seconds", "save_seconds", "planned_at", "planned_share", "planned_for")
        added = ("stops", *clocks, "validated_share")
        later = {name: state[name] for name in added if name in state}
        return cls(
            state["update"],
            Position(state["epoch"], 0 if begun_in_other_batches(state, packed=packed) else state["update_in_epoch"]),
            state["n_skipped"],
            state["n_bad"],
            state["n_token"],
            state["seconds"],
            state["history"],
            state["scaler"],
            memory=Memory(**state.get("memory", {})),
            since_log=Sums(**state.get("since_log", {})),
            best_before=state.get("best_update"),
            **later,
        )

    def comparable(self, *metrics: str) -> list[dict[str, Any]]:
        """The validations that measured these metrics as they are measured now, as far as an entry says."""
        return [
            entry for entry in self.history if not any(changes(entry, self.conditions, metric) for metric in metrics)
        ]

    def scores(self, metric: str) -> dict[int, float]:
        """Validated updates with their score, higher is better, of those that can be compared with one of now."""
        return scores_of(self.comparable(metric), metric)

    def best_update(self, metric: str) -> int | None:
        """The update with the best score, the earliest of equals."""
        scores = self.scores(metric)
        return min(scores, key=lambda update: (-scores[update], update)) if scores else None

    def best_to_keep(self, metric: str) -> int | None:
        """The update with the best score; until something was measured as it is now the best of before stays: the
        change may be taken back."""
        best = self.best_update(metric)
        return self.best_before if best is None else best

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
    if "trg_lang" in then:  # earlier versions counted words in all languages but three, in the form of the files
        by_words = not then["trg_lang"].lower().startswith(("zh", "ja", "ko"))
        then = {"tokens": "13a" if by_words else now.get("tokens"), "form": "of the file", **then}
        then["trg_lang"] = language_of(then["trg_lang"]).code
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


def dropout_seed(seed: int, position: Position, index: int = _NO_BATCH) -> int:
    """Seed of batch `index` of the update at `position`: arithmetic, so there is no generator state to lose.

    The index counts over all ranks, so the masks do not depend on how many there are. Without one it is the seed of
    what all batches of the update have in common.
    """
    sequence = np.random.SeedSequence([seed, position.epoch, position.update, index])
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def refused_changes(changed: dict[str, tuple[Any, Any]], *, may_end: bool = False) -> dict[str, tuple[Any, Any]]:
    """Of the options that differ between a run and the recipe given now, those that would alter the run.

    What a run began with need not be named again; to name another origin is to want another run. may_end: whether the
    run may end elsewhere, as `budget.bound_to_length` knows.
    """
    free = (*MAY_CHANGE, *ENDS) if may_end else MAY_CHANGE
    return {
        name: (old, new)
        for name, (old, new) in changed.items()
        if not name.startswith(free) and not (name == "train.init_from" and not new)
    }
