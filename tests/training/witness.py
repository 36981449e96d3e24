"""Files and log of a run, as tests compare them."""

import hashlib
import itertools
import json

import torch

from nmt import checkpoint
from nmt.data.corpus import Prepared
from nmt.data.plan import Plan
from nmt.run import Run
from nmt.training.engine import Engine
from nmt.training.materials import new_model
from nmt.training.parallel import Ranks
from nmt.training.precision import Precision

CPU = torch.device("cpu")
FP32 = Precision("fp32", "", "cpu")
CLOCKS = ("seconds", "wall_seconds", "measure_seconds", "save_seconds", "stops")  # in state.json: times and stops


def stop_at(n):
    """Return a stop function that is true after n calls: the loop calls it once an update."""
    calls = itertools.count()
    return lambda: next(calls) >= n


def stop_at_update(recipe, update):
    """Return a stop function that is true at an update of a run that logs each one."""
    return lambda: max(logged(recipe, "train", "loss"), default=0) >= update - 1


def log_of(recipe, *kinds):
    """Return the lines of the log, or those of some kinds."""
    file = Run(recipe.run_folder).log_file
    lines = [json.loads(line) for line in file.read_bytes().split(b"\n") if line] if file.exists() else []
    return [line for line in lines if not kinds or line["kind"] in kinds]


def logged(recipe, kind, field):
    """Return {update: value} of the log, each update at most once."""
    values = [(line["update"], line[field]) for line in log_of(recipe, kind)]
    assert len(dict(values)) == len(values)
    return dict(values)


def folder_of(recipe, update=None):
    """Return the folder of a checkpoint, or of the final model."""
    run = Run(recipe.run_folder)
    return run.model_folder if update is None else run.checkpoint(update)


def state_of(recipe, update=None):
    """Verify a checkpoint, or the final model, and return its state.json."""
    return checkpoint.verify(folder_of(recipe, update))


def tensors(recipe, update, file=checkpoint.MODEL):
    """Return the tensors in a file of a checkpoint by name."""
    return checkpoint.load_tensors(folder_of(recipe, update), file)


def digest(recipe, update=None):
    """Verify a checkpoint, or the final model, and return the SHA-256 of its tensors."""
    folder = folder_of(recipe, update)
    checkpoint.verify(folder)
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.glob("*.safetensors")}


def saved_by(recipe):
    """Return state (without clocks) and SHA-256 of the tensors for each checkpoint and the final model of a run."""
    run, saved = Run(recipe.run_folder), {}
    for update in [*run.updates(), *([None] if run.model_folder.exists() else [])]:
        state = {name: value for name, value in state_of(recipe, update).items() if name not in CLOCKS}
        saved[update] = digest(recipe, update), state
    return saved


def engine_of(recipe, precision=FP32, dtype=None):
    """Return the data of a recipe, and an engine with a new model."""
    data = Prepared.open(recipe.data_folder)
    model = new_model(recipe, data, torch.device(precision.device)).to(dtype).train()
    return data, Engine(model, recipe, precision=precision, ranks=Ranks())


def plan_of(recipe):
    """Return the plan that a run of the recipe follows."""
    train, batch = Prepared.open(recipe.data_folder).train, recipe.batch
    sizes = {"max_tokens": batch.max_tokens, "per_update": batch.per_update, "pool": batch.pool}
    return Plan(train.src_len, train.trg_len, seed=recipe.seed, **sizes)
