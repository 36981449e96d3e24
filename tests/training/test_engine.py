"""An update whose outcome is read late is the update whose outcome is waited for."""

import contextlib
import re

import pytest
import torch
from witness import left_by, state_of, stop_at

from nmt.data.batches import Batch
from nmt.errors import TrainingError
from nmt.models.build import build_model
from nmt.recipe.options import Recipe
from nmt.run import Run
from nmt.training import engine as engine_module
from nmt.training.engine import Engine
from nmt.training.launch import launch
from nmt.training.memory import Work
from nmt.training.optim import Adam
from nmt.training.parallel import Ranks
from nmt.training.precision import Precision


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


def test_reading_outcomes_late_changes_no_bit(recipe_of, late_engines, spoilt):
    sections = {"train": {"ema": 0.9, "log_every": 6, "save_every": 6, "updates": 12}, "valid": {"every": 6}}
    now, later = recipe_of("now", **sections), recipe_of("later", **sections)
    spoilt(2, 6, 7, 13)  # the first, the one before a validation, several in a row, the last but one
    launch(now)
    late_engines()
    spoilt(2, 6, 7, 13)
    launch(later)
    assert left_by(later) == left_by(now) and state_of(now, 12)["n_skipped"] == 4


@pytest.mark.parametrize("in_fp16", [False, True])
def test_the_first_update_that_is_skipped_is_told_and_the_end_counts_them(
    recipe_of, spoilt, monkeypatch, capsys, in_fp16
):
    if in_fp16:  # which a CPU has not
        monkeypatch.setattr(Precision, "scaler", lambda self: torch.amp.GradScaler("cpu", init_scale=4.0))
    spoilt(3, 5)
    recipe = recipe_of(train={"updates": 9}, valid={"translate": False, "metric": "loss"})
    launch(recipe, stop_at(6))
    launch(recipe)
    said = capsys.readouterr().err
    first = r"update 4 \(epoch 0, update 3 in it\) was skipped: loss [\d.]+, gradient norm (inf|nan)\. .* 10 in a row"
    assert len(re.findall(first, said)) == said.count("was skipped") == 1
    assert ("warning" in said, "in fp16 a few are normal" in said) == (not in_fp16, in_fp16)
    assert said.count("; 2 more were skipped, because loss or gradient was not finite") == 2  # of two processes


def test_ten_in_a_row_that_are_not_finite_end_training_and_lose_nothing(recipe_of, spoilt):
    spoilt(*range(3, 13))
    recipe = recipe_of(train={"updates": 20, "save_every": 2}, valid={"translate": False, "metric": "loss"})
    with pytest.raises(TrainingError, match=r"10 times in a row.* last good checkpoint: update-0+2\. Lower optim\.lr"):
        launch(recipe)
    assert Run(recipe.run_folder).updates() == [2]


# On a GPU nothing in an update may ask for a number: the host would wait for the device, and the device for orders.


META = torch.device("meta")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": {"norm": "pre", "position": "rotary", "n_kv_head": 2}},
        {"regularize": {"r_drop": 5.0}},
        {"regularize": {"simcut": 3.0, "simcut_p": 0.1, "src_word_dropout": 0.1}},
        {"train": {"ema": 0.99}},
    ],
)
def test_no_part_of_an_update_asks_for_a_number(options, monkeypatch):
    """Of a tiny model, on a device without content."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _device: False)  # it knows nothing of this device
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(Adam, "step", lambda _optimizer: None)  # torch's own kernel, which is not for it
    monkeypatch.setattr(Batch, "to", lambda batch, _device: batch)

    sizes = {"d_model": 32, "d_inner": 64, "n_enc_layer": 2, "n_dec_layer": 2, "n_head": 4}
    recipe = Recipe.model_validate({"name": "meta", "model": sizes, **options})
    model = build_model(recipe.model, 50, 50).to(META).train()
    engine = Engine(model, recipe, precision=Precision("bf16", "", "cpu"), ranks=Ranks())
    engine.is_async = True
    batch = Batch(*(torch.zeros(3, n, dtype=torch.int64, device=META) for n in (7, 5, 5)), n_gold=11)
    engine.backward([Work(batch), Work(batch, counts=False)], 11)
    engine.step(1.0, 1)
    assert engine.has_pending
