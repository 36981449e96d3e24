"""Two processes are one process: same pairs, same losses, same weights."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nmt import checkpoint
from nmt.recipe.reader import write_recipe
from nmt.run import Run
from nmt.training import launch as room
from nmt.training.launch import launch
from nmt.training.parallel import Ranks

WORKER = Path(__file__).with_name("worker.py")


@pytest.mark.parametrize("n_batch, world_size", [(1, 1), (4, 2), (3, 2), (1, 4), (7, 3)])
def test_every_batch_counts_on_exactly_one_rank_and_all_ranks_have_equally_many(n_batch, world_size):
    batches = list(range(n_batch))
    shares = [Ranks(rank, world_size).share(batches) for rank in range(world_size)]
    assert sorted(batch for share in shares for batch, counts in share if counts) == batches
    assert len({len(share) for share in shares}) == 1


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run_on_two(recipe, folder, worker=WORKER, *args):
    """What torchrun does, without its start-up time: two processes that find each other by the environment.

    args: what each rank is told beside the recipe, with {rank} for its number.
    """
    file = folder / "recipe.yaml"
    write_recipe(recipe, file)
    here = str(Path(__file__).parents[2])
    group = {
        "PYTHONPATH": here,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(worker), str(file), *(arg.replace("{rank}", str(rank)) for arg in args)],
            env={**os.environ, **group, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=300)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], said
    return said


def logged(recipe, what="loss"):
    lines = [json.loads(line) for line in Run(recipe.run_folder).log_file.read_bytes().split(b"\n") if line]
    return {(line["kind"], line["update"]): line[what] for line in lines if what in line and line["kind"] != "start"}


REGULARIZED = {"r_drop": 5.0, "r_drop_from": 0.4, "src_word_dropout": 0.1, "trg_word_dropout": 0.1, "layer_drop": 0.4}


@pytest.mark.parametrize("option", [{}, {"split_rate": 0.2}, {"regularize": REGULARIZED}], ids=lambda o: "".join(o))
def test_two_processes_give_the_losses_and_weights_of_one(recipe_of, tmp_path, monkeypatch, option):
    # Three batches an update: the ranks have unequally many. Dropout is on: masks do not depend on the rank.
    batch = {"max_tokens": 80, "per_update": 3, "split_rate": option.get("split_rate", 0.0)}
    sections = {"batch": batch, "train": {"log_every": 1, "updates": 20}, "regularize": option.get("regularize", {})}
    one, two = recipe_of("one", **sections), recipe_of("two", **sections)
    double = not option
    if double:  # where rounding hides nothing; in fp32 Adam makes much of it
        make = room.new_model
        monkeypatch.setattr(room, "new_model", lambda *args: make(*args).double())
    launch(one)
    said = run_on_two(two, tmp_path, WORKER, *(["double"] if double else []))
    assert "update 20" in said[0] and "update" not in said[1]  # the second rank is silent
    # Losses are summed in fp32 either way. Adam and clipping hide the size of a gradient; its norm does not.
    for what, bound in (("loss", 1e-6 if double else 2e-6), ("gradient_norm", 1e-12 if double else 1e-4)):
        a, b = logged(one, what), logged(two, what)
        assert a.keys() == b.keys() and len(a) >= 20
        assert b == pytest.approx(a, rel=bound, abs=0)
    weights = [
        checkpoint.load_tensors(Run(recipe.run_folder).checkpoint(20), checkpoint.MODEL) for recipe in (one, two)
    ]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], rtol=0, atol=1e-11 if double else 2e-5)


def test_a_run_begun_on_two_processes_goes_on_with_one(recipe_of, tmp_path):
    sections = {"train": {"updates": 10}}
    recipe = recipe_of("both", optim={"schedule": "constant"}, **sections)
    run_on_two(recipe, tmp_path)
    run = Run(recipe.run_folder)
    assert run.updates()[-1] == 10
    model, name = run.load_model(torch.device("cpu"))
    assert name == "model" and not model.training
