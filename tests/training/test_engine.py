"""Updates: reading outcomes late changes nothing, non-finite updates are skipped, no value is read from the device."""

import contextlib
import re

import pytest
import torch
from witness import saved_by, state_of, stop_at

from nmt.data.batches import Batch
from nmt.errors import MachineError
from nmt.models.build import build_model
from nmt.recipe.options import Recipe
from nmt.run import Run
from nmt.training.engine import Engine
from nmt.training.launch import launch
from nmt.training.memory import Work
from nmt.training.optim import Adam, Optimizers
from nmt.training.parallel import Ranks
from nmt.training.precision import Precision


@pytest.fixture
def spoil_updates(monkeypatch):
    """spoil_updates(n, ...): make the gradients of some updates infinite; the next update is number 0."""

    def spoil(*numbers):
        count = iter(range(10**6))
        apply_update = Optimizers.apply_update

        def apply_spoilt(optimizers, *args, **kwargs):
            if next(count) in numbers:
                next(optimizers.model.parameters()).grad[0, 0] = float("inf")
            return apply_update(optimizers, *args, **kwargs)

        monkeypatch.setattr(Optimizers, "apply_update", apply_spoilt)

    return spoil


def test_reading_outcomes_late_changes_no_bit_of_a_run(recipe_of, make_async, spoil_updates):
    sections = {"train": {"ema": 0.9, "log_every": 6, "save_every": 6, "updates": 12}, "valid": {"every": 6}}
    plain, late = recipe_of("now", **sections), recipe_of("later", **sections)
    spoil_updates(2, 6, 7, 13)  # the first, the one before a validation, several in a row, the last but one
    launch(plain)
    make_async()
    spoil_updates(2, 6, 7, 13)
    launch(late)
    assert saved_by(late) == saved_by(plain) and state_of(plain, 12)["n_skipped"] == 4


@pytest.mark.parametrize("in_fp16", [False, True])
def test_first_skipped_update_is_reported_and_the_others_counted(
    recipe_of, spoil_updates, monkeypatch, capsys, in_fp16
):
    if in_fp16:  # a CPU has no scaler
        monkeypatch.setattr(Precision, "scaler", lambda self: torch.amp.GradScaler("cpu", init_scale=4.0))
    spoil_updates(3, 5)
    recipe = recipe_of(train={"updates": 9}, valid={"translate": False, "metric": "loss"})
    launch(recipe, stop_at(6))
    launch(recipe)
    err = capsys.readouterr().err
    report = r"update 4 \(epoch 0, update 3 in it\) was skipped: loss [\d.]+, gradient norm (inf|nan)\. .* 10 in a row"
    assert len(re.findall(report, err)) == err.count("was skipped") == 1
    assert err.count("; 2 more were skipped, because loss or gradient was not finite") == 2  # once for each launch


def test_ten_non_finite_updates_in_a_row_end_training_without_loss(recipe_of, spoil_updates):
    spoil_updates(*range(3, 13))
    recipe = recipe_of(train={"updates": 20, "save_every": 2}, valid={"translate": False, "metric": "loss"})
    with pytest.raises(MachineError, match=r"10 times in a row.* earlier checkpoints are intact\. Start a new run"):
        launch(recipe)
    assert Run(recipe.run_folder).updates() == [2]


# On a GPU no part of an update may read a value: the host would wait for the device, and the device for new work.


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
def test_update_reads_no_value_from_the_device(options, monkeypatch):
    """Tiny model on the meta device, whose tensors have no values."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _device: False)  # meta has no autocast
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(Adam, "step", lambda _optimizer: None)  # torch's kernel does not support meta
    monkeypatch.setattr(Batch, "to", lambda batch, _device: batch)

    sizes = {"d_model": 32, "d_inner": 64, "n_enc_layer": 2, "n_dec_layer": 2, "n_head": 4}
    recipe = Recipe.model_validate({"name": "meta", "model": sizes, **options})
    model = build_model(recipe.model, 50, 50).to(META).train()
    engine = Engine(model, recipe, precision=Precision("bf16", "", "cpu"), ranks=Ranks())
    engine.is_async = True
    batch = Batch(*(torch.zeros(3, n, dtype=torch.int64, device=META) for n in (7, 5, 5)), n_gold=11)
    engine.backward([Work(batch), Work(batch, counts=False)], 11)
    engine.step(1.0, 1)
    assert engine.pending is not None
