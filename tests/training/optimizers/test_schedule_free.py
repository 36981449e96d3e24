"""Schedule-free AdamW against its paper, and what is saved of it."""

import sys

import pytest
import torch
from torch import nn

from nmt import checkpoint
from nmt.errors import MachineError
from nmt.recipe.training_options import OptimConfig
from nmt.run import Run
from nmt.training.launch import launch
from nmt.training.optim import build_optimizers

CONFIG = OptimConfig(name="schedulefree", schedule="constant", lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.2)


def test_weights_are_those_of_the_paper():
    """Defazio et al. 2024, algorithm 1, with a warm-up of three updates that our schedule makes."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3, bias=False).double()
    x = z = model.weight.detach().clone()
    v, weights, highest = torch.zeros_like(x), 0.0, 0.0
    optimizers = build_optimizers(model, CONFIG)
    for t in range(1, 9):
        y = 0.1 * z + 0.9 * x
        torch.testing.assert_close(model.weight.detach(), y)
        g = torch.randn_like(y)
        model.weight.grad = g.clone()
        rate = optimizers.set_rate(min(1.0, t / 3), absolute=False)
        optimizers.parts[0][0].step()

        v = 0.95 * v + 0.05 * g**2
        z = z - rate * (g / ((v / (1 - 0.95**t)).sqrt() + 1e-8) + 0.2 * y)
        highest = max(highest, rate)
        weights += highest**2
        x = x + highest**2 / weights * (z - x)
        with optimizers.resting():
            torch.testing.assert_close(model.weight.detach(), x)


def test_looking_changes_no_bit():
    torch.manual_seed(0)
    model = nn.Linear(40, 30)
    optimizers = build_optimizers(model, CONFIG)
    for _ in range(2):
        model.weight.grad = torch.randn(30, 40)  # the bias has none yet, and rests all the same
        optimizers.parts[0][0].step()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(KeyboardInterrupt), optimizers.resting():
        assert not torch.equal(model.weight, before[0])
        raise KeyboardInterrupt
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_watching_a_run_changes_no_bit(recipe_of):
    y = []
    for name, valid, save in (("watched", 4, 3), ("unwatched", 1000, 1000)):
        sections = {"train": {"updates": 12, "save_every": save}, "valid": {"every": valid, "translate": False}}
        sections["valid"]["metric"] = "loss"
        recipe = recipe_of(name, optim={"name": "schedulefree"}, **sections)
        launch(recipe)
        y.append(checkpoint.load_tensors(Run(recipe.run_folder).checkpoint(12), checkpoint.OPTIMIZER))
    assert all(torch.equal(y[0][name], tensor) for name, tensor in y[1].items())


def test_a_checkpoint_has_the_average_for_translation_and_the_rest_for_going_on(recipe_of):
    valid = {"every": 6, "translate": False, "metric": "loss"}
    recipe = recipe_of(optim={"name": "schedulefree"}, train={"updates": 12}, valid=valid)
    launch(recipe)
    run = Run(recipe.run_folder)
    folder = run.checkpoint(12)
    x, rest = (checkpoint.load_tensors(folder, name) for name in (checkpoint.MODEL, checkpoint.OPTIMIZER))
    assert rest["0.0|k"] == 12
    for name, _ in run.load_model(torch.device("cpu"))[0].named_parameters():
        z, y = rest[f"{name}|z"], rest[f"{name}|y"]
        torch.testing.assert_close(y, 0.1 * z + 0.9 * x[name], rtol=0, atol=1e-6)
    assert any(not torch.equal(rest[f"{name}|y"], x[name]) for name in x if f"{name}|y" in rest)
    history = checkpoint.verify(folder)["history"]
    assert history[-1]["loss"] < history[0]["loss"]


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "schedulefree", None)
    with pytest.raises(MachineError, match=r"^optim\.name: schedulefree: .* pip install 'schedulefree>="):
        build_optimizers(nn.Linear(2, 2), CONFIG)
