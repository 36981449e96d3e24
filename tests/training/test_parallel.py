"""Runs on several devices equal the run on one, with ddp and with fsdp; and no rank waits for a dead one."""

import os
import socket

import pytest
import torch
from witness import log_of, plan_of, stop_at, tensors

from nmt import checkpoint
from nmt.errors import MachineError
from nmt.run import Run
from nmt.training.launch import launch
from nmt.training.parallel import Ranks, join

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the ranks are forked")


@pytest.mark.parametrize("n_batch, world_size", [(1, 1), (4, 2), (3, 2), (1, 4), (7, 3)])
def test_every_batch_counts_on_one_rank_and_all_ranks_have_equally_many(n_batch, world_size):
    batches = list(range(n_batch))
    shares = [Ranks(rank, world_size).share(batches) for rank in range(world_size)]
    assert sorted(batch for share in shares for batch, counts in share if counts) == batches
    assert len({len(share) for share in shares}) == 1


@pytest.mark.parametrize("port", ["", "abc"])
def test_invalid_address_of_the_other_ranks_is_named(monkeypatch, port):
    address = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in address.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(MachineError, match=rf"the 1 others at 127\.0\.0\.1:{port} within 1 s .*ValueError"):
        join(torch.device("cpu"), 1.0)


def losses_and_norms(recipe):
    lines = log_of(recipe, "train", "valid")
    losses = {(line["kind"], line["update"]): line["loss"] for line in lines}
    # Adam forgives a gradient that is wrong by a factor; its norm does not.
    norms = {("norm", line["update"]): line["gradient_norm"] for line in lines if line["kind"] == "train"}
    return losses | norms


def assert_same_run(first, second, update, bound):
    """Assert that weights, moments and average agree to `bound` of their norm (single numbers near zero may not), and
    the log to the sixth digit."""
    files = (checkpoint.MODEL, checkpoint.OPTIMIZER, checkpoint.EMA)
    a, b = (
        {f"{file}/{name}": tensor for file in files for name, tensor in tensors(recipe, update, file).items()}
        for recipe in (first, second)
    )
    assert a.keys() == b.keys() and len(a) > 20
    distance = {name: float((tensor - b[name]).norm() / (tensor.norm() + 1e-9)) for name, tensor in a.items()}
    assert max(distance.values()) <= bound, {name: value for name, value in distance.items() if value > bound}
    a, b = losses_and_norms(first), losses_and_norms(second)
    assert a.keys() == b.keys() and len(a) > 8
    assert all(abs(a[key] - b[key]) <= min(bound, 1e-6) * a[key] for key in a), (a, b)


# Ranks have unequal numbers of batches, of unequal size; masks and splits do not depend on the rank; a rank holds half
# a vector of 33; sentences are longer than the table of positions, which each rank extends by itself.
BATCH = {"max_tokens": 80, "per_update": 3, "bpe_dropout": 0.2}
TRAIN = {"log_every": 1, "updates": 4, "save_every": 4, "ema": 0.9, "average": "none"}
VALID = {"every": 4, "translate": False, "metric": "loss"}
REGULARIZED = {"r_drop": 5.0, "src_word_dropout": 0.1, "trg_word_dropout": 0.1}
REGULARIZED["noise"] = {"upper": 0.2, "title": 0.2, "typo": 0.2}
SMOOTH = {"ffn": "gelu", "d_inner": 33, "n_position": 3}  # a relu of an input that is zero up to rounding may differ
VARIANTS = {
    "adam": (("ddp", "fsdp"), {}),
    "muon": (("fsdp",), {"optim": {"name": "muon", "muon_lr": 3e-3, "weight_decay": 0.1}, "regularize": REGULARIZED}),
}


def test_two_devices_give_the_losses_and_weights_of_one(recipe_of, start_ranks):
    def recipe(name, mode, sections):
        train = {**TRAIN, "parallel": mode}
        return recipe_of(f"{name}-{mode}", train=train, valid=VALID, batch=BATCH, model=SMOOTH, **sections)

    runs = {(name, mode): recipe(name, mode, options) for name, (modes, options) in VARIANTS.items() for mode in modes}
    group = start_ranks(*runs.values())
    singles = {name: recipe_of(f"{name}-one", train=TRAIN, valid=VALID, batch=BATCH, model=SMOOTH, **options)
               for name, (_, options) in VARIANTS.items()}  # fmt: skip
    for single in singles.values():
        launch(single)
    assert group.wait() == [0, 0], group.stderr_of(1)
    assert "update 4" in group.stderr_of(0) and "update" not in group.stderr_of(1)  # the second rank is silent
    for (name, _), parallel in runs.items():
        assert_same_run(singles[name], parallel, 4, bound=1e-5)
    # Both add up the same numbers: only the last bit or two may differ.
    assert_same_run(runs["adam", "ddp"], runs["adam", "fsdp"], 4, bound=2 * torch.finfo(torch.float32).eps)
    model, source = Run(runs["adam", "fsdp"].run_folder).load_model(torch.device("cpu"))
    assert source == "model" and not model.training


