"""Any number of devices, and either way to lie on them, gives the run of one; and no rank waits for a dead one."""

import itertools
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from nmt import checkpoint
from nmt.data.corpus import Prepared
from nmt.data.plan import Plan, Position
from nmt.recipe.reader import write_recipe
from nmt.run import Run
from nmt.training.launch import launch
from nmt.training.parallel import Ranks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the ranks are forked")


@pytest.mark.parametrize("n_batch, world_size", [(1, 1), (4, 2), (3, 2), (1, 4), (7, 3)])
def test_every_batch_counts_on_exactly_one_rank_and_all_ranks_have_equally_many(n_batch, world_size):
    batches = list(range(n_batch))
    shares = [Ranks(rank, world_size).share(batches) for rank in range(world_size)]
    assert sorted(batch for share in shares for batch, counts in share if counts) == batches
    assert len({len(share) for share in shares}) == 1


class Group:
    """Ranks of one run. said: what each printed to stderr."""

    def __init__(self, ask, processes, said):
        self.ask, self.processes, self.said = ask, processes, said

    def wait(self, seconds=120):
        return self.ask({"wait": {"processes": self.processes, "seconds": seconds}})

    def words(self, rank):
        return Path(f"{self.said}.{rank}").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def ask():
    here = Path(__file__)
    server = subprocess.Popen(
        [sys.executable, str(here.with_name("ranks.py"))],
        env={**os.environ, "PYTHONPATH": str(here.parents[2]), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )

    def ask(question):
        server.stdin.write(json.dumps(question) + "\n")
        server.stdin.flush()
        return json.loads(server.stdout.readline())

    yield ask
    server.stdin.close()
    server.wait(10)


@pytest.fixture
def start(ask, tmp_path):
    """start(recipe, ..., fault={rank: [what, at which update]}) -> Group that trains them one after the other."""
    number = itertools.count()

    def start(*recipes, world_size=2, how="launch", **more):
        files = []
        for recipe in recipes:
            files.append(str(tmp_path / f"recipe{next(number)}.yaml"))
            write_recipe(recipe, Path(files[-1]))
        job = {"recipes": files, "world_size": world_size, "said": str(tmp_path / f"said{next(number)}"), **more}
        return Group(ask, ask({how: job}), job["said"])

    return start


def logged(recipe):
    lines = [json.loads(line) for line in Run(recipe.run_folder).log_file.read_bytes().split(b"\n") if line]
    return {(line["kind"], line["update"]): line["loss"] for line in lines if line["kind"] in ("train", "valid")}


def tensors(recipe, update):
    folder = Run(recipe.run_folder).checkpoint(update)
    files = (checkpoint.MODEL, checkpoint.OPTIMIZER, checkpoint.EMA)
    return {
        f"{file}/{name}": tensor
        for file in files
        if (folder / file).exists()
        for name, tensor in checkpoint.load_tensors(folder, file).items()
    }


def assert_same_run(one, other, update, bound):
    """Weights, moments and average agree but for `bound` of their size: single numbers near zero may not."""
    a, b = tensors(one, update), tensors(other, update)
    assert a.keys() == b.keys() and len(a) > 20
    apart = {name: float((tensor - b[name]).norm() / (tensor.norm() + 1e-9)) for name, tensor in a.items()}
    assert max(apart.values()) <= bound, {name: value for name, value in apart.items() if value > bound}


# The ranks have unequally many batches; masks and splits do not depend on the rank; a rank has half a vector of 33.
BATCH = {"max_tokens": 80, "per_update": 3}
TRAIN = {"log_every": 1, "updates": 12, "ema": 0.9}
VARIANTS = {
    "adam": {"batch": {**BATCH, "split_rate": 0.2}, "model": {"d_inner": 33}},
    "muon": {"batch": BATCH, "optim": {"name": "muon", "muon_lr": 3e-3, "weight_decay": 0.1}},
    "uneven": {"batch": {"max_tokens": 700, "per_update": 3}},
}


def test_two_devices_in_either_way_give_the_losses_and_weights_of_one(recipe_of, start):
    runs = {
        (name, way): recipe_of(f"{name}-{way}", train={**TRAIN, "parallel": way if way != "one" else "ddp"}, **sections)
        for name, sections in VARIANTS.items()
        for way in ("one", "ddp", "fsdp")
    }
    group = start(*(recipe for (_, way), recipe in runs.items() if way != "one"))
    for name in VARIANTS:
        launch(runs[name, "one"])
    assert group.wait() == [0, 0], group.words(1)
    assert "update 12" in group.words(0) and "update" not in group.words(1)  # the second rank is silent
    for name in VARIANTS:
        one, ddp, fsdp = (runs[name, way] for way in ("one", "ddp", "fsdp"))
        for other in (ddp, fsdp):
            a, b = logged(one), logged(other)
            assert a.keys() == b.keys() and len(a) > 12
            assert all(abs(a[key] - b[key]) <= 1e-6 * a[key] for key in a), (name, a, b)
            assert_same_run(one, other, 12, bound=2e-6)
        assert_same_run(ddp, fsdp, 12, bound=2e-7)
        model, where = Run(fsdp.run_folder).load_model(torch.device("cpu"))
        assert where == "model" and not model.training
    # The third variant is what it is called.
    plan = plan_of(runs["uneven", "one"])
    sizes = [[plan.n_gold([rows]) for rows in plan.at(Position(0, update))[0]] for update in range(len(plan.updates(0)))]
    assert any(len(update) % 2 and max(update) > 5 * min(update) for update in sizes), sizes


def plan_of(recipe):
    train, batch = Prepared.open(recipe.data_folder).train, recipe.batch
    return Plan(
        train.src_len,
        train.trg_len,
        seed=recipe.seed,
        max_tokens=batch.max_tokens,
        per_update=batch.per_update,
        pool=batch.pool,
    )
