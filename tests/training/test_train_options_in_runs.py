"""Each option of the section train that a whole run shows arrives there: see test_train_options.py for the others."""

import contextlib
import json
import re
import sys
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from nmt import checkpoint
from nmt.data.stored.corpus import Prepared
from nmt.errors import RunError
from nmt.run import Run
from nmt.training.engine import Engine
from nmt.training.starting import launch, materials
from nmt.training.validate import Validator
from tests.training.conftest import make_recipe
from tests.training.log.test_sinks import FakeWandb
from tests.training.test_log import log_of
from tests.training.test_options_arrive import Row, check, ids

ORIGIN, LAST = "../origin/runs/tiny", "update-00000008"  # a run, and its last checkpoint, which is not its best
# Eight updates are measured after every second one, and the first time they are best.
RUN = [
    Row("out", "there", "folder", "there"),
    Row("updates", 7, "kept", [2, 4, 6, 7]),
    Row("updates", 7, "logged", [7]),
    Row("updates", 7, "bar", 7),
    Row("updates", 7, "to_go", "7"),
    Row("time_budget", "5s", "outcome", "time"),
    Row("init_from", ORIGIN, "frozen_as_in", ["model"], {"freeze": "encoder.*"}),
    Row("init_from", f"{ORIGIN}/checkpoints/{LAST}", "frozen_as_in", [LAST], {"freeze": "encoder.*"}),
    Row("init_from", "nowhere", "folder", None),
    Row("freeze", "encoder.*", "still", {"encoder"}),
    Row("log_every", 3, "logged", [3, 6, 8]),
    Row("save_every", 7, "kept", [2, 6, 7, 8]),
    Row("keep_last", 2, "kept", [2, 6, 8]),
    Row("keep_last", 2, "candidates", ["last", "best", "average of last 2"]),
    Row("keep_best", 2, "kept", [2, 4, 6, 8], {"keep_last": 2}),
    Row("keep_best", 3, "candidates", ["last", "best", "average of best 3"], {"average": "best", "keep_best": 2}),
    Row("average", "none", "candidates", ["last", "best"]),
    Row("ema", 0.5, "candidates", ["last", "best", "average of last 3", "moving average"]),
    Row("ema", 0.5, "files", {checkpoint.MODEL, checkpoint.OPTIMIZER, checkpoint.EMA}),
    Row("tensorboard", True, "needed", {"tensorboard"}),
    Row("tensorboard", True, "heard", ["tensorboard"]),
    Row("wandb", True, "needed", {"wandb"}),
    Row("wandb", True, "heard", ["wandb"]),
]
OTHERS = {"perplexity": 9.0, "accuracy": 0.5}  # that a validation finds
FAST = {"updates": 8, "save_every": 100, "log_every": 100, "device": "cpu", "kernels": "torch"}


@pytest.fixture(scope="module")
def of_run(corpus, tmp_path_factory):
    """of_run(option=value, ...) -> what a run leaves behind, and what it says."""
    top, number, known = tmp_path_factory.mktemp("runs"), count(), {}

    def run(folder, patch, **options):
        folder.mkdir()
        patch.chdir(folder)
        recipe = make_recipe(
            corpus,
            "",
            batch={"per_update": 1},
            train={**FAST, "out": "", **options},
            valid={"every": 2, "metric": "loss", "translate": False},
        )
        found, wandb, clock, losses = SimpleNamespace(outcome="refused", needed=set()), FakeWandb(), [0.0], count(1)
        said = []
        backward, record = Engine.backward, launch.Record

        def slowly(*args, **named):
            clock[0] += 1
            backward(*args, **named)

        def noted(*args, **named):
            found.record = record(*args, **named)
            patch.setattr(found.record, "say", said.append)
            return found.record

        patch.setitem(sys.modules, "wandb", wandb)
        patch.setattr(materials, "require", lambda extra, _: found.needed.add(extra))
        patch.setattr(launch, "Record", noted)
        patch.setattr(Engine, "backward", slowly)
        patch.setattr(Validator, "measure", lambda *_: ({"loss": float(next(losses)), **OTHERS}, {}))
        with contextlib.suppress(RunError):
            found.outcome = launch.launch(recipe, clock=lambda: clock[0])
        made = next((path.parent for path in folder.rglob("recipe.yaml")), None)
        found.folder = made and made.relative_to(folder).as_posix()
        if made is None:
            return found
        run, state = Run(made), torch.get_rng_state()
        last = run.checkpoint(run.updates()[-1])
        weights = checkpoint.load_tensors(last, checkpoint.MODEL)
        first = checkpoint.weights_of(
            materials.new_model(recipe, Prepared.open(recipe.data_folder), torch.device("cpu"))
        )
        torch.set_rng_state(state)
        moved = {name.split(".")[0] for name in first if not torch.equal(first[name], weights[name])}
        found.still = {name.split(".")[0] for name in first} - moved
        found.frozen_as_in = []
        for place in (Run(ORIGIN).model_folder, Run(ORIGIN).checkpoints / LAST):
            origin = checkpoint.load_tensors(place, checkpoint.MODEL)
            if all(torch.equal(origin[name], weights[name]) for name in first if name.startswith("encoder.")):
                found.frozen_as_in.append(place.name)
        found.kept, found.files = run.updates(), {path.name for path in last.glob("*.safetensors")}
        found.logged = [line["update"] for line in log_of(recipe, "train")]
        found.candidates = list(log_of(recipe, "final")[0]["candidates"])
        found.bar = found.record.bar.total
        found.to_go = re.search(r"([\d,]+) updates to go", "".join(said))[1]
        found.heard = ["tensorboard"] * any(made.rglob("events.*")) + ["wandb"] * bool(wandb.begun)
        return found

    def seen(**options):
        key = json.dumps(options)
        if key not in known:
            with pytest.MonkeyPatch.context() as patch:
                known[key] = run(top / f"{next(number)}", patch, **options)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        run(top / "origin", patch)
    return seen


@pytest.mark.parametrize("row", RUN, ids=ids)
def test_a_run_is_what_an_option_says(row, of_run):
    check(row, of_run)
