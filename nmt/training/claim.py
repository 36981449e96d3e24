"""Before the first update: whose the run folder is, what was left in it, and which checkpoint to go on from."""

import json
import sys
from typing import Any

from nmt import checkpoint
from nmt.data.corpus import Prepared
from nmt.data.subwords import Subwords
from nmt.decoding.long_lines import usual_len
from nmt.errors import NmtError, RunError
from nmt.extras import version_and_commit
from nmt.files import write_durably
from nmt.recipe.options import Recipe
from nmt.recipe.places import DATA_AT
from nmt.recipe.reader import differences, kept, write_recipe
from nmt.run import SRC_STYLE, USUAL_RATIOS, USUAL_SRC_LEN, VERSION, Newest, Run
from nmt.training.budget import bound_to_length
from nmt.training.state import ENDS, refused_changes


def claim(run: Run, recipe: Recipe, data: Prepared) -> None:
    """Make a new run folder, or check that the one there is this recipe's. For who holds the lock.

    A folder in which nothing was saved yet is a new one: what was wrong with the recipe may have been mended.
    """
    refuse_other(run, recipe, data)
    if run.begun:
        origin = {"init_from": run.recipe().train.init_from}  # its own, whether the recipe still names it or not
        recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update=origin)})
        _note_data(run, checkpoint.read_json(run.data_file), data)
    else:
        write_durably(run.subwords_file, (recipe.data_folder / run.subwords_file.name).read_bytes())
        learnt = {
            USUAL_SRC_LEN: usual_len(data.train.src_len),
            USUAL_RATIOS: data.usual_ratios(),
            SRC_STYLE: data.src_style(),
        }
        about = {**_fingerprint(data), **learnt}
        _note_data(run, about, data)
    write_recipe(kept(recipe, run.recipe_file), run.recipe_file)  # last: it marks the folder as a run


def _note_data(run: Run, about: dict[str, Any], data: Prepared) -> None:
    """Write what a run knows of its data, where that is, as it is found from any folder, and what trains it now."""
    told = {VERSION: version_and_commit(), DATA_AT: str(data.folder.absolute())}
    text = json.dumps({**about, **told}, indent=1) + "\n"
    write_durably(run.data_file, text.encode("utf-8"))


def refuse_other(run: Run, recipe: Recipe, data: Prepared) -> None:
    """Raise RunError where a folder is that of another run than this recipe's, or no run's. Nothing is written."""
    if run.begun:
        begun = run.recipe()
        bound = bound_to_length(recipe)
        changed = differences(begun.model_dump(mode="json"), recipe.model_dump(mode="json"))
        if refused := refused_changes(changed, may_end=not bound):
            shown = "; ".join(f"{name} was {old!r}, now {new!r}" for name, (old, new) in sorted(refused.items()))
            hang = bound and not refused.keys().isdisjoint(ENDS)
            why = f" The length of the run stays, since it is what {' and '.join(bound)} goes by." if hang else ""
            raise RunError(
                f"{run.folder} is a run with other options: {shown}.{why} To go on with it, give the options it began "
                "with; to train anew, or on from its weights (--train.init_from), name another folder with "
                "--train.out, or another --name."
            )
        known, wanted = checkpoint.read_json(run.data_file), _fingerprint(data)
        if not isinstance(known, dict) or {name: known.get(name) for name in wanted} != wanted:
            raise RunError(
                f"{run.folder} was trained on other data than {recipe.data_folder} holds now. Prepare that data again, "
                "or train into another folder with --train.out."
            )
    elif not run.exists and run.folder.is_dir() and not _is_only_begun(run):
        raise RunError(f"{run.folder} has files in it but is no run of ours. Name another folder with --train.out.")


def _fingerprint(data: Prepared) -> dict[str, str]:
    """By what a run knows the data that it was trained on."""
    return {"train": data.train.fingerprint, "valid": data.valid.fingerprint, "subwords": data.subwords.sha256}


def _is_only_begun(run: Run) -> bool:
    """Return whether a folder without a recipe is empty or holds only what a killed start wrote."""
    names = {path.name for path in run.folder.iterdir()} - {"lock"}
    if not names <= {run.subwords_file.name, run.data_file.name}:
        return False
    try:
        if run.subwords_file.name in names:
            Subwords.load(run.subwords_file)
        if run.data_file.name not in names:
            return True
        known = set(checkpoint.read_json(run.data_file)) - {USUAL_SRC_LEN, USUAL_RATIOS, SRC_STYLE, VERSION, DATA_AT}
        return known == {"train", "valid", "subwords"}
    except (NmtError, TypeError):
        return False


def needed_of(recipe: Recipe) -> tuple[str, ...]:
    """The files that a checkpoint must have for a run of this recipe to go on from it."""
    return (checkpoint.OPTIMIZER, checkpoint.EMA) if recipe.train.ema else (checkpoint.OPTIMIZER,)


def find_start(run: Run, recipe: Recipe) -> Newest:
    """The newest whole checkpoint; none for a new run. Damaged ones are set aside and named. For who holds the lock.

    Raises RunError when there are checkpoints and none is whole, and when only a model is left of a run.
    """
    found = run.newest_whole(needed_of(recipe))
    if found.folder is None and not found.damaged and run.model_folder.exists():
        raise RunError(
            f"{run.folder} has a model and no checkpoint, so training cannot go on. Another run may begin with its "
            "weights: name it with --train.out, and --train.init_from with this folder."
        )
    if found.folder is None and found.damaged:
        raise RunError(
            f"{run.folder}: no checkpoint is whole, so training cannot go on: {' '.join(found.damaged.values())} "
            f"Remove {run.checkpoints} to start again."
        )
    for folder, complaint in found.damaged.items():
        place = run.set_aside(folder)
        print(f"passed over a damaged checkpoint: {complaint} It is now {place}.", file=sys.stderr)
    return found
