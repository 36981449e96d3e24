"""Any number of devices, and either way to lie on them, gives the run of one; and no rank waits for a dead one."""

import itertools
import json
import os
import socket
import warnings

import pytest
import torch

from nmt import checkpoint
from nmt.data.corpus import Prepared
from nmt.data.plan import Plan, Position
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


def test_ddp_neither_sends_buffers_nor_warns_of_its_options():
    group = torch.distributed
    group.init_process_group("gloo", store=group.HashStore(), rank=0, world_size=1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            module = Ranks(world_size=2).distribute(torch.nn.BatchNorm1d(3), torch.device("cpu"), "ddp")
        assert not module.will_sync_module_buffers()
    finally:
        group.destroy_process_group()


def logged(recipe):
    lines = [json.loads(line) for line in Run(recipe.run_folder).log_file.read_bytes().split(b"\n") if line]
    losses = {(line["kind"], line["update"]): line["loss"] for line in lines if line["kind"] in ("train", "valid")}
    # Adam forgives a gradient that is wrong by a factor; its norm does not.
    norms = {("norm", line["update"]): line["gradient_norm"] for line in lines if line["kind"] == "train"}
    return losses | norms


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
TRAIN = {"log_every": 1, "updates": 6, "save_every": 4, "ema": 0.9, "average": "none"}
VALID = {"every": 4, "translate": False, "metric": "loss"}
REGULARIZED = {"r_drop": 5.0, "r_drop_from": 0.4, "src_word_dropout": 0.1, "trg_word_dropout": 0.1, "layer_drop": 0.4}
REGULARIZED["noise"] = {"upper": 0.2, "title": 0.2, "typo": 0.2}
SMOOTH = {"ffn": "gelu"}  # a relu whose input is zero but for rounding falls to either side
VARIANTS = {
    "regularized": (("fsdp",), {"model": SMOOTH, "batch": BATCH, "regularize": REGULARIZED}),
    "adam": (("ddp", "fsdp"), {"batch": {**BATCH, "bpe_dropout": 0.2}, "model": {**SMOOTH, "d_inner": 33}}),
    "muon": (
        ("fsdp",),
        {
            "model": SMOOTH,
            "batch": {**BATCH, "bpe_dropout": 0.2},
            "optim": {"name": "muon", "muon_lr": 3e-3, "weight_decay": 0.1},
        },
    ),
    # Where a sentence is longer than the table of positions, each rank makes its own table longer.
    "uneven": (("ddp",), {"model": {**SMOOTH, "n_position": 3}, "batch": {"max_tokens": 940, "per_update": 3}}),
}


def test_two_devices_in_either_way_give_the_losses_and_weights_of_one(recipe_of, start):
    train = {**TRAIN, "updates": 4}
    runs = {
        (name, way): recipe_of(f"{name}-{way}", train={**train, "parallel": way}, valid=VALID, **sections)
        for name, (ways, sections) in VARIANTS.items()
        for way in ways
    }
    group = start(*runs.values())
    ones = {
        name: recipe_of(f"{name}-one", train=train, valid=VALID, **sections) for name, (_, sections) in VARIANTS.items()
    }
    for one in ones.values():
        launch(one)
    assert group.wait() == [0, 0], group.words(1)
    assert "update 4" in group.words(0) and "update" not in group.words(1)  # the second rank is silent
    for (name, _), several in runs.items():
        a, b = logged(ones[name]), logged(several)
        assert a.keys() == b.keys() and len(a) > 8
        assert all(abs(a[key] - b[key]) <= 1e-6 * a[key] for key in a), (name, a, b)
        assert_same_run(ones[name], several, 4, bound=1e-5)
    # Both add up the same numbers: what is apart is the last bit or two.
    assert_same_run(runs["adam", "ddp"], runs["adam", "fsdp"], 4, bound=2 * torch.finfo(torch.float32).eps)
    model, where = Run(runs["adam", "fsdp"].run_folder).load_model(torch.device("cpu"))
    assert where == "model" and not model.training
    # One rank has two large batches where the other has a small one and nothing.
    plan = plan_of(ones["uneven"])
    sizes = [
        [plan.n_gold([rows]) for rows in plan.at(Position(0, update))[0]] for update in range(len(plan.updates(0)))
    ]
    assert any(len(update) == 3 and max(update) > 20 * min(update) for update in sizes), sizes


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


def test_a_run_moves_between_numbers_of_devices_and_ways_to_use_them(recipe_of, start):
    sections = {"model": {**SMOOTH, "d_inner": 33}, "batch": BATCH, "valid": VALID}
    ways = [recipe_of("moving", train={**TRAIN, "parallel": way}, **sections) for way in ("ddp", "ddp", "fsdp")]
    # Only the second rank wants to stop, and both do, at the same update.
    group = start(ways[0], fault={"1": ["stop", 3]})
    whole = recipe_of("whole", train=TRAIN, **sections)
    launch(whole)
    assert group.wait() == [0, 0], group.words(1)
    run = Run(whole.run_folder.with_name("moving"))
    assert run.updates() == [3]
    assert launch(ways[1], itertools.chain([False], itertools.repeat(True)).__next__) == "stopped"
    assert run.updates()[-1] == 4  # the stop came in the validation, which is made up for
    group = start(ways[2])
    assert group.wait() == [0, 0], group.words(1)
    assert "going on from update-00000004" in group.words(0)
    assert_same_run(whole, ways[2], 6, bound=1e-5)
    a, b = logged(whole), logged(ways[2])
    assert a.keys() == b.keys() and all(abs(a[key] - b[key]) <= 1e-6 * a[key] for key in a)


def who(group, rank):
    return f"rank {rank} (process {group.processes[rank]} on {socket.gethostname()})"


# What happens to which rank, what the other one says before it ends with 1, and how the first may end. A connection
# that breaks is noticed before the timeout. Who is only stuck has a watch of its own, which may end it before it is
# killed.
FAULTS = {
    "killed": (1, "SIGKILL", "{who} is dead or frozen: nothing was heard of it for", {-9}),
    "stuck": (1, "hang", "{who} has been stuck for 12 s (train.timeout), alive but without getting on", {-9, 1}),
    "in error": (1, "error", "{who} stopped with an error: RuntimeError: a wheel came off", {1}),
    "of other weights": (1, "drift", "update 4: {who} holds other weights", {1}),
    "rank 0 frozen": (0, "SIGSTOP", "{who} is dead or frozen: it holds the ranks together at 127.0.0.1:", {-9}),
}


def test_a_rank_that_is_lost_ends_the_run_within_the_timeout_and_is_named(recipe_of, start):
    # Twice five processes begin together: on two busy cores the first update alone takes seconds.
    train = {**TRAIN, "timeout": 12.0, "updates": 1000}
    groups = {}
    for name, (rank, what, _, _) in FAULTS.items():
        recipe = recipe_of(name.replace(" ", "-"), train=train, valid={**VALID, "every": 1000})
        groups[name] = start(recipe, fault={str(rank): [what, 3]})
    for name, (rank, _, words, codes) in FAULTS.items():
        group = groups[name]
        found = group.wait(80)
        said = group.words(1 - rank)
        assert found[rank] in codes and found[1 - rank] == 1, (name, found, said)
        assert "nmt-train: error: " + words.format(who=who(group, rank)) in said, (name, said)
        assert "Traceback" not in said


def test_what_is_wrong_with_the_recipe_is_told_by_rank_0_and_ends_all_ranks_with_2(recipe_of, start):
    launch(recipe_of(train={**TRAIN, "updates": 1}, valid=VALID))
    group = start(recipe_of(train={**TRAIN, "updates": 1, "ema": 0.5}, valid=VALID))
    assert group.wait() == [2, 2], group.words(0) + group.words(1)
    assert "is a run with other options: train.ema was " in group.words(0)
    assert f"{who(group, 0)} stopped with an error: " in group.words(1)


def test_a_long_task_of_rank_0_trips_no_timeout(recipe_of, start):
    recipe = recipe_of(train={**TRAIN, "timeout": 2.0, "updates": 2, "ema": 0.0}, valid={**VALID, "every": 2})
    group = start(recipe, slow_validation=3.0)
    assert group.wait() == [0, 0], group.words(0) + group.words(1)


def test_a_rank_that_never_comes_is_named(recipe_of, start):
    recipe = recipe_of(train={**TRAIN, "timeout": 1.0})
    group = start(recipe, absent=[1])
    assert group.wait() == [1]
    assert "for the other processes of 2: rank 1 has not come" in group.words(0) or "did not meet" in group.words(0)


def test_torchrun_restarts_a_killed_worker_and_the_run_ends_at_the_same_bytes(recipe_of, start):
    sections = {"batch": BATCH, "train": TRAIN, "valid": VALID}
    undisturbed, hurt = recipe_of("undisturbed", **sections), recipe_of("hurt", **sections)
    # With three ranks, each with a batch of every update, the order of a sum over ranks shows in its last bit.
    torchrun = start(hurt, how="elastic", world_size=3, max_restarts=1, fault={"1": ["SIGKILL", 6]})
    other = start(undisturbed, world_size=3)
    assert other.wait() == [0, 0, 0] and torchrun.wait() == [0], torchrun.words(0)
    assert "going on from update-00000004" in torchrun.words(0)
    assert_same_run(undisturbed, hurt, 6, bound=0.0)
    assert logged(undisturbed) == logged(hurt)
