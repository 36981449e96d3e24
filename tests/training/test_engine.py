"""An update whose outcome is read late is the update whose outcome is waited for."""

import re

import pytest
import torch
from witness import StopAt

from nmt import checkpoint
from nmt.run import Run
from nmt.training import engine as engine_module
from nmt.training.engine import Engine
from nmt.training.launch import launch
from nmt.training.precision import Precision


@pytest.fixture
def late(monkeypatch):
    """Make engines on the CPU behave as on a GPU."""
    begin = Engine.__init__

    def init(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        assert not self.late and self.optimizers.guarded
        self.late = True

    return lambda: monkeypatch.setattr(Engine, "__init__", init)


@pytest.fixture
def spoilt(monkeypatch):
    """Make the gradients of some updates, counted from the first, not finite."""

    def spoil(*which):
        count = iter(range(10**6))
        apply = engine_module.apply_update

        def spoiling(model, *args, **kwargs):
            if next(count) in which:
                next(model.parameters()).grad[0, 0] = float("inf")
            return apply(model, *args, **kwargs)

        monkeypatch.setattr(engine_module, "apply_update", spoiling)

    return spoil


def tensors(recipe):
    folder = Run(recipe.run_folder).checkpoint(recipe.train.updates)
    files = (checkpoint.MODEL, checkpoint.OPTIMIZER, checkpoint.EMA)
    state = checkpoint.verify(folder)
    kept = {name: state[name] for name in ("update", "epoch", "update_in_epoch", "n_skipped", "n_token", "history")}
    return {f"{file}/{k}": v for file in files for k, v in checkpoint.load_tensors(folder, file).items()}, kept


def test_reading_outcomes_late_changes_no_bit(recipe_of, late, spoilt):
    sections = {"train": {"ema": 0.9, "log_every": 6, "save_every": 6, "updates": 12}, "valid": {"every": 6}}
    sections |= {"regularize": {"r_drop": 1.0, "r_drop_from": 0.3}}  # sets in with an outcome outstanding
    now, later = recipe_of("now", **sections), recipe_of("later", **sections)
    spoilt(2, 6, 7, 13)  # the first, the one before a validation, several in a row, the last but one
    launch(now)
    late()
    spoilt(2, 6, 7, 13)
    launch(later)
    (one, state), (other, other_state) = tensors(now), tensors(later)
    assert state == other_state and state["n_skipped"] == 4
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("in_fp16", [False, True])
def test_the_first_update_that_is_skipped_is_told_and_the_end_counts_them(
    recipe_of, spoilt, monkeypatch, capsys, in_fp16
):
    if in_fp16:  # which a CPU has not
        monkeypatch.setattr(Precision, "scaler", lambda self: torch.amp.GradScaler("cpu", init_scale=4.0))
    spoilt(3, 5)
    recipe = recipe_of(train={"updates": 9}, valid={"translate": False, "metric": "loss"})
    launch(recipe, StopAt(6))
    launch(recipe)
    said = capsys.readouterr().err
    first = r"update 4 \(epoch 0, update 3 in it\) was skipped: loss [\d.]+, gradient norm (inf|nan)\. .* 10 in a row"
    assert len(re.findall(first, said)) == said.count("was skipped") == 1
    assert ("warning" in said, "in fp16 a few are usual" in said) == (not in_fp16, in_fp16)
    assert said.count("; 2 more were skipped, whose loss or gradient was not finite") == 2  # of two processes


def test_the_learning_rate_counts_only_updates_that_moved_the_weights(recipe_of, late, spoilt):
    rates = {}
    for name in ("now", "later"):
        recipe = recipe_of(
            name,
            optim={"schedule": "linear", "warmup": 10},
            train={"log_every": 1, "updates": 11},
            valid={"translate": False, "metric": "loss"},
        )
        spoilt(2, 3, 7)
        if name == "later":
            late()
        launch(recipe)
        lines = Run(recipe.run_folder).log_file.read_text(encoding="utf-8").split("\n")
        rates[name] = [line.split('"learning_rate": ')[1].split(",")[0] for line in lines if "learning_rate" in line]
    assert rates["now"] == rates["later"]
    assert [float(rate) for rate in rates["now"][:10]] == pytest.approx([3e-3 * u / 10 for u in range(1, 11)])
