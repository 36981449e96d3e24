"""Any number of devices, and either way to lie on them, gives the run of one; and no rank waits for a dead one."""

import os
import socket

import pytest
import torch
from witness import log_of, plan_of, stop_at, tensors

from nmt import checkpoint
from nmt.data.plan import Position
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


def logged(recipe):
    lines = log_of(recipe, "train", "valid")
    losses = {(line["kind"], line["update"]): line["loss"] for line in lines}
    # Adam forgives a gradient that is wrong by a factor; its norm does not.
    norms = {("norm", line["update"]): line["gradient_norm"] for line in lines if line["kind"] == "train"}
    return losses | norms


def assert_same_run(one, other, update, bound):
    """Weights, moments and average agree but for `bound` of their size (single numbers near zero may not), and the
    log does to the sixth digit."""
    files = (checkpoint.MODEL, checkpoint.OPTIMIZER, checkpoint.EMA)
    a, b = (
        {f"{file}/{name}": tensor for file in files for name, tensor in tensors(recipe, update, file).items()}
        for recipe in (one, other)
    )
    assert a.keys() == b.keys() and len(a) > 20
    apart = {name: float((tensor - b[name]).norm() / (tensor.norm() + 1e-9)) for name, tensor in a.items()}
    assert max(apart.values()) <= bound, {name: value for name, value in apart.items() if value > bound}
    a, b = logged(one), logged(other)
    assert a.keys() == b.keys() and len(a) > 8
    assert all(abs(a[key] - b[key]) <= min(bound, 1e-6) * a[key] for key in a), (a, b)


# The ranks have unequally many batches, of unequal size; masks and splits do not depend on the rank; a rank has half a
# vector of 33; a sentence is longer than the table of positions, which each rank makes longer by itself.
BATCH = {"max_tokens": 80, "per_update": 3, "bpe_dropout": 0.2}
TRAIN = {"log_every": 1, "updates": 4, "save_every": 4, "ema": 0.9, "average": "none"}
VALID = {"every": 4, "translate": False, "metric": "loss"}
REGULARIZED = {"r_drop": 5.0, "src_word_dropout": 0.1, "trg_word_dropout": 0.1}
REGULARIZED["noise"] = {"upper": 0.2, "title": 0.2, "typo": 0.2}
SMOOTH = {"ffn": "gelu", "d_inner": 33, "n_position": 3}  # a relu whose input is zero but for rounding falls either way
VARIANTS = {
    "adam": (("ddp", "fsdp"), {}),
    "muon": (("fsdp",), {"optim": {"name": "muon", "muon_lr": 3e-3, "weight_decay": 0.1}, "regularize": REGULARIZED}),
}


def test_two_devices_in_either_way_give_the_losses_and_weights_of_one(recipe_of, start):
    def recipe(name, way, sections):
        train = {**TRAIN, "parallel": way}
        return recipe_of(f"{name}-{way}", train=train, valid=VALID, batch=BATCH, model=SMOOTH, **sections)

    runs = {(name, way): recipe(name, way, more) for name, (ways, more) in VARIANTS.items() for way in ways}
    group = start(*runs.values())
    ones = {name: recipe_of(f"{name}-one", train=TRAIN, valid=VALID, batch=BATCH, model=SMOOTH, **more)
            for name, (_, more) in VARIANTS.items()}  # fmt: skip
    for one in ones.values():
        launch(one)
    assert group.wait() == [0, 0], group.words(1)
    assert "update 4" in group.words(0) and "update" not in group.words(1)  # the second rank is silent
    for (name, _), several in runs.items():
        assert_same_run(ones[name], several, 4, bound=1e-5)
    # Both add up the same numbers: what is apart is the last bit or two.
    assert_same_run(runs["adam", "ddp"], runs["adam", "fsdp"], 4, bound=2 * torch.finfo(torch.float32).eps)
    model, where = Run(runs["adam", "fsdp"].run_folder).load_model(torch.device("cpu"))
    assert where == "model" and not model.training


def test_a_run_moves_between_numbers_of_devices_and_ways_to_use_them(recipe_of, start):
    sections = {"model": SMOOTH, "batch": BATCH, "valid": VALID}
    train = {**TRAIN, "updates": 6}
    ways = [recipe_of("moving", train={**train, "parallel": way}, **sections) for way in ("ddp", "ddp", "fsdp")]
    # Only the second rank wants to stop, and both do, at the same update.
    group = start(ways[0], fault={1: ["stop", 3]})
    whole = recipe_of("whole", train=train, **sections)
    launch(whole)
    plan = plan_of(whole)
    assert any(len(update) % 2 for update in plan.updates(0)), plan.at(Position())
    assert group.wait() == [0, 0], group.words(1)
    run = Run(ways[0].run_folder)
    assert run.updates() == [3]
    assert launch(ways[1], stop_at(1)) == "stopped"
    assert run.updates()[-1] == 4  # the stop came in the validation, which is made up for
    group = start(ways[2])
    assert group.wait() == [0, 0], group.words(1)
    assert "resuming from update-00000004" in group.words(0)
    assert_same_run(whole, ways[2], 6, bound=1e-5)


# What happens to the second rank, at which update; how both end; and what the first one says.
FAULTS = {
    "killed": ({"fault": {1: ["SIGKILL", 3]}}, [1, -9], "rank 0 lost contact with another rank"),
    "stuck": ({"fault": {1: ["hang", 3]}}, [1, 1], "rank 0 lost contact with another rank"),
    "in error": ({"fault": {1: ["error", 3]}}, [1, 1], "stopped with an error: RuntimeError: a wheel came off"),
    "of other weights": ({"fault": {1: ["drift", 3]}}, [1, 1], "update 4: weights or position of rank 1 differ"),
    "absent": ({"absent": [1]}, [1], "within 1 s (train.timeout): "),
}


def test_a_rank_that_is_lost_ends_the_run_within_the_timeout(recipe_of, start):
    groups = {}
    for name, (faults, _, _) in FAULTS.items():
        # Many processes begin together: on two busy cores the first update alone takes seconds.
        train = {**TRAIN, "timeout": 1.0 if name == "absent" else 12.0, "updates": 1000}
        recipe = recipe_of(name.replace(" ", "-"), train=train, valid={**VALID, "every": 1000})
        groups[name] = start(recipe, **faults)
    for name, (_, codes, words) in FAULTS.items():
        group = groups[name]
        assert group.wait(80) == codes, (name, group.words(0))
        assert words in group.words(0), (name, group.words(0))
        assert "Traceback" not in group.words(0)
    other = f"rank 1 (process {groups['in error'].processes[1].pid} on {socket.gethostname()})"
    assert f"nmt-train: error: {other} stopped with an error: " in groups["in error"].words(0)


def test_torchrun_restarts_a_killed_worker_and_the_run_ends_at_the_same_bytes(recipe_of, start):
    sections = {"batch": BATCH, "train": {**TRAIN, "updates": 6}, "valid": VALID}
    undisturbed, hurt = recipe_of("undisturbed", **sections), recipe_of("hurt", **sections)
    # With three ranks, each with a batch of every update, the order of a sum over ranks shows in its last bit.
    torchrun = start(hurt, torchrun=True, world_size=3, fault={1: ["SIGKILL", 6]})
    other = start(undisturbed, world_size=3)
    assert other.wait() == [0, 0, 0] and torchrun.wait() == [0], torchrun.words(0)
    assert "resuming from update-00000004" in torchrun.words(0)
    assert_same_run(undisturbed, hurt, 6, bound=0.0)
