"""The training loop: fetch, backward, step, and at intervals log, validate, save. `budget.py` computes what is due, and
`reporter.py` reports it. The loop is the same for one process or several, on CPU or GPU. Everything that follows from
the position in the data is computed from it, so a resumed run equals an uninterrupted one bit for bit."""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt import checkpoint
from nmt.data.plan import Position
from nmt.device import peak_flops
from nmt.errors import MachineError, RunError, is_out_of_memory
from nmt.extras import version_and_commit
from nmt.recipe.options import Recipe
from nmt.run import Run
from nmt.training import budget
from nmt.training.budget import Budget
from nmt.training.engine import Engine
from nmt.training.feed import Feed
from nmt.training.log import Record
from nmt.training.parallel import checksum, is_sharded, shard_like
from nmt.training.reporter import TITLES, TrainingReporter, flops_per_token
from nmt.training.state import Sums, TrainState, goodness
from nmt.training.validate import Measured, Validation, describe, ends_of, final_choice, numbers_of


class Trainer:
    """A model in training. `train` runs until the recipe's last update, the end of its time budget, early stopping or a
    request to stop. time_share: share of the time budget that has passed, equal on all ranks; 0 without a budget."""

    def __init__(
        self, engine: Engine, feed: Feed, run: Run, record: Record, wants_stop: Callable[[], bool], budget: Budget
    ) -> None:
        recipe, model, precision = engine.recipe, engine.model, engine.precision
        self.engine, self.recipe, self.model, self.ranks = engine, recipe, model, engine.ranks
        self.feed, self.run, self.record, self.wants_stop = feed, run, record, wants_stop
        self.validation = Validation(recipe, feed.data, precision)
        self.budget, self.time_share = budget, 0.0
        self.state = TrainState(conditions=self.validation.first.conditions, planned_for=budget.seconds)
        self.timed_from = time.perf_counter()  # the time from here on is that of the next update
        peak = peak_flops(model.device, precision.name) * self.ranks.world_size
        token_seconds = flops_per_token(model, recipe.model, feed.plan) / peak if peak else 0.0
        self.reporter = TrainingReporter(recipe, record, budget, model.device, token_seconds)
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
        engine.optimizers.load_state(checkpoint.load_tensors(folder, checkpoint.OPTIMIZER))
        self.state = TrainState.from_json(saved)
        self.state.conditions, engine.memory = conditions, self.state.memory
        if self.state.scaler:
            engine.scaler.load_state_dict(self.state.scaler)
        if engine.ema:
            saved_ema = checkpoint.load_tensors(folder, checkpoint.EMA)
            for name, average in engine.ema.items():
                average.copy_(shard_like(average, saved_ema[name]))
        self.time_share = self.budget.resume(self.state)
        if final is not None and not budget.stop_reason(self.state, self.recipe, self.time_share):
            budget.undo_end(self.state, self.recipe, final.get("ends", {}))
        if self.ranks.is_main:
            self._prune()
        self.record.resume(self.state.update, [int(entry["update"]) for entry in self.state.history])
        self.reporter.resumed(self.state, had_finished=final is not None)
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
        keeps and averages the same ones. Raises MachineError, and writes nothing, if ranks have diverged."""
        state, engine, run = self.state, self.engine, self.run
        replicated = [param for param in engine.model.parameters() if not is_sharded(param)]
        counters = [state.update, state.position.epoch, state.position.update, state.n_token, state.n_skipped]
        sums = self.ranks.all_gather(checksum([*replicated, torch.tensor(counters, device=engine.model.device)]))
        if odd := [f"rank {rank}" for rank, number in enumerate(sums) if number != statistics.mode(sums)]:
            raise MachineError(
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
            checkpoint.OPTIMIZER: self.ranks.gather(engine.optimizers.state()),
        }
        if engine.ema:
            tensors[checkpoint.EMA] = {**tensors[checkpoint.MODEL], **self.ranks.gather(engine.ema)}

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
            finished = self.validate()
            self.save()
            if not finished:
                return "stopped"
        if reason := budget.stop_reason(state, recipe, self.time_share):
            return reason
        self.record.say(TITLES)
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
            self.reporter.skipped(state, self.pending_position, outcome)
        return outcome.stop

    def _after_update(self, stop: bool) -> str:
        """Log, validate and save after an update where due. Returns the reason why training ends here, or ''."""
        state, recipe = self.state, self.recipe
        if budget.log_is_due(state.update, recipe, self.time_share):
            self._log()
        self.reporter.progress(state)
        save_is_due = state.update % recipe.train.save_every == 0
        if budget.validation_is_due(state, recipe, self.time_share):
            save_is_due = True
            stop = not self.validate() or stop
        reason = budget.stop_reason(state, recipe, self.time_share)
        if stop or reason or save_is_due:
            self.save(planned=save_is_due or bool(reason))
            self.timed_from = time.perf_counter()  # leaves out validation and saving
        return "stopped" if stop else reason

    def _log(self) -> None:
        self.reporter.updates(self.state)
        self.state.since_log, self.timed_from = Sums(), time.perf_counter()

    def validate(self) -> bool:
        """Validate on rank 0 and record the scores on every rank. Returns False if a stop ended it. If memory runs
        out, or the scores of a search are not finite, saves and raises MachineError."""
        state, measured, n_failed = self.state, dict[str, Measured](), self.validation.n_failed
        begin = self.budget.clock()
        weights = self.ranks.gather(checkpoint.weights_of(self.model))

        def measure() -> str:
            try:
                with self.engine.whole_model(weights) as model:
                    has_time = partial(self.budget.has_time, state)
                    measured.update(self.validation.measure(model, self.wants_stop, has_time))
            except (MachineError, RuntimeError, MemoryError) as error:
                if not isinstance(error, MachineError) and not is_out_of_memory(error):
                    raise
                return str(error)  # the exception itself would keep every tensor of the attempt alive
            return ""

        if trouble := self.ranks.on_main(measure):
            self.save()
            raise MachineError(
                f"update {state.update}: {trouble} All updates so far are saved. Change these options and run "
                "nmt-train again: it resumes from here."
            )
        if self.ranks.any(self.wants_stop()):
            return False
        state.validated_share = self.time_share
        state.history.append({"update": state.update, **self.ranks.on_main(lambda: self.validation.entry(measured))})
        if self.ranks.is_main:
            self.reporter.validation(state, measured)
            if self.validation.n_failed and not n_failed:
                self.record.say(
                    "memory ran out in validation: large batches are halved from now on, with the same result. A "
                    "smaller valid.max_tokens avoids this."
                )
        self.budget.measured(state, self.budget.clock() - begin, self.time_share)
        self.time_share, state.measure_share = self.ranks.on_main(
            lambda: (self.budget.count_time(state), state.measure_share)
        )
        self.reporter.progress(state)
        if state.since_log.n_update and budget.stop_reason(state, self.recipe, self.time_share):
            self._log()  # only the time of the validation made this update the last
        return True

    def choose_final(self) -> str:
        """Measure the candidates on the validation set, on rank 0, write the best as RUN/model, and return its name.

        Candidates: the last and the best checkpoint, the average of the last or best N, and the moving average; of
        equals the first wins. On a stop nothing is written, and the name is ''. When the time is over, only numbers
        from training are compared, by the loss if the last checkpoint has no other.
        """
        recipe, run, state, record = self.recipe, self.run, self.state, self.record
        validator, metric = self.validation.first, recipe.valid.metric
        has_time = partial(self.budget.has_time, state)
        results: dict[str, dict[str, float]] = {}
        entries, names = state.comparable(*validator.names), validator.names
        measured = {int(entry["update"]): {name: entry[name] for name in names if name in entry} for entry in entries}
        # The last may have no scores of translations if the time ran out.
        is_scored = metric in measured.get(state.update, {metric})
        criterion = metric if is_scored or has_time(state.measure_seconds) else "loss"
        chosen, chosen_weights = "", dict[str, Tensor]()
        folder_of = _intact_checkpoints(run, record)
        with self.engine.whole_model() as model:
            for name, updates, file in _candidates(recipe, state, list(folder_of)):
                newest = max(updates)
                numbers = measured.get(newest, {}) if len(updates) == 1 and file == checkpoint.MODEL else {}
                if criterion not in numbers and results and not has_time(state.measure_seconds):
                    record.say(f"{name:>18}  not measured: the time budget is over")
                    continue
                weights = checkpoint.average([folder_of[update] for update in updates], file)
                if criterion in numbers:
                    results[name] = numbers
                else:
                    checkpoint.load_weights(model, weights, name)
                    results[name] = numbers_of(validator.measure(model, self.wants_stop, has_time))
                if self.wants_stop():
                    return ""
                record.say(f"{name:>18}  update {newest:,}  {describe(results[name])}")
                if not chosen or goodness(results[name], criterion) > goodness(results[chosen], criterion):
                    chosen, chosen_weights = name, weights
            checkpoint.load_weights(model, chosen_weights, chosen)
            # The log first: after a kill between the two the line is written again, and `Record.resume` drops the old.
            record.write("final", state.update, chosen=chosen, candidates=results)
            run.check_lock()
            checkpoint.save(
                run.model_folder,
                {checkpoint.MODEL: checkpoint.weights_of(model)},
                {"update": state.update, "chosen": chosen, "candidates": results, "ends": ends_of(recipe)},
            )
        record.say(f"final model: {chosen}, the best {criterion} on the validation set")
        return chosen


def _intact_checkpoints(run: Run, record: Record) -> dict[int, Path]:
    """Return the checkpoints that verify, by update. Damaged ones must not enter an average."""
    folder_of = {}
    for update in run.updates():
        try:
            checkpoint.verify(run.checkpoint(update))
            folder_of[update] = run.checkpoint(update)
        except (RunError, checkpoint.NewerFormat) as error:
            record.say(f"skipped a checkpoint: {error}")
    if not folder_of:
        raise RunError(f"{run.folder}: no intact checkpoint, so no model can be chosen. See nmt-train --verify.")
    return folder_of


def _candidates(recipe: Recipe, state: TrainState, updates: list[int]) -> list[tuple[str, list[int], str]]:
    """Return name, updates to average, and file of each candidate. updates: of intact checkpoints, oldest first."""
    metric, train, last = recipe.valid.metric, recipe.train, updates[-1]
    candidates = [("last", [last], checkpoint.MODEL)]
    scores = {update: score for update, score in state.scores(metric).items() if update in updates}
    best_first = sorted(scores, key=lambda update: (-scores[update], update))
    if best_first and best_first[0] != last:
        candidates.append(("best", best_first[:1], checkpoint.MODEL))
    averaged = {"none": [], "last": updates[-train.keep_last :], "best": best_first[: train.keep_best]}[train.average]
    if len(averaged) > 1:
        candidates.append((f"average of {train.average} {len(averaged)}", averaged, checkpoint.MODEL))
    if train.ema:
        candidates.append(("moving average", [last], checkpoint.EMA))
    return candidates
