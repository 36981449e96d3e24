"""The arithmetic of a run is chosen by measuring, and a machine that is busy now and then does not mislead it."""

import itertools
from pathlib import Path

import pytest
import torch

from nmt import ops
from nmt.errors import MachineError
from nmt.recipe.training_options import TrainConfig
from nmt.training import precision as room
from nmt.training.check import check
from nmt.training.launch import launch
from nmt.training.precision import choose_precision
from nmt.training.selftest import selftest

CPU = torch.device("cpu")


@pytest.fixture
def seconds(monkeypatch):
    """Makes a product of each way take so long, and twice as long whenever the machine is busy: now and then."""
    monkeypatch.setattr(room, "_speeds", room._speeds.__wrapped__)

    def take(fp32, onednn, bf16, *, honest=True, tried=None):
        monkeypatch.setattr(room, "_SHAPE", (4, 4, 4))
        times = {(torch.float32, False): fp32, (torch.float32, True): onednn, (torch.bfloat16, False): bf16}
        busy = itertools.cycle([2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0])

        def timed(product, switched):
            seconds = times[product().dtype, switched]
            if tried is not None:
                tried.append(seconds)
            return seconds * next(busy)

        monkeypatch.setattr(room, "_timed", timed)
        monkeypatch.setattr(room, "onednn_is_honest", lambda: honest)
        return choose_precision(TrainConfig(kernels="torch"), CPU)

    return take


@pytest.mark.parametrize(
    ("times", "honest", "name", "fast"),
    [
        ((1.0, 1.1, 3.0), True, "fp32", False),
        ((1.0, 0.9, 0.9), True, "fp32", False),  # faster, but not worth another arithmetic
        ((1.0, 0.5, 0.45), True, "fp32", True),
        ((1.0, 0.5, 0.45), False, "bf16", False),  # oneDNN cheats: then bf16 must beat the usual fp32
        ((1.0, 0.5, 0.2), True, "bf16", True),
        ((1.0, float("inf"), 2.0), True, "fp32", False),  # a torch without oneDNN
    ],
)
def test_the_fastest_honest_arithmetic_that_is_worth_it_is_taken(seconds, times, honest, name, fast):
    found = seconds(*times, honest=honest)
    assert found.name == name
    assert found.fast_fp32 == (fast and name == "fp32")
    assert found.why.startswith("measured: fp32 ") and ("oneDNN" in found.why) == fast


def test_measuring_leaves_the_switches_as_they_were(monkeypatch):
    monkeypatch.setattr(room, "_SHAPE", (64, 32, 64))
    switches = room._mkldnn_matmul()
    try:
        for before in ("bf16", "none"):
            switches.fp32_precision = before
            room._speeds.cache_clear()  # or nothing would be measured
            choose_precision(TrainConfig(), CPU)
            assert switches.fp32_precision == before
    finally:
        switches.fp32_precision = "none"
        room._speeds.cache_clear()


def is_switched():
    return room._mkldnn_matmul().fp32_precision == "bf16"


@pytest.mark.parametrize(("rounds", "honest"), [(True, False), (False, True)])
def test_a_path_that_rounds_to_bf16_is_not_honest(rounds, honest, monkeypatch):
    monkeypatch.setattr(room, "_SHAPE", (64, 512, 64))

    def multiply(a, b):
        if rounds and is_switched():
            a, b = a.bfloat16().float(), b.bfloat16().float()
        return (a.double() @ b.double().t()).to(a.dtype)

    assert room.onednn_is_honest(multiply) == honest


def test_who_asks_for_an_arithmetic_gets_it_unmeasured(monkeypatch):
    monkeypatch.setattr(room, "_speeds", None)
    for name in ("bf16", "fp32"):
        assert choose_precision(TrainConfig(precision=name), CPU).name == name
    with pytest.raises(MachineError, match="fp16 needs a GPU"):
        choose_precision(TrainConfig(precision="fp16"), CPU)


@pytest.mark.parametrize("slow", [True, False])
def test_validation_of_bf16_is_in_fp32_where_torch_is_slow_in_that(slow, monkeypatch):
    monkeypatch.setattr(ops, "kernels_here", lambda: ops.Kernels("", bf16_in_fp32=slow))
    x = torch.ones(2, 2)
    for how in ("auto", "torch"):
        chosen = choose_precision(TrainConfig(precision="bf16", kernels=how), CPU)
        slower = slow and chosen.kernels
        with chosen.measuring():
            assert (x @ x).dtype == (torch.float32 if slower else torch.bfloat16)
        with chosen.autocast():
            assert (x @ x).dtype == torch.bfloat16
        assert ("has no instructions for bf16" in chosen.why) == slower
    plain = choose_precision(TrainConfig(precision="fp32"), CPU)
    with plain.measuring():
        assert (x @ x).dtype == torch.float32
    assert "bf16" not in plain.why


@pytest.mark.parametrize("begin", [launch, lambda recipe: check(recipe, print), lambda recipe: list(selftest(recipe))])
def test_a_gpu_that_is_not_there_ends_training_as_it_ends_translation(recipe_of, begin, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    recipe = recipe_of(train={"device": "cuda"})
    with pytest.raises(MachineError, match=r"--train\.device cuda: cannot be used: torch sees no GPU") as error:
        begin(recipe)
    assert error.value.exit_code == 2
    assert not Path(recipe.run_folder).exists()
