"""What a recipe asks for before anything is trained or measured: packages, prepared data, a model."""

import shlex
from collections.abc import Callable
from typing import Any

import torch

from nmt.data.stored.corpus import Prepared
from nmt.data.stored.manifest import flags_of_settings
from nmt.data.vocabulary.subwords import PAD
from nmt.errors import DataError
from nmt.extras import require
from nmt.models.base import TranslationModel
from nmt.models.build import build_model
from nmt.recipe.options import Recipe
from nmt.training.optimizers.named import freeze
from nmt.training.precision import choose_precision
from nmt.training.starting.trial import Trial


def require_extras(recipe: Recipe, *, logs: bool = True) -> None:
    """Raise MachineError where a package that training takes is not installed. logs: this rank writes the log, too."""
    if recipe.optim.name == "schedulefree":
        require("schedulefree", "optim.name: schedulefree")
    for extra, is_wanted in (("tensorboard", recipe.train.tensorboard), ("wandb", recipe.train.wandb)):
        if is_wanted and logs:
            require(extra, f"train.{extra}")


def open_data(recipe: Recipe) -> Prepared:
    """The prepared data of a recipe, after checking that it was made from this recipe's data and subwords."""
    folder = recipe.data_folder
    if not folder.exists():
        command = shlex.join(["nmt-preprocess", str(recipe.origin.file or "RECIPE")])
        raise DataError(
            f"data.out: no prepared data at {recipe.data_name}: {recipe.origin.tried('data.out', recipe.data_name)}. "
            f"Make it: {command}; or name the folder: --data.out FOLDER"
        )
    data = Prepared.open(folder)
    if changed := data.differences(recipe):
        told = [f"{folder} was prepared with other settings: {'; '.join(changed)}."]
        flags, settled = flags_of_settings(data.settings, recipe)
        if flags:
            told.append(f"To train on this data, give nmt-train the options that it was made with: {flags}")
        if rest := [one for one in changed if one.partition(": ")[0] not in settled]:
            told.append(f"No flag gives this; the recipe's lists of corpora have to: {'; '.join(rest)}.")
        told.append("For other data, run nmt-preprocess again with --overwrite, or give the recipe another data.out.")
        raise DataError("\n".join(told))
    return data


def new_model(recipe: Recipe, data: Prepared, device: torch.device) -> TranslationModel:
    """The model of a recipe with its first weights, which follow from the seed."""
    torch.manual_seed(recipe.seed % 2**63)  # which takes no more
    model = build_model(recipe.model, data.subwords.src.n_vocab, data.subwords.trg.n_vocab, PAD).to(device)
    if recipe.train.checkpoint_activations:
        model.recompute_activations()
    if recipe.train.compile:
        compile_parts(model, recipe)
    return model


def compile_parts(model: TranslationModel, recipe: Recipe) -> None:
    """Compile the large parts of a model in place: no wrapper, so no parameter changes its name."""
    seq = torch.full((1, recipe.data.max_len + 1), PAD, device=model.device)
    with torch.no_grad():
        model.decode_hidden(seq, seq)  # tables of positions that grew later would have it compiled again
    stacks = [part for part in model.children() if list(part.children())]  # in one matrix there is nothing to fuse
    # A stack whose layers come and go would be compiled for every choice of them.
    for part in model.layers if recipe.regularize.layer_drop else stacks:
        part.compile(dynamic=not recipe.batch.packed, options=_how_to_compile(recipe.train.cuda_graphs))


def _how_to_compile(cuda_graphs: bool) -> dict[str, str | int | bool | Callable[..., Any]]:
    """Options of torch's compiler."""
    from torch._inductor import list_options  # which brings the compiler with it

    found: dict[str, str | int | bool | Callable[..., Any]] = {"triton.cudagraphs": cuda_graphs}
    # On a GPU it takes sums over rows and over columns, as the gradient of a norm is made of, for one pass; where rows
    # are as short as here that takes longer than two: base trained 7 % slower on an H200.
    if (together := "triton.mix_order_reduction") in list_options():
        found[together] = False
    return found


def make_trial(recipe: Recipe, data: Prepared, device: torch.device) -> Trial:
    """A model of the recipe to try batches on, in the arithmetic that a new run would have."""
    precision = choose_precision(recipe.train, device)
    precision.apply()
    model = new_model(recipe, data, device)
    freeze(model, recipe.train.freeze)
    return Trial(recipe, data, model, precision)
