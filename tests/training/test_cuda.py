"""GPU runs equal CPU runs up to arithmetic, on every path that only a GPU has."""

import pytest
import torch
from witness import digest, engine_of, log_of, state_of, stop_at

from nmt.data.plan import Position
from nmt.training.feed import Feed
from nmt.training.launch import launch
from nmt.training.parallel import Ranks
from nmt.training.precision import Precision

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    # The compiler reads .grad, torch may record an empty graph, and not every synchronization is detected.
    pytest.mark.filterwarnings("ignore:The .grad attribute"),
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]

# The kernel of packed attention needs heads of at least 8, and has no dropout.
WIDE = {"d_model": 32, "n_head": 2, "attn_dropout": 0.0, "dropout": 0.0}
PACKED = {"model": WIDE, "batch": {"packed": True, "max_tokens": 257, "per_update": 1}}


def losses(recipe):
    return [line["loss"] for line in log_of(recipe, "train", "valid")]


def on(device, precision="fp32", **train):
    return {"train": {"device": device, "precision": precision, **train}}


RECURRENT = {"architecture": "attention", "d_model": 32, "dropout": 0.0}
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
CASES = [
    *(({"model": WIDE}, precision, {}) for precision in ("fp32", "bf16", "fp16")),
    *(({"model": {**RECURRENT, "cell": cell}}, precision, {}) for cell in ("lstm", "gru") for precision in HALF),
    *((PACKED, "bf16", train) for train in ({}, {"compile": True}, {"cuda_graphs": True})),
]


@pytest.mark.parametrize(("sections", "precision", "train"), CASES)
def test_gpu_losses_equal_cpu_losses(recipe_of, sections, precision, train, monkeypatch):
    cpu, gpu = recipe_of("cpu", **sections, **on("cpu")), recipe_of("gpu", **sections, **on("cuda", precision, **train))
    launch(cpu)
    dtypes, cell = set(), sections["model"].get("cell", "lstm")
    kernel = getattr(torch, cell)
    monkeypatch.setattr(torch, cell, lambda x, *args: dtypes.add(x.dtype) or kernel(x, *args))
    launch(gpu)
    assert losses(gpu) == pytest.approx(losses(cpu), abs=2e-2 if precision == "fp32" else 0.1)
    arithmetic = state_of(gpu, 30)["arithmetic"]
    assert arithmetic["name"] == precision and arithmetic["compiled"] == bool(train)
    assert not dtypes or HALF[precision] in dtypes


def test_resumed_gpu_run_equals_uninterrupted_run(recipe_of):
    uninterrupted, resumed = recipe_of("whole", **on("cuda", "bf16")), recipe_of("chain", **on("cuda", "bf16"))
    launch(uninterrupted)
    for n in (3, 4, 9):
        assert launch(resumed, stop_at(n)) == "stopped"
    launch(resumed)
    assert digest(resumed, 30) == digest(uninterrupted, 30)


def test_update_never_waits_for_the_gpu(recipe_of):
    recipe = recipe_of("waits", model=WIDE, **on("cuda", "bf16"))
    data, engine = engine_of(recipe, Precision("bf16", "", "cuda"))
    feed, debug_mode = Feed(recipe, data, Ranks()), torch.cuda.get_sync_debug_mode()
    try:
        for update, portion in zip(range(1, 4), feed.begin(Position()), strict=False):
            if update > 1:  # the first one creates optimizer state
                torch.cuda.set_sync_debug_mode("error")
            engine.backward(portion.work, feed.n_gold(portion))
            engine.step(1.0, update)
            torch.cuda.set_sync_debug_mode(debug_mode)
            assert engine.settle().moved
    finally:
        torch.cuda.set_sync_debug_mode(debug_mode)
