"""The training loop: fetch, backward, step, and now and then log, validate, save.

One process, several, CPU or GPU run these same lines. What follows from the position in the data is computed, so a
resumed run is the uninterrupted one, bit for bit.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nmt import checkpoint
from nmt.data.corpus import Prepared
from nmt.data.plan import Position
from nmt.errors import MachineError, TrainingError, is_out_of_memory
from nmt.models.base import TranslationModel
from nmt.recipe.options import Recipe
from nmt.run import Run
from nmt.training import keeper
from nmt.training.budget import Budget
from nmt.training.engine import Engine, Outcome
from nmt.training.feed import Feed
from nmt.training.meter import Meter, Pace
from nmt.training.parallel import Ranks
from nmt.training.precision import Precision
from nmt.training.record import Record
from nmt.training.room import footprint
from nmt.training.schedule import learning_rate_factor, share_of_run
from nmt.training.state import TrainState, changes
from nmt.training.stopwatch import Stopwatch, table
from nmt.training.units import duration
from nmt.training.validate import Measured, Validation, describe, fields_of

MAX_BAD = 10  # updates in a row without a finite gradient before training gives up
FORETOLD_AFTER = 20  # updates of a process before it says how long the run will take


class Trainer:
    """A model in training. `train` runs until the recipe's last update, the end of its time, early stopping or a wish.

    passed: share of the time budget, the same on all ranks; 0 without a budget.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: Prepared,
        model: TranslationModel,
        *,
        feed: Feed,
        precision: Precision,
        ranks: Ranks,
        run: Run,
        record: Record,
        wants_stop: Callable[[], bool] = lambda: False,
        budget: Budget | None = None,
    ) -> None:
        self.recipe, self.model, self.run, self.record = recipe, model, run, record
        self.ranks, self.wants_stop = ranks, wants_stop
        self.validation = Validation(recipe, data, precision)
        self.state = TrainState(how=self.validation.first.how)
        self.stopwatch = Stopwatch.of(model.device)
        self.engine = Engine(model, recipe, precision=precision, ranks=ranks, stopwatch=self.stopwatch)
        self.feed = feed
        self.meter, self.pace = Meter(), Pace()
        self.budget, self.passed = budget or Budget(recipe.train), 0.0
        self.n_failed = 0  # times that memory ran out, as far as was told
        self.moving = Position()  # where in the data the update under way is from
        self.trouble = ""  # why rank 0 could not validate

    def restore(self, folder: Path, saved: dict[str, Any]) -> None:
        """Take up a verified checkpoint."""
        how, self.state = self.state.how, keeper.restore(folder, saved, self.engine)
        self.state.how = how
        self.passed = self.budget.share(self.state)
        self.meter = Meter(self.state.since_log)
        if self.ranks.is_main:
            keeper.prune(self.run, self.recipe, self.state)
        self.record.go_on(self.state.update, [int(entry["update"]) for entry in self.state.history])
        self.n_failed = self.state.memory.n_failed
        self._compare_with_before()

    def _compare_with_before(self) -> None:
        """Say so if the first set was measured otherwise when it was last."""
        state, metric = self.state, self.recipe.valid.metric
        if not state.history or not (changed := changes(state.history[-1], state.how, metric)):
            return
        shown = ", ".join(f"{what} {then} before and {now} now" for what, (then, now) in sorted(changed.items()))
        n_other = len(state.history) - len(state.comparable(metric))
        self.record.say(
            f"{metric} is measured otherwise than when it was last: {shown}. {n_other:,} earlier validations do not "
            "count any more for what is best, for valid.patience and for the final model."
        )

    def save(self, *, due: bool = True) -> None:
        """Commit a checkpoint of this moment. due: not only because somebody stops the run."""
        self.budget.passed(self.state)  # for the checkpoint to know
        self.state.since_log = self.meter.sums
        begin = self.budget.clock()
        with self.stopwatch.host("saving"):
            keeper.save(self.run, self.recipe, self.engine, self.state, due=due)
        self.state.save_seconds = max(self.state.save_seconds, self.budget.clock() - begin)

    # -- the loop --------------------------------------------------------------------------------------------------

    def train(self) -> str:
        """Train until the end. Returns why it ended: 'done', 'time', 'patience' or 'stopped'."""
        state, engine = self.state, self.engine
        if self._catch_up():
            return "stopped"
        if over := self._is_over():
            return over
        self.model.train()
        self.meter.restart_clock()
        for portion in self.stopwatch.waiting("data", self.feed.begin(state.position)):
            engine.backward(portion.work, self.feed.n_gold(portion), share=self._share())
            self._tell_of_memory()
            stop = self._settle()  # the update before, if nobody has waited for it
            engine.step(self._rate_factor(), state.update + 1, wish=self.wants_stop(), passed=self.budget.passed(state))
            self.moving, state.position = portion.position, portion.following
            if engine.late and not stop and not self._is_due(state.update + 1):
                continue
            stop = self._settle()
            if state.n_bad:
                continue
            if over := self._tend(stop):
                return over
        raise AssertionError("the plan never ends")

    def _share(self) -> float:
        """The share of the run that has passed, by updates tried: how the last one went may not be known yet."""
        tried = self.state.update + self.state.n_skipped + self.engine.is_waited_for
        return share_of_run(tried, n_update=self.recipe.train.updates, passed=self.passed)

    def _rate_factor(self) -> float:
        recipe, update = self.recipe, self.state.update + 1
        share = share_of_run(update, n_update=recipe.train.updates, passed=self.passed)
        return learning_rate_factor(update, recipe.optim, share=share, d_model=recipe.model.d_model)

    def _settle(self) -> bool:
        """Count the update that is under way, if there is one. Returns whether somebody wants to stop."""
        outcome, state = self.engine.settle(), self.state
        if outcome is None:
            return False
        seconds = self.meter.add(outcome)
        state.seconds += seconds
        self.pace.add(seconds)
        self.passed = outcome.passed
        if outcome.moved:
            state.update += 1
            state.n_bad = 0
            state.n_token += outcome.n_gold
        else:
            state.n_skipped += 1
            state.n_bad += 1
            if state.n_skipped == 1:
                self._tell_of_skipping(outcome)
            if state.n_bad >= MAX_BAD:
                raise TrainingError(self._hopeless(outcome))
        if self.pace.n_update == FORETOLD_AFTER:
            self._foretell()
        return outcome.stop

    def _tend(self, stop: bool) -> str:
        """After an update: log, validate and save where it is time to. Returns why training ends here, or ''."""
        u = self.state.update
        if u % self.recipe.train.log_every == 0 or self._is_last(u):
            with self.stopwatch.host("telling"):
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
        self._end_if_in_trouble()
        return "stopped" if stop else over

    def _catch_up(self) -> bool:
        """Make the validation that a stop prevented. Returns whether a stop prevented it again."""
        if not self._validation_is_due():
            return False
        finished = self.validate()
        self.save()
        self._end_if_in_trouble()
        return not finished

    def _end_if_in_trouble(self) -> None:
        """Raise MachineError where memory was too small to validate, now that the updates before are saved."""
        if self.trouble:
            raise MachineError(
                f"update {self.state.update}: {self.trouble} The updates until here are saved; these options may be "
                "changed, and the run goes on from here."
            )

    def _is_due(self, update: int) -> bool:
        """Whether something is done after this update, so that its outcome must be known at once."""
        train, valid = self.recipe.train, self.recipe.valid
        regular = any(update % every == 0 for every in (train.log_every, train.save_every, valid.every))
        return regular or self._is_last(update) or self._time_is_to_be_planned()

    def _is_last(self, update: int) -> bool:
        """Whether the updates or the time for them end here."""
        return update >= self.recipe.train.updates or self.passed >= 1

    def _time_is_to_be_planned(self) -> bool:
        """Whether half of the time has passed, and nobody knows yet how much of it the last validation will need."""
        return self.passed >= 0.5 and not self.state.history

    def _validation_is_due(self) -> bool:
        u, every = self.state.update, self.recipe.valid.every
        reached = u > 0 and (u % every == 0 or self._is_last(u) or self._time_is_to_be_planned())
        return reached and all(entry["update"] != u for entry in self.state.history)

    def _is_over(self) -> str:
        """Why training is over: 'done', 'time', 'patience', or '' if it is not."""
        if self.state.update >= self.recipe.train.updates:
            return "done"
        if self.passed >= 1:
            return "time"
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
        state, sums, metric = self.state, self.meter.sums, self.recipe.valid.metric
        speed = sums.n_gold / max(1e-9, sums.seconds)
        self.record.write(
            "train",
            state.update,
            epoch=state.position.epoch,
            loss=sums.loss / max(1, sums.n_gold),
            learning_rate=self.meter.rate,
            gradient_norm=sums.norm / max(1, sums.n_update),
            tokens_per_second=round(speed, 1),
            skipped=state.n_skipped,
            seconds=round(state.seconds, 2),
            **footprint(self.model.device),
        )
        shown = {
            "left": duration(self._left()),
            "loss": f"{sums.loss / max(1, sums.n_gold):.3f}",
            "lr": f"{self.meter.rate:.2e}",
            "tok/s": f"{speed:,.0f}",
        }
        if (best := state.best_update(metric)) is not None:
            entry = next(e for e in state.history if e["update"] == best)
            shown["best"] = f"{metric} {entry[metric]:.2f} at {best:,}"
        if self.passed:
            shown["time"] = f"{min(1.0, self.passed):.0%}"
        self.record.progress(state.update, epoch=f"{state.position.epoch}", **shown)
        self.meter = Meter()

    def _tell_of_memory(self) -> None:
        """Say when memory has run out: each time to the log, the first time to people."""
        memory = self.engine.memory
        if memory.n_failed == self.n_failed:
            return
        self.record.write("memory", self.state.update, times=memory.n_failed, too_large=memory.too_large)
        if not self.n_failed:
            self.record.say(
                f"memory ran out: batches of {memory.too_large:,} tokens (sentences x longest side) and more are done "
                "in halves from now on, with the same gradient. A smaller batch.max_tokens avoids the detour."
            )
        self.n_failed = memory.n_failed

    def _tell_of_skipping(self, outcome: Outcome) -> None:
        """Say that an update was skipped: the first time in a run, for the log and the farewell count the others."""
        where = f"update {self.state.update + 1} (epoch {self.moving.epoch}, update {self.moving.update} in it)"
        warning, usual = "warning: ", ""
        if self.engine.scaler.is_enabled():
            warning, usual = "", "; in fp16 a few are usual, until the loss scale is found"
        self.record.say(
            f"{warning}{where} was skipped: loss {outcome.loss:.4g}, gradient norm {outcome.norm:.4g}. Where one is "
            f"not finite the weights stay as they are{usual}. {MAX_BAD} in a row end the run; log.jsonl counts all."
        )

    def validate(self) -> bool:
        """Measure the model on the validation sets, on rank 0; every rank remembers the numbers.

        Returns False, remembering nothing, when somebody wanted to stop meanwhile, or memory was too small: what was
        trained is to be saved then before anything else.
        """
        measured: dict[str, Measured] = {}
        too_large = self.validation.too_large
        begin = self.budget.clock()
        with self.stopwatch.host("validation"), self.engine.optimizers.resting():
            weights = self.engine.gather(checkpoint.weights_of(self.model))
            with self.ranks.others_wait():
                if self.ranks.is_main:
                    try:
                        with self.engine.whole_model(weights) as model:
                            measured = self.validation.measure(model, lambda: not self.wants_stop())
                    except (MachineError, RuntimeError, MemoryError) as error:
                        if not isinstance(error, MachineError) and not is_out_of_memory(error):
                            raise
                        self.trouble = str(error)  # and not the error, which holds every tensor of the attempt
        if self.ranks.any(self.wants_stop() or bool(self.trouble)):
            return False
        if self.ranks.is_main:
            if self.validation.too_large and not too_large:
                self.record.say(
                    f"memory ran out in validation: batches of {self.validation.too_large:,} tokens (sentences x "
                    "longest side) and more are measured in halves from now on, with the same result. A smaller "
                    "valid.max_tokens avoids the detour."
                )
            with self.stopwatch.host("telling"):
                self._log_validation(measured)
        self.state.measure_seconds = max(self.state.measure_seconds, self.budget.clock() - begin)
        *told, self.passed = self.ranks.tell(*self.validation.flat(measured), self.budget.passed(self.state))
        self.state.history.append({"update": self.state.update, **self.validation.entry(told)})
        return True

    def _log_validation(self, measured: dict[str, Measured]) -> None:
        update, record = self.state.update, self.record
        record.write("valid", update, **fields_of(measured))
        for name, (numbers, _) in measured.items():
            record.say(describe(update, numbers, name if len(measured) > 1 else ""))
        for example in measured[self.validation.first_name][1].get("examples", []):
            record.say("    " + "\n    ".join(f"{what:9}  {text}" for what, text in example.items()))

    def _left(self) -> float:
        """Seconds until the end of training, by updates or by the time budget."""
        by_updates = self.pace.left(self.state, self.recipe)
        return min(by_updates, self.budget.left(self.state))

    def _foretell(self) -> None:
        """Say what the run will cost, once that can be judged."""
        state, updates = self.state, self.recipe.train.updates
        left = self._left()
        if left > 0:
            to = f"update {updates:,}"
            if left < self.pace.left(state, self.recipe):
                to = f"the end of train.time_budget, at about update {self.pace.reaches(state, self.recipe, left):,}"
            end = time.strftime("%A %Y-%m-%d %H:%M", time.localtime(time.time() + left))
            apart = "" if state.measure_seconds else ", validations and checkpoints not counted"
            self.record.say(f"{self.pace.seconds:.3g} s an update: about {duration(left)} to {to}, until {end}{apart}")

    def account(self) -> None:
        """Say where the time of this process went."""
        spent = self.stopwatch.read()
        self.record.write("time", self.state.update, **{part: round(seconds, 6) for part, seconds in spent.items()})
        self.record.say("\n".join(table(spent)))
