"""What can be seen of a run from outside: its files and its log."""

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
CLOCKS = ("seconds", "wall_seconds", "measure_seconds", "save_seconds", "stops")  # of state.json, and what stops made


def stop_at(n):
    """The wish to stop after n questions: the loop asks once an update."""
    questions = itertools.count()
    return lambda: next(questions) >= n


def stop_at_update(recipe, update):
    """The wish to stop at an update of a run that logs each one."""
    return lambda: max(logged(recipe, "train", "loss"), default=0) >= update - 1


def log_of(recipe, *kinds):
    """The lines of the log, or of some kinds."""
    file = Run(recipe.run_folder).log_file
    lines = [json.loads(line) for line in file.read_bytes().split(b"\n") if line] if file.exists() else []
    return [line for line in lines if not kinds or line["kind"] in kinds]


def logged(recipe, kind, what):
    """{update: number} of the log, each update at most once."""
    found = [(line["update"], line[what]) for line in log_of(recipe, kind)]
    assert len(dict(found)) == len(found)
    return dict(found)


def folder_of(recipe, update=None):
    """The folder of a checkpoint, or of the model that translates."""
    run = Run(recipe.run_folder)
    return run.model_folder if update is None else run.checkpoint(update)


def state_of(recipe, update=None):
    """What the state.json of a whole checkpoint says, or that of the model that translates."""
    return checkpoint.verify(folder_of(recipe, update))


def tensors(recipe, update, file=checkpoint.MODEL):
    """The tensors in a file of a checkpoint, by their names."""
    return checkpoint.load_tensors(folder_of(recipe, update), file)


def digest(recipe, update=None):
    """SHA-256 of the tensors of a whole checkpoint, or of the model that translates."""
    folder = folder_of(recipe, update)
    checkpoint.verify(folder)
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.glob("*.safetensors")}


def left_by(recipe):
    """All that a run leaves but for clocks, and the log: of each folder its state and the SHA-256 of its tensors."""
    run, found = Run(recipe.run_folder), {}
    for update in [*run.updates(), *([None] if run.model_folder.exists() else [])]:
        state = {name: told for name, told in state_of(recipe, update).items() if name not in CLOCKS}
        found[update] = digest(recipe, update), state
    return found


def engine_of(recipe, precision=FP32, dtype=None):
    """The data of a recipe, and an engine with a new model of it."""
    data = Prepared.open(recipe.data_folder)
    model = new_model(recipe, data, torch.device(precision.device)).to(dtype).train()
    return data, Engine(model, recipe, precision=precision, ranks=Ranks())


def plan_of(recipe):
    """The plan that a run of the recipe follows."""
    train, batch = Prepared.open(recipe.data_folder).train, recipe.batch
    sizes = {"max_tokens": batch.max_tokens, "per_update": batch.per_update, "pool": batch.pool}
    return Plan(train.src_len, train.trg_len, seed=recipe.seed, **sizes)
