"""On a GPU nothing in an update may ask for a number: the host would wait for the device, and the device for orders.

Shown without a GPU on the meta device, where tensors have a shape and no content: who asks for a number fails. Like a
GPU it takes none of the paths that are for a CPU.
"""

import contextlib

import pytest
import torch

from nmt import ops
from nmt.data.batches import Batch
from nmt.models.build import build_model
from nmt.recipe.options import Recipe
from nmt.training.engine import Engine
from nmt.training.memory import Work
from nmt.training.muon import Adam
from nmt.training.parallel import Ranks
from nmt.training.precision import Precision

META = torch.device("meta")


@pytest.fixture
def update(monkeypatch):
    """An update of a tiny model, with some options of the recipe, on a device without content."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _device: False)  # it knows nothing of this device
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(Adam, "step", lambda _optimizer: None)  # torch's own kernel, which is not for it
    monkeypatch.setattr(Batch, "to", lambda batch, _device: batch)

    def run(**options):
        sizes = {"d_model": 32, "d_inner": 64, "n_enc_layer": 2, "n_dec_layer": 2, "n_head": 4}
        recipe = Recipe.model_validate({"name": "meta", "model": sizes, **options})
        model = build_model(recipe.model, 50, 50).to(META).train()
        engine = Engine(model, recipe, precision=Precision("bf16", "", "cpu", False), ranks=Ranks())
        engine.late = True
        batch = Batch(*(torch.zeros(3, n, dtype=torch.int64, device=META) for n in (7, 5, 5)), n_gold=11)
        engine.backward([Work(batch), Work(batch, counts=False)], 11, share=1.0)
        engine.step(1.0, 1)
        assert engine.is_waited_for

    return run


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": {"norm": "pre", "position": "rotary", "n_kv_head": 2}},
        {"regularize": {"r_drop": 5.0}},
        {"regularize": {"simcut": 3.0, "simcut_p": 0.1, "src_word_dropout": 0.1}},
        {"regularize": {"layer_drop": 0.3}},
        {"train": {"ema": 0.99}},
    ],
)
def test_no_part_of_an_update_asks_for_a_number(update, options):
    update(**options)


def test_who_asks_is_found_out(update, monkeypatch):
    monkeypatch.setattr(ops, "_rows_of", lambda real, _n: real.flatten().nonzero().squeeze(1))
    with pytest.raises(RuntimeError, match="nonzero"):
        update()
