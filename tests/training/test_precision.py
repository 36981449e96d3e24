"""The arithmetic of a run is chosen by measuring, and a machine that is busy now and then does not mislead it."""

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


@pytest.mark.parametrize(("faster", "name"), [(True, "bf16"), (False, "fp32")])
def test_bf16_is_taken_where_there_are_instructions_for_it(monkeypatch, faster, name):
    monkeypatch.setattr(room, "half_is_faster", lambda: faster)
    found = choose_precision(TrainConfig(), CPU)
    assert found.name == name and found.why.startswith(f"this processor has {'' if faster else 'no '}instr")


def test_who_asks_for_an_arithmetic_gets_it(monkeypatch):
    monkeypatch.setattr(room, "half_is_faster", None)
    for name in ("bf16", "fp32"):
        assert choose_precision(TrainConfig(precision=name), CPU).name == name


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
        assert ("has no bf16 instructions" in chosen.why) == slower
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
