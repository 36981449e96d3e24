"""The training loop: fetch, backward, step, and at intervals log, validate, save. `budget.py` computes what is due, and
`reporter.py` reports it. The loop is the same for one process or several, on CPU or GPU. Everything that follows from
the position in the data is computed from it, so a resumed run equals an uninterrupted one bit for bit."""

import time
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
from nmt.training.parallel import Ranks, checksum, is_sharded, shard_like
from nmt.training.precision import Precision
from nmt.training.reporter import TrainingReporter, flops_per_token
from nmt.training.state import Sums, TrainState
from nmt.training.validate import Measured, Validation, choose_final, final_choice


class Trainer:
    """A model in training. `train` runs until the recipe's last update, the end of its time budget, early stopping or a
    request to stop. time_share: share of the time budget that has passed, equal on all ranks; 0 without a budget."""

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
        self.timed_from = time.perf_counter()  # the time from here on is that of the next update
        peak = peak_flops(model.device, precision.name) * ranks.world_size
        token_seconds = flops_per_token(model, recipe.model, feed.plan) / peak if peak else 0.0
        self.reporter = TrainingReporter(recipe, record, self.budget, model.device, token_seconds)
        self.pending_position = Position()  # position in the data of the pending update

    def restore(self, folder: Path, saved: dict[str, Any]) -> None:
        """Load a verified checkpoint and report where the run resumes."""
        engine, conditions = self.engine, self.state.conditions
        final = self.ranks.on_main(lambda: final_choice(self.run))
        if final is not None and final["update"] != saved["update"]:
            final = None  # chosen at another update, so the run did not end here
        weights = checkpoint.load_tensors(folder, checkpoint.MODEL)
        for name, weight in checkpoint.weights_of(engine.model).items():
            if is_sharded(weight) and name in weights:
                weights[name] = shard_like(weight, weights[name])
        checkpoint.load_weights(engine.model, weights, str(folder))
        engine.optimizers.load_state(engine.model, checkpoint.load_tensors(folder, checkpoint.OPTIMIZER))
        self.state = TrainState.from_json(saved, packed=self.recipe.batch.packed)
        self.state.conditions, engine.memory = conditions, self.state.memory
        if self.state.scaler:
            engine.scaler.load_state_dict(self.state.scaler)
        if engine.ema:
            saved_ema = checkpoint.load_tensors(folder, checkpoint.EMA)
            for name, average in engine.ema_weights().items():
                average.copy_(shard_like(average, saved_ema[name]))
        self.time_share = self.budget.resume(self.state)
        if final is not None and not budget.stop_reason(self.state, self.recipe, self.time_share):
            budget.undo_end(self.state, self.recipe)
        if self.ranks.is_main:
            self._prune()
        self.record.resume(self.state.update, [int(entry["update"]) for entry in self.state.history])
        self.reporter.resumed(self.state, final)
        precision, version = engine.precision, version_and_commit()
        self.record.say(
            f"resuming from {folder.name} on {self.model.device} in {precision.name}: {precision.why}; nmt {version}"
        )
        if self.state.position.update != saved["update_in_epoch"]:
            epoch = saved["epoch"]
            self.record.say(f"this version forms other batches: epoch {epoch}, counted from 0, starts again with them")

    def save(self, *, planned: bool = True) -> None:
        """Commit a checkpoint and delete those no longer kept. All ranks must call it. planned: whether an
        uninterrupted run would save here, too. The next save deletes a checkpoint made only for a stop, so the run
        keeps and averages the same ones. Raises TrainingError, and writes nothing, if ranks have diverged."""
        state, engine, run = self.state, self.engine, self.run
        replicated = [param for param in engine.model.parameters() if not is_sharded(param)]
        counters = [state.update, state.position.epoch, state.position.update, state.n_token, state.n_skipped]
        if odd := self.ranks.outliers(checksum([*replicated, torch.tensor(counters, device=engine.model.device)])):
            raise TrainingError(
                f"update {state.update}: weights or position of {', '.join(odd)} differ from the other ranks, so "
                "nothing was saved. Suspect the memory or the device of that machine. The same command resumes from "
                "the last checkpoint, when all were equal."
            )
        self.budget.count_time(state)  # the checkpoint stores the wall time
        begin = self.budget.clock()
        existing = set(run.updates()) - {state.update}  # `stops` forgets checkpoints that were deleted
        state.stops = [update for update in state.stops if update in existing] + [state.update] * (not planned)
        state.scaler, state.memory = engine.scaler.state_dict(), engine.memory
        tensors = {
            checkpoint.MODEL: self.ranks.gather(checkpoint.weights_of(engine.model)),
            checkpoint.OPTIMIZER: self.ranks.gather(engine.optimizers.state(engine.model)),
        }
        if engine.ema:
            tensors[checkpoint.EMA] = {**tensors[checkpoint.MODEL], **self.ranks.gather(engine.ema_weights())}

        def write() -> None:
            run.check_lock()
            arithmetic = {name: value for name, value in asdict(engine.precision).items() if name != "why"}
            arithmetic["compiled"] = self.recipe.train.compiled
            saved = {**state.to_json(self.recipe.valid.metric), "arithmetic": arithmetic}
            checkpoint.save(run.checkpoint(state.update), tensors, saved)
            self._prune()

        self.ranks.on_main(write)
        self.budget.saved(state, self.budget.clock() - begin, self.time_share)

    def _prune(self) -> None:
        """Delete surplus checkpoints: after a save, and on resuming in case a kill came before."""
        run, state, train = self.run, self.state, self.recipe.train
        scores = state.scores_to_keep(self.recipe.valid.metric)
        old_stops = {update for update in run.updates() if update in state.stops and update != state.update}
        surplus = checkpoint.checkpoints_to_delete(
            {update: scores.get(update) for update in run.updates() if update not in old_stops},
            keep_last=train.keep_last,
            keep_best=train.keep_best,
        )
        for update in sorted(old_stops.union(surplus)):
            checkpoint.remove(run.checkpoint(update))

    def train(self) -> str:
        """Train until the end. Returns the reason for the end: 'done', 'time', 'patience' or 'stopped'."""
        state, engine, recipe = self.state, self.engine, self.recipe
        if budget.validation_is_due(state, recipe, self.time_share):  # a stop prevented it
            finished, trouble = self.validate()
            self.save()
            self._end_if(trouble)
            if not finished:
                return "stopped"
        if reason := budget.stop_reason(state, recipe, self.time_share):
            return reason
        self.model.train()
        self.timed_from = time.perf_counter()
        for portion in self.feed.begin(state.position):
            n_tried = state.update + state.n_skipped + (engine.pending is not None)
            share = budget.share_of_run(n_tried, n_update=recipe.train.updates, time_share=self.time_share)
            engine.backward(portion.work, self.feed.n_gold(portion), share=share)
            self.reporter.memory(state.update, engine.memory)
            stop = self._finish_update()  # of the previous update, if it is still pending
            factor = budget.rate_factor(state, recipe, self.time_share)
            engine.step(factor, state.update + 1, wish=self.wants_stop(), time_share=self.budget.count_time(state))
            self.pending_position, state.position = portion.position, portion.following
            is_due = budget.anything_is_due(state.update + 1, state, recipe, self.time_share)
            if engine.is_async and not stop and not is_due:
                continue
            stop = self._finish_update()
            if state.n_bad:
                continue
            if reason := self._after_update(stop):
                return reason
        raise AssertionError("the plan never ends")

    def _finish_update(self) -> bool:
        """Settle and count the pending update, if there is one. Returns whether any rank wants to stop."""
        outcome, state = self.engine.settle(), self.state
        if outcome is None:
            return False
        now, sums = time.perf_counter(), state.since_log
        seconds, self.timed_from = now - self.timed_from, now
        state.seconds += seconds
        sums.seconds += seconds
        self.time_share = outcome.time_share
        if outcome.moved:
            state.update += 1
            state.n_bad = 0
            if state.update == 1:
                self.budget.began(state, self.time_share)
            state.n_token += outcome.n_gold
            sums.loss += outcome.loss
            sums.norm += outcome.norm
            sums.n_gold += outcome.n_gold
            sums.n_update += 1
            sums.rate = outcome.rate
        else:
            state.n_skipped += 1
            state.n_bad += 1
            self.reporter.skipped(state, self.pending_position, outcome, self.engine.scaler, self.run)
        return outcome.stop

    def _after_update(self, stop: bool) -> str:
        """Log, validate and save after an update where due. Returns the reason why training ends here, or ''."""
        state, recipe = self.state, self.recipe
        if budget.log_is_due(state.update, recipe, self.time_share):
            self._log()
        self.reporter.progress(state)
        save_is_due, trouble = state.update % recipe.train.save_every == 0, ""
        if budget.validation_is_due(state, recipe, self.time_share):
            finished, trouble = self.validate()
            save_is_due, stop = True, stop or not finished
        reason = budget.stop_reason(state, recipe, self.time_share)
        if stop or reason or save_is_due:
            self.save(planned=save_is_due or bool(reason))
            self.timed_from = time.perf_counter()  # leaves out validation and saving
        self._end_if(trouble)
        return "stopped" if stop else reason

    def _log(self) -> None:
        self.reporter.updates(self.state)
        self.state.since_log, self.timed_from = Sums(), time.perf_counter()

    def _end_if(self, trouble: str) -> None:
        """Raise MachineError if the model could not be validated. The updates until here are saved by now."""
        if trouble:
            raise MachineError(
                f"update {self.state.update}: {trouble} All updates so far are saved. Change these options and run "
                "nmt-train again: it resumes from here."
            )

    def validate(self) -> tuple[bool, str]:
        """Validate on rank 0 and record the scores on every rank. Returns whether validation finished, and the error
        message if it failed: out of memory, or search scores that are not finite."""
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
                return str(error)  # the exception itself would keep every tensor of the attempt alive
            return ""

        trouble = self.ranks.on_main(measure)
        if self.ranks.any(self.wants_stop()) or trouble:
            return False, trouble
        state.validated_share = self.time_share
        state.history.append({"update": state.update, **self.ranks.on_main(lambda: self.validation.entry(measured))})
        if self.ranks.is_main:
            self.reporter.validation(state, measured, halved=0 if too_large else self.validation.too_large)
        self.budget.measured(state, self.budget.clock() - begin, self.time_share)
        self.time_share, state.measure_share = self.ranks.on_main(
            lambda: (self.budget.count_time(state), state.measure_share)
        )
        self.reporter.progress(state)
        if state.since_log.n_update and budget.stop_reason(state, self.recipe, self.time_share):
            self._log()  # only the time of the validation made this update the last
        return True, ""

    def choose_final(self) -> str:
        """Choose the final model, on rank 0. Returns its name, or '' if a stop was requested."""
        has_time = partial(self.budget.has_time, self.state)
        with self.engine.whole_model() as model:
            return choose_final(
                self.recipe, self.run, model, self.state, self.validation.first, self.record, self.wants_stop, has_time
            )
