"""A run's checkpoints: what is saved of a training that is under way, how it is taken up again, and which may go."""

from pathlib import Path
from typing import Any

from nmt import checkpoint
from nmt.recipe.options import Recipe
from nmt.run import Run
from nmt.training.engine import Engine
from nmt.training.state import TrainState


def save(run: Run, recipe: Recipe, engine: Engine, state: TrainState, *, due: bool = True) -> None:
    """Commit a checkpoint of this moment, then delete those that may go.

    due: whether an undisturbed run would have saved here, too. A checkpoint that is only there for a stop goes with the
    next save, so that the run keeps and averages what it would have without the stop.
    """
    state.stops = [update for update in state.stops if update != state.update] + [state.update] * (not due)
    if not engine.ranks.is_main:
        return
    run.must_be_held()
    metric = recipe.valid.metric
    state.scaler = engine.scaler.state_dict()
    tensors = {
        checkpoint.MODEL: checkpoint.weights_of(engine.model),
        checkpoint.OPTIMIZER: engine.optimizers.state(engine.model),
    }
    if engine.ema:
        tensors[checkpoint.EMA] = {**checkpoint.weights_of(engine.model), **engine.ema_weights()}
    arithmetic = {name: getattr(engine.precision, name) for name in ("name", "device", "fast_fp32")}
    checkpoint.save(run.checkpoint(state.update), tensors, {**state.to_json(metric), "arithmetic": arithmetic})
    prune(run, recipe, state)


def prune(run: Run, recipe: Recipe, state: TrainState) -> None:
    """Delete the checkpoints that may go: after each save, and on resuming, should a kill have come between the two."""
    scores = state.scores(recipe.valid.metric)
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
    checkpoint.load_weights(engine.model, checkpoint.load_tensors(folder, checkpoint.MODEL), str(folder))
    engine.optimizers.load_state(engine.model, checkpoint.load_tensors(folder, checkpoint.OPTIMIZER))
    state = TrainState.from_json(saved)
    if state.scaler:
        engine.scaler.load_state_dict(state.scaler)
    if engine.ema:
        average = checkpoint.load_tensors(folder, checkpoint.EMA)
        for name, mine in engine.ema_weights().items():
            mine.copy_(average[name])
    return state