def test_run_may_change_its_number_of_devices_and_parallel_mode(recipe_of, start_ranks):
    sections = {"model": SMOOTH, "batch": BATCH, "valid": VALID}
    train = {**TRAIN, "updates": 6}
    recipes = [recipe_of("moving", train={**train, "parallel": mode}, **sections) for mode in ("ddp", "ddp", "fsdp")]
    # Only the second rank is asked to stop, but both stop at the same update.
    group = start_ranks(recipes[0], fault={1: ["stop", 3]})
    uninterrupted = recipe_of("whole", train=train, **sections)
    launch(uninterrupted)
    plan = plan_of(uninterrupted)
    assert any(len(update) % 2 for update in plan.updates(0))
    assert group.wait() == [0, 0], group.stderr_of(1)
    run = Run(recipes[0].run_folder)
    assert run.updates() == [3]
    assert launch(recipes[1], stop_at(1)) == "stopped"
    assert run.updates()[-1] == 4  # the stop came in the validation, which is repeated
    group = start_ranks(recipes[2])
    assert group.wait() == [0, 0], group.stderr_of(1)
    assert "resuming from update-00000004" in group.stderr_of(0)
    assert_same_run(uninterrupted, recipes[2], 6, bound=1e-5)


# Fault of the second rank; exit codes of both; message of the first.
FAULTS = {
    "killed": ({"fault": {1: ["SIGKILL", 3]}}, [1, -9], "rank 0 lost contact with another rank"),
    "stuck": ({"fault": {1: ["hang", 3]}}, [1, 1], "rank 0 lost contact with another rank"),
    "in error": ({"fault": {1: ["error", 3]}}, [1, 1], "stopped with an error: RuntimeError: a wheel came off"),
    "of other weights": ({"fault": {1: ["drift", 3]}}, [1, 1], "update 4: weights or position of rank 1 differ"),
    "absent": ({"absent": [1]}, [1], "within 1 s (train.timeout): "),
}


def test_lost_rank_ends_the_run_within_the_timeout(recipe_of, start_ranks):
    groups = {}
    for name, (faults, _, _) in FAULTS.items():
        # Many processes begin together: on two busy cores the first update alone takes seconds.
        train = {**TRAIN, "timeout": 1.0 if name == "absent" else 12.0, "updates": 1000}
        recipe = recipe_of(name.replace(" ", "-"), train=train, valid={**VALID, "every": 1000})
        groups[name] = start_ranks(recipe, **faults)
    for name, (_, codes, message) in FAULTS.items():
        group = groups[name]
        assert group.wait(80) == codes, (name, group.stderr_of(0))
        assert message in group.stderr_of(0), (name, group.stderr_of(0))
        assert "Traceback" not in group.stderr_of(0)
    failed_rank = f"rank 1 (process {groups['in error'].processes[1].pid} on {socket.gethostname()})"
    assert f"nmt-train: error: {failed_rank} stopped with an error: " in groups["in error"].stderr_of(0)


def test_run_is_unchanged_when_torchrun_restarts_a_killed_worker(recipe_of, start_ranks):
    sections = {"batch": BATCH, "train": {**TRAIN, "updates": 6}, "valid": VALID}
    uninterrupted, killed = recipe_of("undisturbed", **sections), recipe_of("hurt", **sections)
    # With three ranks, each with a batch of every update, the order of a sum over ranks shows in its last bit.
    killed_group = start_ranks(killed, torchrun=True, world_size=3, fault={1: ["SIGKILL", 6]})
    group = start_ranks(uninterrupted, world_size=3)
    assert group.wait() == [0, 0, 0] and killed_group.wait() == [0], killed_group.stderr_of(0)
    assert "resuming from update-00000004" in killed_group.stderr_of(0)
    assert_same_run(uninterrupted, killed, 6, bound=0.0)
