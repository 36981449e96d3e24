"""What can be seen of a run from outside: its files, its log, and which pairs moved the weights."""

import hashlib
import json

from nmt import checkpoint
from nmt.data.corpus import Prepared
from nmt.data.plan import Plan
from nmt.data.subwords import PAD
from nmt.run import Run
from nmt.training import launch as room
from nmt.training.engine import Engine


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


def pairs_of(recipe):
    """Every training pair as a pair of id lists, in the order of the corpus."""
    train = Prepared.open(recipe.data_folder).train
    return [(src.tolist(), trg.tolist()) for src, trg in zip(*train.pairs(range(train.n_pair)), strict=True)]


def real(row):
    return [number for number in row.tolist() if number != PAD]


def sentences(seq, packing):
    """Those of padded rows, or of one row where they lie end to end."""
    if packing is None:
        return list(seq)
    return list(seq[0].split(packing.start.diff().tolist()))


def witness(model, seen, change=lambda sources, hidden: hidden):
    """Note in `seen` each pair whose states receive a gradient. change: of a batch's source sentences and states."""
    decode_hidden = model.decode_hidden

    def watched(src_seq, trg_seq, packing=None):
        of_src, of_trg = packing or (None, None)
        sources = sentences(src_seq, of_src)
        hidden = change(sources, decode_hidden(src_seq, trg_seq, packing))
        if hidden.requires_grad:

            def note(gradient):
                targets, moves = sentences(trg_seq, of_trg), sentences(gradient, of_trg)
                for src, trg, moved in zip(sources, targets, moves, strict=True):
                    if moved.any():
                        seen.append((real(src)[:-1], real(trg)[1:]))  # without EOS, without BOS

            hidden.register_hook(note)
        return hidden

    model.decode_hidden = watched
    return model


def without_rehearsals(backward, seen):
    """Engine.backward that forgets what was seen in a call of itself from within: its gradient moves nothing."""
    depth = 0

    def watched(engine, *args, **options):
        nonlocal depth
        depth, before = depth + 1, len(seen)
        backward(engine, *args, **options)
        depth -= 1
        if depth:
            del seen[before:]

    return watched


def train_in_legs(recipe, lengths):
    """Train for so many updates, go on for as many more as the next number says, and so on; None: to the end.

    Returns the pairs that moved the weights in each leg.
    """
    make, backward, legs = room.new_model, Engine.backward, []
    try:
        for length in lengths:
            seen = []
            legs.append(seen)
            room.new_model = lambda *args, seen=seen: witness(make(*args), seen)
            Engine.backward = without_rehearsals(backward, seen)
            room.launch(recipe, StopAt(length - 1) if length else lambda: False)
    finally:
        room.new_model, Engine.backward = make, backward
    return legs
