"""The training loop: fetch, backward, step, and now and then log, validate, save. `budget.py` computes when something
is due; `reporter.py` says it. One process, several, CPU or GPU run this loop. What follows from the position in the
data is computed, so a resumed run is the uninterrupted one, bit for bit."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from nmt import checkpoint
from nmt.data.corpus import Prepared
from nmt.data.plan import Position
from nmt.device import peak_flops
from nmt.errors import MachineError, TrainingError, is_out_of_memory
from nmt.extras import version_and_commit
from nmt.models.base import TranslationModel
from nmt.recipe.options import Recipe
from nmt.run import Run
from nmt.training import budget
from nmt.training.budget import Budget
from nmt.training.engine import Engine
from nmt.training.feed import Feed
from nmt.training.log import Record
from nmt.training.parallel import Ranks, checksum, is_cut, laid_out_like
from nmt.training.precision import Precision
from nmt.training.reporter import MAX_BAD, Meter, TrainingReporter, divergence_message, flops_per_token
from nmt.training.state import TrainState, begun_in_other_batches
from nmt.training.validate import Measured, Validation, choose_final, final_choice


class Trainer:
    """A model in training. `train` runs until the recipe's last update, the end of its time, early stopping or a wish.
    time_share: share of the time budget, the same on all ranks; 0 without a budget."""

    def __init__(
        self,
        recipe: Recipe,
        data: Prepared,
        model: TranslationModel,
        feed: Feed,
        precision: Precision,
        ranks: Ranks,
        run: Run,
        record: Record,
        wants_stop: Callable[[], bool],
        budget: Budget,
    ) -> None:
        self.recipe, self.model, self.feed, self.run, self.record = recipe, model, feed, run, record
        self.ranks, self.wants_stop = ranks, wants_stop
        self.validation = Validation(recipe, data, precision)
        self.budget, self.time_share = budget, 0.0
        self.state = TrainState(conditions=self.validation.first.conditions, planned_for=self.budget.seconds)
        first_tag = data.subwords.src.n_text
        self.engine = Engine(model, recipe, precision=precision, ranks=ranks, first_tag=first_tag)
        self.meter = Meter()
        peak = peak_flops(model.device, precision.name) * ranks.world_size
        token_seconds = flops_per_token(model, recipe.model, feed.plan) / peak if peak else 0.0
        self.reporter = TrainingReporter(recipe, record, self.budget, model.device, token_seconds)
        self.position_under_way = Position()  # where in the data the update under way is from

    def restore(self, folder: Path, saved: dict[str, Any]) -> None:
        """Take up a verified checkpoint, and say from where the run goes on."""
        engine, conditions = self.engine, self.state.conditions
        final = self.ranks.of_main(lambda: final_choice(self.run))
        if final is not None and final["update"] != saved["update"]:
            final = None  # else the run ended there, by a recipe that may have said so
        weights = checkpoint.load_tensors(folder, checkpoint.MODEL)
        for name, mine in checkpoint.weights_of(engine.model).items():
            if is_cut(mine) and name in weights:
                weights[name] = laid_out_like(mine, weights[name])
        checkpoint.load_weights(engine.model, weights, str(folder))
        engine.optimizers.load_state(engine.model, checkpoint.load_tensors(folder, checkpoint.OPTIMIZER))
        self.state = TrainState.from_json(saved, packed=self.recipe.batch.packed)
        self.state.conditions, engine.memory = conditions, self.state.memory
        if self.state.scaler:
            engine.scaler.load_state_dict(self.state.scaler)
        if engine.ema:
            average = checkpoint.load_tensors(folder, checkpoint.EMA)
            for name, part in engine.ema_weights().items():
                part.copy_(laid_out_like(part, average[name]))
        self.time_share = self.budget.resume(self.state)
        if final is not None and not budget.stop_reason(self.state, self.recipe, self.time_share):
            budget.undo_end(self.state, self.recipe)
        self.meter = Meter(self.state.since_log)
        if self.ranks.is_main:
            self._prune()
        self.record.resume(self.state.update, [int(entry["update"]) for entry in self.state.history])
        self.reporter.n_failed = self.state.memory.n_failed
        self.reporter.measured_otherwise(self.state)
        self.reporter.find_best(self.state)
        if final is not None:
            self.reporter.another_end(final, self.state)
        precision, version = engine.precision, version_and_commit()
        self.record.say(
            f"going on from {folder.name} on {self.model.device} in {precision.name}: {precision.why}; nmt {version}"
        )
        if begun_in_other_batches(saved, packed=self.recipe.batch.packed):
            epoch = saved["epoch"]
            self.record.say(f"this version makes other batches: epoch {epoch}, counted from 0, begins anew with them")

    def save(self, *, planned: bool = True) -> None:
        """Commit a checkpoint of this moment, then delete those that may go. All ranks must call it together.

        planned: whether an undisturbed run would have saved here, too. A checkpoint that is only there for a stop goes
        with the next save, so that the run keeps and averages what it would have without the stop. Raises TrainingError
        before anything is written if the ranks have come apart.
        """
        state, engine, run = self.state, self.engine, self.run
        uncut = [param for param in engine.model.parameters() if not is_cut(param)]
        where = [state.update, state.position.epoch, state.position.update, state.n_token, state.n_skipped]
        if odd := self.ranks.outliers(checksum([*uncut, torch.tensor(where, device=engine.model.device)])):
            raise TrainingError(
                f"update {state.update}: {', '.join(odd)} holds other weights, or stands elsewhere, than the other "
                "ranks, so nothing was saved: suspect the memory or the device of that machine. The same command goes "
                "on from the last checkpoint, when all were equal."
            )
        self.budget.count_time(state)  # for the checkpoint to know
        state.since_log = self.meter.sums
        begin = self.budget.clock()
        there = set(run.updates()) - {state.update}  # of those that went nobody needs to know why they were there
        state.stops = [update for update in state.stops if update in there] + [state.update] * (not planned)
        state.scaler, state.memory = engine.scaler.state_dict(), engine.memory
        tensors = {
            checkpoint.MODEL: self.ranks.gather(checkpoint.weights_of(engine.model)),
            checkpoint.OPTIMIZER: self.ranks.gather(engine.optimizers.state(engine.model)),
        }
        if engine.ema:
            tensors[checkpoint.EMA] = {**tensors[checkpoint.MODEL], **self.ranks.gather(engine.ema_weights())}

        def write() -> None:
            run.must_be_held()
            arithmetic = {name: value for name, value in asdict(engine.precision).items() if name != "why"}
            arithmetic["compiled"] = self.recipe.train.compiled
            told = {**state.to_json(self.recipe.valid.metric), "arithmetic": arithmetic}
            checkpoint.save(run.checkpoint(state.update), tensors, told)
            self._prune()

        self.ranks.of_main(write)
        self.budget.saved(state, self.budget.clock() - begin, self.time_share)

    def _prune(self) -> None:
        """Delete the checkpoints that may go: after a save, and on resuming, if a kill came between the two."""
        run, state, train = self.run, self.state, self.recipe.train
        scores = state.scores_to_keep(self.recipe.valid.metric)
        mere_stops = {update for update in run.updates() if update in state.stops and update != state.update}
        too_many = checkpoint.checkpoints_to_delete(
            {update: scores.get(update) for update in run.updates() if update not in mere_stops},
            keep_last=train.keep_last,
            keep_best=train.keep_best,
        )
        for update in sorted(mere_stops.union(too_many)):
            checkpoint.remove(run.checkpoint(update))

    def train(self) -> str:
        """Train until the end. Returns why it ended: 'done', 'time', 'patience' or 'stopped'."""
        state, engine, recipe = self.state, self.engine, self.recipe
        if budget.validation_is_due(state, recipe, self.time_share):  # which a stop prevented
            finished, trouble = self.validate()
            self.save()
            self._end_if(trouble)
            if not finished:
                return "stopped"
        if over := budget.stop_reason(state, recipe, self.time_share):
            return over
        self.model.train()
        self.meter.restart_clock()
        for portion in self.feed.begin(state.position):
            share = budget.share(state, recipe, self.time_share, under_way=engine.is_waited_for)
            engine.backward(portion.work, self.feed.n_gold(portion), share=share)
            self.reporter.memory(state.update, engine.memory)
            stop = self._finish_update()  # the update before, if nobody has waited for it
            factor = budget.rate_factor(state, recipe, self.time_share)
            engine.step(factor, state.update + 1, wish=self.wants_stop(), time_share=self.budget.count_time(state))
            self.position_under_way, state.position = portion.position, portion.following
            is_due = budget.anything_is_due(state.update + 1, state, recipe, self.time_share)
            if engine.late and not stop and not is_due:
                continue
            stop = self._finish_update()
            if state.n_bad:
                continue
            if over := self._after_update(stop):
                return over
        raise AssertionError("the plan never ends")

    def _finish_update(self) -> bool:
        """Count the update that is under way, if there is one. Returns whether somebody wants to stop."""
        outcome, state, scaler = self.engine.settle(), self.state, self.engine.scaler
        if outcome is None:
            return False
        state.seconds += self.meter.add(outcome)
        self.time_share = outcome.time_share
        if outcome.moved:
            state.update += 1
            state.n_bad = 0
            if state.update == 1:
                self.budget.began(state, self.time_share)
            state.n_token += outcome.n_gold
        else:
            state.n_skipped += 1
            state.n_bad += 1
            if state.n_skipped == 1:
                self.reporter.first_skipped(state, self.position_under_way, outcome, scaled=scaler.is_enabled())
            if state.n_bad >= MAX_BAD:
                raise TrainingError(
                    divergence_message(state, self.position_under_way, outcome, scaler.get_scale(), self.run.updates())
                )
        return outcome.stop

    def _after_update(self, stop: bool) -> str:
        """After an update: log, validate and save where it is time to. Returns why training ends here, or ''."""
        state, recipe = self.state, self.recipe
        if budget.log_is_due(state.update, recipe, self.time_share):
            self._log()
        self.reporter.progress(state, self.meter)
        to_save, trouble = state.update % recipe.train.save_every == 0, ""
        if budget.validation_is_due(state, recipe, self.time_share):
            finished, trouble = self.validate()
            to_save, stop = True, stop or not finished
        over = budget.stop_reason(state, recipe, self.time_share)
        if stop or over or to_save:
            self.save(planned=to_save or bool(over))
            self.meter.restart_clock()
        self._end_if(trouble)
        return "stopped" if stop else over

    def _log(self) -> None:
        """Write the line of the log about the updates since the line before."""
        self.reporter.updates(self.state, self.meter)
        self.meter = Meter()

    def _end_if(self, trouble: str) -> None:
        """Raise MachineError where the model could not be validated, now that the updates before are saved."""
        if trouble:
            raise MachineError(
                f"update {self.state.update}: {trouble} The updates until here are saved; these options may be "
                "changed, and the run goes on from here."
            )

    def validate(self) -> tuple[bool, str]:
        """Measure the model on the validation sets, on rank 0; every rank remembers the numbers. Returns whether it was
        finished, and why it could not be: memory was too small, or the scores of a search were not finite."""
        state, too_large, measured = self.state, self.validation.too_large, dict[str, Measured]()
        begin = self.budget.clock()
        weights = self.ranks.gather(checkpoint.weights_of(self.model))

        def measure() -> str:
            try:
                with self.engine.whole_model(weights) as model:
                    has_time = partial(self.budget.has_time, state)
                    measured.update(self.validation.measure(model, lambda: not self.wants_stop(), has_time))
            except (MachineError, RuntimeError, MemoryError) as error:
                if not isinstance(error, MachineError) and not is_out_of_memory(error):
                    raise
                return str(error)  # and not the error, which holds every tensor of the attempt
            return ""

        trouble = self.ranks.of_main(measure)
        if self.ranks.any(self.wants_stop()) or trouble:
            return False, trouble
        state.validated_share = self.time_share
        state.history.append({"update": state.update, **self.ranks.of_main(lambda: self.validation.entry(measured))})
        if self.ranks.is_main:
            if self.validation.too_large and not too_large:
                self.reporter.halved_in_validation(self.validation.too_large)
            self.reporter.validation(state, measured, self.validation.first_name)
            if not self.budget.has_time(state):
                self.reporter.cut_short(state.update)
        self.budget.measured(state, self.budget.clock() - begin, self.time_share)
        self.time_share, state.measure_share = self.ranks.of_main(
            lambda: (self.budget.count_time(state), state.measure_share)
        )
        self.reporter.progress(state, self.meter)
        if self.meter.sums.n_update and budget.stop_reason(state, self.recipe, self.time_share):
            self._log()  # a line that before the validation nobody knew to be the last
        return True, ""

    def choose_final(self) -> str:
        """Choose the model that translates, on rank 0. Returns its name, or '' where somebody wants to stop."""
        has_time = partial(self.budget.has_time, self.state)
        with self.engine.whole_model() as model:
            return choose_final(
                self.recipe, self.run, model, self.state, self.validation.first, self.record, self.wants_stop, has_time
            )
