"""What can be seen of a run from outside: its files and its log."""

import hashlib
import json

from nmt import checkpoint
from nmt.data.corpus import Prepared
from nmt.data.plan import Plan
from nmt.run import Run


class StopAt:
    """Wants to stop after a number of questions: the loop asks once an update."""

    def __init__(self, n):
        self.left = n

    def __call__(self):
        self.left -= 1
        return self.left < 0


class StopAtUpdate:
    """Wants to stop at an update of a run that logs each one."""

    def __init__(self, recipe, update):
        self.recipe, self.update = recipe, update

    def __call__(self):
        return max(logged(self.recipe, "train", "loss"), default=0) >= self.update - 1


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


CLOCKS = ("seconds", "wall_seconds", "measure_seconds", "save_seconds", "stops")  # of state.json, and what stops made


def left_by(recipe):
    """All that a run leaves but for clocks, and the log: of each folder its state and the SHA-256 of its tensors."""
    run, found = Run(recipe.run_folder), {}
    for folder in [*([run.model_folder] if run.model_folder.exists() else []), *map(run.checkpoint, run.updates())]:
        state = {name: told for name, told in checkpoint.verify(folder).items() if name not in CLOCKS}
        files = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.glob("*.safetensors")}
        found[folder.name] = (files, state)
    return found


def digest(recipe, update=None):
    """SHA-256 of the tensors of a checkpoint, or of the model that translates."""
    run = Run(recipe.run_folder)
    folder = run.model_folder if update is None else run.checkpoint(update)
    checkpoint.verify(folder)
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.glob("*.safetensors")}


def final_update(run):
    """The update that the model was chosen at."""
    return checkpoint.verify(run.model_folder)["update"]


def plan_of(recipe):
    """The plan that a run of the recipe follows."""
    train, batch = Prepared.open(recipe.data_folder).train, recipe.batch
    sizes = {"max_tokens": batch.max_tokens, "per_update": batch.per_update, "pool": batch.pool}
    return Plan(train.src_len, train.trg_len, seed=recipe.seed, **sizes)
