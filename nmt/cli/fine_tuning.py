"""The recipe by which nmt-preprocess --vocab-from RUN goes on from the weights of a run with other text."""

from pathlib import Path

from nmt.recipe.options import Recipe
from nmt.recipe.places import is_prepared
from nmt.recipe.reader import as_yaml, load_resolved
from nmt.run_folder import RECIPE, is_run

# About a seventh of the rates of a new run. The warm-up, auto, is a twentieth of the run, at most 200 updates.
_GENTLY = (("optim.lr", "3e-4"), ("optim.muon_lr", "6e-4"), ("train.updates", "5000"))
_OF_SUBWORDS = ("kind", "joint", "normalize", "symbols")


def is_trained(folder: Path) -> bool:
    """Return whether the folder is a run that has weights, and no prepared data."""
    has_weights = (folder / "model").is_dir() or any(folder.glob("checkpoints/update-*"))
    return is_run(folder) and not is_prepared(folder) and has_weights


def fine_tuned(folder: str) -> list[tuple[str, str]]:
    """Return what a recipe has to say to begin with the weights of a run: (dotted name, value as YAML)."""
    base: Recipe = load_resolved(Path(folder) / RECIPE)
    model = [name for name in type(base.model).model_fields if name not in base.model.useless]
    return [
        ("data.protect", as_yaml(base.data.protect)),
        *((f"subwords.{name}", as_yaml(getattr(base.subwords, name))) for name in _OF_SUBWORDS),
        *((f"model.{name}", as_yaml(getattr(base.model, name))) for name in model),
        ("train.init_from", folder),
        *_GENTLY,
    ]
