"""Optimizers that do without torch's compiler are torch's own, and an ordinary training does not import it either."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from nmt.recipe.reader import write_recipe
from nmt.recipe.training_options import OptimConfig
from nmt.training.optim import build_optimizers

TRAINING = """
import sys
from nmt.cli.train import main
code = main([sys.argv[1]])
print(code, "torch._dynamo" in sys.modules)
"""


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_they_move_weights_as_torchs_do(name, kind):
    shared = ("add_param_group", "zero_grad")
    assert all(getattr(kind, method) is getattr(torch.optim.Optimizer, method) for method in shared)
    torch.manual_seed(0)
    options = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.3}
    mine, other = nn.Linear(5, 4), nn.Linear(5, 4)
    other.load_state_dict(mine.state_dict())
    optimizers = build_optimizers(mine, OptimConfig(name=name, **options))
    optimizers.set_rate(1.0, absolute=False)
    groups = [{"params": [other.weight]}, {"params": [other.bias], "weight_decay": 0.0}]
    torchs = kind(groups, fused=True, **options)
    for update in range(4):
        for here, there in zip(mine.parameters(), other.parameters(), strict=True):
            here.grad = torch.randn_like(here)
            there.grad = here.grad.clone()
        for optimizer in (optimizers.parts[0][0], torchs):
            vars(optimizer).update(grad_scale=None, found_inf=torch.tensor(float(update == 2)))  # which skips it
            optimizer.step()
        assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), other.parameters(), strict=True))
    optimizers.zero_grad()
    assert all(param.grad is None for param in mine.parameters())


@pytest.mark.parametrize(
    "sections",
    [
        {"optim": {"name": "adamw"}, "train": {"ema": 0.9}},
        {
            "optim": {"name": "muon"},
            "batch": {"packed": True, "max_tokens": 300},
            "model": {"n_head": 1, "attn_dropout": 0.0, "lexical_attn": False},
        },
    ],
    ids=["adamw", "muon, packed"],
)
def test_a_training_does_without_the_compiler(recipe_of, tmp_path, sections):
    """It takes three times as long to import as torch does."""
    train = {"updates": 4, "save_every": 2, **sections.pop("train", {})}
    recipe = recipe_of(train=train, valid={"every": 2, "max_sentences": 2}, **sections)
    write_recipe(recipe, tmp_path / "recipe.yaml")
    command = [sys.executable, "-c", TRAINING, str(tmp_path / "recipe.yaml")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, check=False)
    assert done.stdout == "0 False\n", done.stderr
