"""A run's checkpoints: what is saved of a training that is under way, how it is taken up again, and which may go."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt import checkpoint
from nmt.errors import TrainingError
from nmt.recipe.options import Recipe
from nmt.run import Run
from nmt.training.engine import Engine
from nmt.training.ranks.sharding import checksum, is_cut, laid_out_like
from nmt.training.state import TrainState, scores_of


def save(run: Run, recipe: Recipe, engine: Engine, state: TrainState, *, due: bool = True) -> None:
    """Commit a checkpoint of this moment, then delete those that may go. All ranks must call it together.

    due: whether an undisturbed run would have saved here, too. A checkpoint that is only there for a stop goes with the
    next save, so that the run keeps and averages what it would have without the stop.
    """
    _compare_ranks(engine, state)
    there = set(run.updates()) - {state.update}  # of those that went nobody needs to know why they were there
    state.stops = [update for update in state.stops if update in there] + [state.update] * (not due)
    state.scaler, state.memory = engine.scaler.state_dict(), engine.memory
    with engine.optimizers.resting():
        tensors = {
            checkpoint.MODEL: engine.gather(checkpoint.weights_of(engine.model)),
            checkpoint.OPTIMIZER: engine.gather(engine.optimizers.state(engine.model)),
        }
        if engine.ema:
            tensors[checkpoint.EMA] = {**tensors[checkpoint.MODEL], **engine.gather(engine.ema_weights())}
        with engine.ranks.others_wait():
            if engine.ranks.is_main:
                _write(run, recipe, engine, state, tensors)


def _write(run: Run, recipe: Recipe, engine: Engine, state: TrainState, tensors: dict[str, dict[str, Tensor]]) -> None:
    run.must_be_held()
    metric = recipe.valid.metric
    arithmetic = {
        name: getattr(engine.precision, name) for name in ("name", "device", "fast_fp32", "kernels", "panels")
    }
    checkpoint.save(run.checkpoint(state.update), tensors, {**state.to_json(metric), "arithmetic": arithmetic})
    prune(run, recipe, state)


def prune(run: Run, recipe: Recipe, state: TrainState) -> None:
    """Delete the checkpoints that may go: after each save, and on resuming, should a kill have come between the two."""
    scores = state.scores(recipe.valid.metric) or scores_of(state.history, recipe.valid.metric)
    if not scores and state.best_before is not None:  # nothing was measured by this metric
        scores = {state.best_before: 0.0}
    mere_stops = {update for update in run.updates() if update in state.stops and update != state.update}
    too_many = checkpoint.checkpoints_to_delete(
        {update: scores.get(update) for update in run.updates() if update not in mere_stops},
        keep_last=recipe.train.keep_last,
        keep_best=recipe.train.keep_best,
    )
    for update in sorted(mere_stops.union(too_many)):
        checkpoint.remove(run.checkpoint(update))


def restore(folder: Path, saved: dict[str, Any], engine: Engine) -> TrainState:
    """Take up a verified checkpoint and its state."""
    weights = checkpoint.load_tensors(folder, checkpoint.MODEL)
    for name, mine in checkpoint.weights_of(engine.model).items():
        if is_cut(mine) and name in weights:
            weights[name] = laid_out_like(mine, weights[name])
    checkpoint.load_weights(engine.model, weights, str(folder))
    engine.optimizers.load_state(engine.model, checkpoint.load_tensors(folder, checkpoint.OPTIMIZER))
    state = TrainState.from_json(saved, packed=engine.recipe.batch.packed)
    if state.scaler:
        engine.scaler.load_state_dict(state.scaler)
    engine.memory = state.memory
    if engine.ema:
        average = checkpoint.load_tensors(folder, checkpoint.EMA)
        for name, part in engine.ema_weights().items():
            part.copy_(laid_out_like(part, average[name]))
    return state


def _compare_ranks(engine: Engine, state: TrainState) -> None:
    """Raise TrainingError before anything is written if the ranks have come apart."""
    whole = [param for param in engine.model.parameters() if not is_cut(param)]
    where = [state.update, state.position.epoch, state.position.update, state.n_token, state.n_skipped]
    odd = engine.ranks.odd_ones(checksum([*whole, torch.tensor(where, device=engine.model.device)]))
    if odd:
        raise TrainingError(
            f"update {state.update}: {', '.join(odd)} holds other weights, or stands elsewhere, than the other ranks, "
            "so nothing was saved: suspect the memory or the device of that machine. The same command goes on from the "
            "last checkpoint, when all were equal."
        )
