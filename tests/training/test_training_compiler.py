"""torch's compiler is imported before it is needed, by who needs it."""

import pytest
import torch
import torch.distributed as dist

from nmt.errors import MachineError
from nmt.native import on_gpu
from nmt.training import compiler, parallel

KERNEL = "torch.nn.attention.varlen"


@pytest.fixture
def imported(monkeypatch):
    """Names of what is imported."""
    names = []
    monkeypatch.setattr(compiler.importlib, "import_module", names.append)
    return names


@pytest.mark.parametrize(
    ("sections", "device", "wanted"),
    [
        ({}, "cpu", []),
        ({}, "cuda", []),
        ({"train": {"checkpoint_activations": True}}, "cpu", ["torch._dynamo"]),
        ({"batch": {"packed": True}}, "cpu", []),
        ({"batch": {"packed": True}}, "cuda", []),
        ({"batch": {"packed": True}, "model": {"d_k": 24, "d_v": 24}}, "cuda", ["torch._dynamo", KERNEL]),
        ({"batch": {"packed": True}}, "cuda without triton", ["torch._dynamo", KERNEL]),
        ({"batch": {"packed": True}}, "old cuda", []),  # which has no such kernel
    ],
)
def test_where_torch_would_import_it_within_an_update(recipe_of, imported, monkeypatch, sections, device, wanted):
    monkeypatch.setattr(on_gpu, "is_new", lambda _device: device != "old cuda")
    monkeypatch.setattr(on_gpu, "works", lambda _device: device == "cuda")
    model = {"d_model": 64, "n_head": 4, "attn_dropout": 0.0, "lexical_attn": False, **sections.pop("model", {})}
    batch = {"max_tokens": 300, **sections.pop("batch", {})}
    compiler.import_early(
        recipe_of(model=model, batch=batch, **sections), torch.device("cpu" if device == "cpu" else "cuda")
    )
    assert imported == wanted


def test_several_processes_import_it_before_they_meet(imported, monkeypatch):
    def rendezvous(*_, **__):
        imported.append("they meet")
        raise dist.DistError("nobody is there")

    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setattr(dist, "rendezvous", rendezvous)
    with pytest.raises(MachineError, match="rank 1 did not meet the others"):
        parallel.join(torch.device("cpu"), 1.0)
    assert imported == ["torch._dynamo", "they meet"]
