"""Precision of a run: as the recipe says, or by the instructions of the processor."""

from pathlib import Path

import pytest
import torch

from nmt import ops
from nmt.errors import MachineError
from nmt.recipe.training_options import TrainConfig
from nmt.training import precision as precision_module
from nmt.training.check import check, selftest
from nmt.training.launch import launch
from nmt.training.precision import choose_precision

CPU = torch.device("cpu")


@pytest.mark.parametrize(("faster", "name"), [(True, "bf16"), (False, "fp32")])
def test_bf16_is_chosen_where_the_processor_has_instructions_for_it(monkeypatch, faster, name):
    monkeypatch.setattr(precision_module, "half_is_faster", lambda: faster)
    chosen = choose_precision(TrainConfig(), CPU)
    assert chosen.name == name and chosen.why.startswith(f"this processor has {'' if faster else 'no '}instr")


def test_requested_precision_is_used(monkeypatch):
    monkeypatch.setattr(precision_module, "half_is_faster", None)
    for name in ("bf16", "fp32"):
        assert choose_precision(TrainConfig(precision=name), CPU).name == name


@pytest.mark.parametrize("slow", [True, False])
def test_bf16_run_validates_in_fp32_where_bf16_is_slow(slow, monkeypatch):
    monkeypatch.setattr(ops, "why_no_kernels", str)
    monkeypatch.setattr(ops, "bf16_in_fp32", lambda: slow)
    x = torch.ones(2, 2)
    for kernels in ("auto", "torch"):
        chosen = choose_precision(TrainConfig(precision="bf16", kernels=kernels), CPU)
        in_fp32 = slow and chosen.kernels
        assert chosen.has_fast_bf16 == (chosen.kernels and not slow)
        with chosen.measuring():
            assert (x @ x).dtype == (torch.float32 if in_fp32 else torch.bfloat16)
        with chosen.autocast():
            assert (x @ x).dtype == torch.bfloat16
        assert ("has no bf16 instructions" in chosen.why) == in_fp32
    plain = choose_precision(TrainConfig(precision="fp32"), CPU)
    with plain.measuring():
        assert (x @ x).dtype == torch.float32
    assert "bf16" not in plain.why and not plain.has_fast_bf16


@pytest.mark.parametrize("begin", [launch, lambda recipe: check(recipe, print), lambda recipe: list(selftest(recipe))])
def test_missing_gpu_is_a_user_error(recipe_of, begin, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    recipe = recipe_of(train={"device": "cuda"})
    with pytest.raises(MachineError, match=r"--train\.device cuda: cannot be used: torch sees no GPU") as error:
        begin(recipe)
    assert error.value.exit_code == 2
    assert not Path(recipe.run_folder).exists()
