"""The training loop: fetch, backward, step, and now and then log, validate, save.

One process, several, CPU or GPU run these same lines. What follows from the position in the data is computed, so a
resumed run is the uninterrupted one, bit for bit.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nmt import checkpoint
from nmt.data.corpus import Prepared
from nmt.data.plan import Position
from nmt.errors import TrainingError
from nmt.models.base import TranslationModel
from nmt.recipe.options import Recipe
from nmt.run import Run
from nmt.training import keeper
from nmt.training.engine import Engine, Outcome
from nmt.training.feed import Feed
from nmt.training.meter import Meter
from nmt.training.parallel import Ranks
from nmt.training.precision import Precision
from nmt.training.record import Record
from nmt.training.schedule import learning_rate_factor
from nmt.training.state import TrainState
from nmt.training.validate import Validator, describe

MAX_BAD = 10  # updates in a row without a finite gradient before training gives up


class Trainer:
    """A model in training. `train` runs until the recipe's last update, early stopping or a wish to stop."""

    def __init__(
        self,
        recipe: Recipe,
        data: Prepared,
        model: TranslationModel,
        *,
        precision: Precision,
        ranks: Ranks,
        run: Run,
        record: Record,
        wants_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.recipe, self.model, self.run, self.record = recipe, model, run, record
        self.ranks, self.wants_stop = ranks, wants_stop
        self.state = TrainState()
        self.engine = Engine(model, recipe, precision=precision, ranks=ranks)
        self.feed = Feed(recipe, data, ranks)
        self.validator = Validator(
            data.valid, data.subwords, recipe.valid, recipe.decode, precision, recipe.data.trg_lang
        )
        self.meter = Meter()
        self.moving = Position()  # where in the data the update under way is from

    def restore(self, folder: Path, saved: dict[str, Any]) -> None:
        """Take up a verified checkpoint."""
        self.state = keeper.restore(folder, saved, self.engine)
        if self.ranks.is_main:
            keeper.prune(self.run, self.recipe, self.state)
        self.record.go_on(self.state.update, [int(entry["update"]) for entry in self.state.history])

    def save(self, *, due: bool = True) -> None:
        """Commit a checkpoint of this moment. due: not only because somebody stops the run."""
        keeper.save(self.run, self.recipe, self.engine, self.state, due=due)

    # -- the loop --------------------------------------------------------------------------------------------------

    def train(self) -> str:
        """Train until the end. Returns why it ended: 'done', 'patience' or 'stopped'."""
        state, engine = self.state, self.engine
        if self._catch_up():
            return "stopped"
        if over := self._is_over():
            return over
        self.model.train()
        self.meter = Meter()
        for portion in self.feed.begin(state.position):
            engine.backward(portion.work, self.feed.n_gold(portion))
            stop = self._settle()  # the update before, if nobody has waited for it
            engine.step(self._rate_factor(), state.update + 1, wish=self.wants_stop())
            self.moving, state.position = portion.position, portion.following
            if engine.late and not stop and not self._is_due(state.update + 1):
                continue
            stop = self._settle()
            if state.n_bad:
                continue
            if over := self._tend(stop):
                return over
        raise AssertionError("the plan never ends")

    def _rate_factor(self) -> float:
        recipe = self.recipe
        return learning_rate_factor(
            self.state.update + 1, recipe.optim, n_update=recipe.train.updates, d_model=recipe.model.d_model
        )

    def _settle(self) -> bool:
        """Count the update that is under way, if there is one. Returns whether somebody wants to stop."""
        outcome, state = self.engine.settle(), self.state
        if outcome is None:
            return False
        state.seconds += self.meter.add(outcome)
        if outcome.moved:
            state.update += 1
            state.n_bad = 0
            state.n_token += outcome.n_gold
        else:
            state.n_skipped += 1
            state.n_bad += 1
            if state.n_bad >= MAX_BAD:
                raise TrainingError(self._hopeless(outcome))
        return outcome.stop

    def _tend(self, stop: bool) -> str:
        """After an update: log, validate and save where it is time to. Returns why training ends here, or ''."""
        u = self.state.update
        if u % self.recipe.train.log_every == 0 or u == self.recipe.train.updates:
            self._log()
        else:
            self.record.progress(u)
        due = u % self.recipe.train.save_every == 0
        if self._validation_is_due():
            due = True
            stop = stop or not self.validate()
        over = self._is_over()
        if stop or over or due:
            self.save(due=due or bool(over))
            self.meter.restart_clock()
        return "stopped" if stop else over

    def _catch_up(self) -> bool:
        """Make the validation that a stop prevented. Returns whether a stop prevented it again."""
        if not self._validation_is_due():
            return False
        finished = self.validate()
        self.save()
        return not finished

    def _is_due(self, update: int) -> bool:
        """Whether something is done after this update, so that its outcome must be known at once."""
        train, valid = self.recipe.train, self.recipe.valid
        return update >= train.updates or any(
            update % every == 0 for every in (train.log_every, train.save_every, valid.every)
        )

    def _validation_is_due(self) -> bool:
        u, every = self.state.update, self.recipe.valid.every
        reached = u > 0 and (u % every == 0 or u == self.recipe.train.updates)
        return reached and all(entry["update"] != u for entry in self.state.history)

    def _is_over(self) -> str:
        """Why training is over: 'done', 'patience', or '' if it is not."""
        if self.state.update >= self.recipe.train.updates:
            return "done"
        valid = self.recipe.valid
        return "patience" if self.state.out_of_patience(valid.metric, valid.patience) else ""

    def _hopeless(self, outcome: Outcome) -> str:
        saved = self.run.updates()
        last_good = checkpoint.name_of(saved[-1]) if saved else "none"
        return (
            f"update {self.state.update + 1} (epoch {self.moving.epoch}, update {self.moving.update} in it): loss "
            f"{outcome.loss}, gradient norm {outcome.norm}, learning rate {outcome.rate:.2e}, loss scale "
            f"{self.engine.scaler.get_scale():g}: not finite {MAX_BAD} times in a row. The weights were not touched; "
            f"last good checkpoint: {last_good}. Lower optim.lr, raise optim.warmup, set optim.clip, or train in fp32."
        )

    # -- telling ---------------------------------------------------------------------------------------------------

    def _log(self) -> None:
        """One line for the updates since the last one."""
        state, meter = self.state, self.meter
        speed = meter.n_gold / max(1e-9, meter.seconds)
        self.record.write(
            "train",
            state.update,
            epoch=state.position.epoch,
            loss=meter.loss / max(1, meter.n_gold),
            learning_rate=meter.rate,
            gradient_norm=meter.norm / max(1, meter.n_update),
            tokens_per_second=round(speed, 1),
            skipped=state.n_skipped,
            seconds=round(state.seconds, 2),
        )
        shown = {
            "loss": f"{meter.loss / max(1, meter.n_gold):.3f}",
            "lr": f"{meter.rate:.2e}",
            "tok/s": f"{speed:,.0f}",
        }
        if state.history and (best := state.best_update(self.recipe.valid.metric)) is not None:
            entry = next(e for e in state.history if e["update"] == best)
            shown["best"] = f"{entry[self.recipe.valid.metric]:.2f}"
        self.record.progress(state.update, epoch=f"{state.position.epoch}", **shown)
        self.meter = Meter()

    def validate(self) -> bool:
        """Measure the model on the validation set, on rank 0; every rank remembers the numbers.

        Returns False, remembering nothing, when somebody wanted to stop meanwhile.
        """
        numbers: dict[str, float] = {}
        beside: dict[str, Any] = {}
        names = ["loss", "perplexity", "accuracy"] + (["bleu", "chrf"] if self.recipe.valid.translate else [])
        if self.ranks.is_main:
            numbers, beside = self.validator.measure(self.model, lambda: not self.wants_stop())
        if self.ranks.any(self.wants_stop()):
            return False
        if self.ranks.is_main:
            self.record.write("valid", self.state.update, **numbers, **beside)
            self.record.say(describe(self.state.update, numbers))
            for example in beside.get("examples", []):
                self.record.say("    " + "\n    ".join(f"{what:9}  {text}" for what, text in example.items()))
        told = self.ranks.tell(*(numbers.get(name, math.nan) for name in names))
        entry = {name: value for name, value in zip(names, told, strict=True) if math.isfinite(value)}
        self.state.history.append({"update": self.state.update, **entry})
        return True
