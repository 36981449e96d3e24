"""The end of a run: which weights become the model that translation uses."""

from pathlib import Path

from torch import Tensor

from nmt import checkpoint
from nmt.models.base import TranslationModel
from nmt.recipe.options import Recipe
from nmt.run import Run
from nmt.training.record import Record
from nmt.training.state import TrainState, goodness
from nmt.training.validate import Validator, describe


def choose_final(
    recipe: Recipe, run: Run, model: TranslationModel, state: TrainState, validator: Validator, record: Record
) -> str:
    """Measure the candidates on the validation set and write the best as RUN/model. Returns its name.

    Candidates: the last and the best checkpoint, the average of the last or best N, the moving average; of equals the
    first in this order.
    """
    metric = recipe.valid.metric
    results: dict[str, dict[str, float]] = {}
    known = {int(entry["update"]): entry for entry in state.history}
    chosen, chosen_weights = "", dict[str, Tensor]()
    for name, folders, file in _candidates(recipe, run, state):
        weights = checkpoint.average(folders) if file == checkpoint.MODEL else checkpoint.load_tensors(folders[0], file)
        update = checkpoint.update_of(folders[0])
        if len(folders) == 1 and file == checkpoint.MODEL and update in known:
            results[name] = {number: known[update][number] for number in validator.names if number in known[update]}
        else:
            checkpoint.load_weights(model, weights, name)
            results[name], _ = validator.measure(model)
        record.say(f"{name:>12}  " + describe(state.update, results[name]))
        if not chosen or goodness(results[name], metric) > goodness(results[chosen], metric):
            chosen, chosen_weights = name, weights
    checkpoint.load_weights(model, chosen_weights, chosen)
    checkpoint.save(
        run.model_folder,
        {checkpoint.MODEL: checkpoint.weights_of(model)},
        {"update": state.update, "chosen": chosen, "candidates": results},
    )
    record.write("final", state.update, chosen=chosen, candidates=results)
    record.say(f"the model that translates: {chosen}, the best {metric} on the validation set")
    return chosen


def final_update(run: Run) -> int | None:
    """The update that RUN/model was chosen at; None if there is no whole one."""
    if not (run.model_folder / checkpoint.MANIFEST).is_file():
        return None
    return int(checkpoint.verify(run.model_folder)["update"])


def _candidates(recipe: Recipe, run: Run, state: TrainState) -> list[tuple[str, list[Path], str]]:
    """Name, checkpoints to average, and the file in them."""
    metric, train = recipe.valid.metric, recipe.train
    updates = run.updates()
    last = run.checkpoint(updates[-1])
    found = [("last", [last], checkpoint.MODEL)]
    scores = {update: score for update, score in state.scores(metric).items() if update in updates}
    best_first = sorted(scores, key=lambda update: (-scores[update], update))
    if best_first and best_first[0] != updates[-1]:
        found.append(("best", [run.checkpoint(best_first[0])], checkpoint.MODEL))
    averaged = {"none": [], "last": updates[-train.keep_last :], "best": best_first[: train.keep_best]}[train.average]
    if len(averaged) > 1:
        name = f"average of {train.average} {len(averaged)}"
        found.append((name, [run.checkpoint(update) for update in averaged], checkpoint.MODEL))
    if train.ema:
        found.append(("moving average", [last], checkpoint.EMA))
    return found
