"""Whether what a run folder holds is whole: every checkpoint and the chosen model, file by file. Nothing is changed."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from nmt import checkpoint
from nmt.data.vocabulary.subwords import PAD
from nmt.errors import NmtError, RunError
from nmt.models.base import TranslationModel
from nmt.models.build import build_model
from nmt.recipe.options import Recipe
from nmt.run import Run
from nmt.training.optim import is_count
from nmt.training.starting.claim import needed_of


@dataclass(frozen=True)
class Finding:
    """What was found out about one folder. complaint: '' where it is whole. update: None where it cannot be read."""

    name: str
    update: int | None
    complaint: str


def folders_of(run: Run) -> list[Path]:
    """What there is to verify: the checkpoints, oldest first, and the model that was chosen, if it was.

    Whatever has the name of one. Raises RunError if what should hold the checkpoints is no folder.
    """
    if os.path.lexists(run.checkpoints) and not run.checkpoints.is_dir():
        raise RunError(f"{run.checkpoints}: is no folder, so there is no checkpoint in it: it was replaced.")
    there = run.checkpoints.iterdir() if run.checkpoints.is_dir() else ()
    updates = sorted(update for path in there if (update := checkpoint.update_of(path)) is not None)
    chosen = [run.model_folder] if os.path.lexists(run.model_folder) else []
    return [*map(run.checkpoint, updates), *chosen]


def verify_run(run: Run) -> Iterator[Finding]:
    """One finding for each of `folders_of`, after checking that recipe and subwords are the run's."""
    recipe, subwords = run.recipe(), run.subwords()
    told = checkpoint.read_json(run.data_file)
    if not isinstance(told, dict) or told.get("subwords") != subwords.sha256:
        raise RunError(f"{run.data_file}: does not say which subwords the run was trained with: it was changed.")
    with torch.device("meta"):  # names and shapes without memory
        model = build_model(recipe.model, subwords.src.n_vocab, subwords.trg.n_vocab, PAD)
    for folder in folders_of(run):
        try:
            yield Finding(folder.name, _verified(folder, recipe, model, chosen=folder == run.model_folder), "")
        except NmtError as error:
            if os.path.lexists(folder):  # else a training under way has deleted it meanwhile
                yield Finding(folder.name, checkpoint.update_of(folder), str(error))


def _verified(folder: Path, recipe: Recipe, model: TranslationModel, *, chosen: bool) -> int:
    """The update of a checkpoint that is whole and fits the model; RunError for any other."""
    state = checkpoint.verify(folder, () if chosen else needed_of(recipe))
    shapes = {name: tensor.shape for name, tensor in checkpoint.weights_of(model).items()}
    for file in (checkpoint.MODEL, checkpoint.EMA):
        if (folder / file).exists():
            weights = checkpoint.load_tensors(folder, file)
            checkpoint.load_weights(model, weights, str(folder / file))
            for name, tensor in weights.items():
                if not bool(torch.isfinite(tensor).all()):
                    raise RunError(f"{folder / file}: {name} holds numbers that are not finite.")
    if not chosen:
        for key, tensor in checkpoint.load_tensors(folder, checkpoint.OPTIMIZER).items():
            name, _, _ = key.partition("|")
            fits = tensor.shape in (shapes[name], torch.Size()) if name in shapes else is_count(key)
            if not fits:
                raise RunError(f"{folder / checkpoint.OPTIMIZER}: {key} {tuple(tensor.shape)} fits no parameter.")
    return int(state["update"])
