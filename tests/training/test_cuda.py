"""What only a GPU can show: by every path of its own its runs are those of the CPU, up to its arithmetic."""

import pytest
import torch
from witness import StopAt, log_of

from nmt import checkpoint
from nmt.data.corpus import Prepared
from nmt.data.plan import Position
from nmt.run import Run
from nmt.training.engine import Engine
from nmt.training.feed import Feed
from nmt.training.launch import launch
from nmt.training.materials import new_model
from nmt.training.parallel import Ranks
from nmt.training.precision import Precision

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    # That the compiler looks for it; that torch records one of nothing; that not all that waits is detected.
    pytest.mark.filterwarnings("ignore:The .grad attribute"),
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]

# The kernel of packed attention wants heads of at least 8, and knows no dropout.
WIDE = {"d_model": 32, "n_head": 2, "attn_dropout": 0.0, "dropout": 0.0}
PACKED = {"model": WIDE, "batch": {"packed": True, "max_tokens": 257, "per_update": 1}}


def losses(recipe):
    return [line["loss"] for line in log_of(recipe, "train", "valid")]


def on(device, precision="fp32", **train):
    return {"train": {"device": device, "precision": precision, **train}}


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 2e-2), ("bf16", 0.1), ("fp16", 0.1)])
def test_a_gpu_learns_as_the_cpu_does(recipe_of, precision, bound):
    cpu, gpu = recipe_of("cpu", model=WIDE, **on("cpu")), recipe_of("gpu", model=WIDE, **on("cuda", precision))
    launch(cpu)
    launch(gpu)
    assert losses(gpu) == pytest.approx(losses(cpu), abs=bound)
    assert checkpoint.verify(Run(gpu.run_folder).checkpoint(30))["arithmetic"]["name"] == precision


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_recurrent_model_learns_in_half_precision(recipe_of, cell, precision, monkeypatch):
    types, kernel = set(), getattr(torch, cell)
    monkeypatch.setattr(torch, cell, lambda x, *args: types.add(x.dtype) or kernel(x, *args))
    section = {"architecture": "attention", "cell": cell, "d_model": 32, "dropout": 0.0}
    runs = []
    for device, name in (("cpu", "fp32"), ("cuda", precision)):
        recipe = recipe_of(device, **on(device, name))
        runs.append(type(recipe).model_validate({**recipe.model_dump(), "model": section}))
        launch(runs[-1])
    assert losses(runs[1]) == pytest.approx(losses(runs[0]), abs=0.1)
    assert types >= {torch.bfloat16 if precision == "bf16" else torch.float16}


@pytest.mark.parametrize("train", [{}, {"compile": True}, {"compile": True, "cuda_graphs": True}])
def test_packed_batches_learn_alike_however_they_are_run(recipe_of, train):
    cpu, gpu = recipe_of("cpu", **PACKED, **on("cpu")), recipe_of("gpu", **PACKED, **on("cuda", "bf16", **train))
    launch(cpu)
    launch(gpu)
    assert losses(gpu) == pytest.approx(losses(cpu), abs=0.1)


def test_a_run_goes_on_bit_for_bit_on_a_gpu(recipe_of):
    whole, chain = recipe_of("whole", **on("cuda", "bf16")), recipe_of("chain", **on("cuda", "bf16"))
    launch(whole)
    for n in (3, 4, 9):
        assert launch(chain, StopAt(n)) == "stopped"
    launch(chain)
    one, other = (
        checkpoint.load_tensors(Run(recipe.run_folder).checkpoint(30), checkpoint.MODEL) for recipe in (whole, chain)
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_an_update_waits_for_nothing(recipe_of):
    recipe, device = recipe_of("waits", model=WIDE, **on("cuda", "bf16")), torch.device("cuda")
    data = Prepared.open(recipe.data_folder)
    precision = Precision("bf16", "", "cuda")
    engine = Engine(new_model(recipe, data, device).train(), recipe, precision=precision, ranks=Ranks())
    feed, waiting = Feed(recipe, data, Ranks()), torch.cuda.get_sync_debug_mode()
    try:
        for update, portion in zip(range(1, 4), feed.begin(Position()), strict=False):
            if update > 1:  # the first makes what the optimizer remembers
                torch.cuda.set_sync_debug_mode("error")
            engine.backward(portion.work, feed.n_gold(portion))
            engine.step(1.0, update)
            torch.cuda.set_sync_debug_mode(waiting)
            assert engine.settle().moved
    finally:
        torch.cuda.set_sync_debug_mode(waiting)
