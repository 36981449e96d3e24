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
from nmt.training.launch import _same_precision, launch
from nmt.training.parallel import Ranks
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


@pytest.mark.parametrize(
    ("in_panels", "onednn", "bf16", "name", "taken"),
    [
        (0.95, 1.0, 0.3, "fp32", True),  # as fast without zeros
        (0.85, 1.0, 0.3, "fp32", False),
        (1.7, 2.0, 0.3, "fp32", False),
        (1.9, 2.0, 2.4, "fp32", True),
        (1.9, 1.0, 2.4, "fp32", True),  # bf16 is not worth it beside them
        (1.0, 1.0, 1.4, "bf16", True),  # for what stays in fp32
        (0.8, 1.0, 1.4, "bf16", False),
    ],
)
def test_panels_for_avx_512_are_taken_where_they_are_fast(in_panels, onednn, bf16, name, taken, monkeypatch):
    known = {"fp32": 1.0, "fp32 through oneDNN": onednn, "bf16": bf16}
    monkeypatch.setattr(room, "onednn_is_honest", lambda: True)
    monkeypatch.setattr(ops, "kernels_here", lambda: ops.Kernels("", multiply_fp32=True, wide_panels=True))
    monkeypatch.setattr(room, "_speeds", lambda panels: {**known, **({"fp32 in panels": in_panels} if panels else {})})
    found = choose_precision(TrainConfig(), CPU)
    assert (found.name, found.panels) == (name, taken)
    assert ("in kernels, which leave out zeros" in found.why) == (in_panels > 0.9 * max(1.0, onednn))
    assert not choose_precision(TrainConfig(kernels="torch"), CPU).panels


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_who_names_the_arithmetic_has_panels_wherever_there_are_any(name, monkeypatch):
    for has in (True, False):
        monkeypatch.setattr(ops, "kernels_here", lambda has=has: ops.Kernels("", wide_panels=has))
        assert choose_precision(TrainConfig(precision=name), CPU).panels is has
        assert not choose_precision(TrainConfig(precision=name, kernels="torch"), CPU).panels


def test_a_run_goes_on_in_the_panels_that_it_began_in(recipe_of, monkeypatch):
    used = []
    monkeypatch.setattr(ops, "kernels_here", lambda: ops.Kernels(""))
    monkeypatch.setattr(ops, "use_kernels", lambda wanted, *, wide_panels: used.append((wanted, wide_panels)))
    began = {"name": "fp32", "device": "cpu", "fast_fp32": False, "kernels": True}
    for known, wide in (({}, False), ({"panels": False}, False), ({"panels": True}, True)):
        found = _same_precision(recipe_of(), {"arithmetic": {**began, **known}}, CPU, Ranks())
        assert found.panels is wide
        found.apply()
        assert used.pop() == (True, wide)


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
