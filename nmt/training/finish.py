"""The end of a run: which weights become the model that translation uses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from nmt import checkpoint
from nmt.errors import RunError
from nmt.models.base import TranslationModel
from nmt.recipe.options import Recipe
from nmt.run import Run
from nmt.training.log import Record
from nmt.training.state import TrainState, goodness
from nmt.training.validate import Validator, describe


def choose_final(
    recipe: Recipe,
    run: Run,
    model: TranslationModel,
    state: TrainState,
    validator: Validator,
    record: Record,
    wants_stop: Callable[[], bool] = lambda: False,
    has_time: Callable[[float], bool] = lambda _: True,
) -> str:
    """Measure the candidates on the validation set and write the best as RUN/model.

    Returns its name, or '' when somebody wanted to stop meanwhile: then nothing is written. has_time: for
    something that takes so many seconds; without time for one more measurement only those are compared that were
    measured in training, by the loss if the last has no more.
    Candidates: the last and the best checkpoint, the average of the last or best N, the moving average; of equals the
    first in this order.
    """
    metric = recipe.valid.metric
    results: dict[str, dict[str, float]] = {}
    # All that is measured now was measured then, and alike; what is not is measured anew.
    known = {
        int(entry["update"]): {number: entry[number] for number in validator.names if number in entry}
        for entry in state.comparable(*validator.names)
    }
    cut_short = len(known.get(state.update, {})) not in (0, len(validator.names))
    by = "loss" if cut_short and not has_time(state.measure_seconds) else metric
    chosen, chosen_weights = "", dict[str, Tensor]()
    folder_of = _whole(run, record)
    for name, updates, file in _candidates(recipe, state, list(folder_of)):
        newest = max(updates)
        numbers = known.get(newest, {}) if len(updates) == 1 and file == checkpoint.MODEL else {}
        is_known = by in numbers and (by != metric or len(numbers) == len(validator.names))
        if not is_known and results and not has_time(state.measure_seconds):
            record.say(f"{name:>12}  not measured, as the time is over")
            continue
        folders = [folder_of[update] for update in updates]
        weights = checkpoint.average(folders) if file == checkpoint.MODEL else checkpoint.load_tensors(folders[0], file)
        if is_known:
            results[name] = numbers
        else:
            checkpoint.load_weights(model, weights, name)
            results[name], _ = validator.measure(model, lambda: not wants_stop(), lambda: has_time(0.0))
        if wants_stop():
            return ""
        record.say(f"{name:>12}  " + describe(newest, results[name]))
        if not chosen or goodness(results[name], by) > goodness(results[chosen], by):
            chosen, chosen_weights = name, weights
    checkpoint.load_weights(model, chosen_weights, chosen)
    # The log first: a kill between the two writes the line again, and `Record.go_on` drops the one before.
    record.write("final", state.update, chosen=chosen, candidates=results)
    run.must_be_held()
    checkpoint.save(
        run.model_folder,
        {checkpoint.MODEL: checkpoint.weights_of(model)},
        {"update": state.update, "chosen": chosen, "candidates": results, "ends": _ends(recipe)},
    )
    record.say(f"the model that translates: {chosen}, the best {by} on the validation set")
    return chosen


def final_update(run: Run) -> int | None:
    """The update that RUN/model was chosen at; None if there is no whole one."""
    final = final_choice(run)
    return None if final is None else int(final["update"])


def is_finished(run: Run, recipe: Recipe) -> bool:
    """Return whether the model was chosen, no checkpoint is newer, and the recipe still asks for the same end."""
    final = final_choice(run)
    if final is None or final["update"] < max(run.updates(), default=0):
        return False
    ends = _ends(recipe)
    return all(ends.get(name) == value for name, value in final.get("ends", {}).items())


def final_choice(run: Run) -> dict[str, Any] | None:
    """Return the state of RUN/model, which says how it was chosen; None if there is no whole one."""
    try:
        return checkpoint.verify(run.model_folder)
    except checkpoint.NewerFormat:
        raise
    except RunError:
        return None


def _ends(recipe: Recipe) -> dict[str, Any]:
    """Return the options that decide the end of training and the choice of the model."""
    train, valid = recipe.train, recipe.valid
    ends = {"updates": train.updates, "time_budget": train.time_budget, "patience": valid.patience}
    return {**ends, "metric": valid.metric, "average": train.average}


def _whole(run: Run, record: Record) -> dict[int, Path]:
    """The checkpoints that verify. One that was damaged since it was written must not end up in an average."""
    found = {}
    for update in run.updates():
        try:
            checkpoint.verify(run.checkpoint(update))
            found[update] = run.checkpoint(update)
        except RunError as error:
            record.say(f"left out a damaged checkpoint: {error}")
    if not found:
        raise RunError(f"{run.folder}: no checkpoint is whole, so no model can be chosen. See nmt-train --verify.")
    return found


def _candidates(recipe: Recipe, state: TrainState, updates: list[int]) -> list[tuple[str, list[int], str]]:
    """Name, updates of the checkpoints to average, and the file in them. updates: of the whole ones, oldest first."""
    metric, train = recipe.valid.metric, recipe.train
    last = updates[-1]
    found = [("last", [last], checkpoint.MODEL)]
    scores = {update: score for update, score in state.scores(metric).items() if update in updates}
    best_first = sorted(scores, key=lambda update: (-scores[update], update))
    if best_first and best_first[0] != last:
        found.append(("best", best_first[:1], checkpoint.MODEL))
    averaged = {"none": [], "last": updates[-train.keep_last :], "best": best_first[: train.keep_best]}[train.average]
    if len(averaged) > 1:
        found.append((f"average of {train.average} {len(averaged)}", averaged, checkpoint.MODEL))
    if train.ema:
        found.append(("moving average", [last], checkpoint.EMA))
    return found
