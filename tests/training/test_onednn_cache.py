"""A product of a shape that was seen hundreds of shapes ago is not prepared anew."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from nmt.cli import train_job
from nmt.training.onednn_cache import N_PRIMITIVE

# A convolution goes through oneDNN on every processor that it knows, in any arithmetic. To import torch takes seconds,
# so that it is done once where a process can fork: before its first product it knows no capacity.
SCRIPT = """
import json, os, sys, torch
from nmt.training.onednn_cache import enlarge_onednn_cache

def listen(file, enlarge, environment, n_shape):
    os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT, 0o644), 1)
    os.environ.update(environment)
    if enlarge:
        enlarge_onednn_cache()
    torch.set_num_threads(1)
    weight = torch.ones(32, 32, 3)

    @torch.no_grad()
    def product(length):  # some kernels each
        torch.nn.functional.conv1d(torch.ones(8, 32, length), weight)

    for length in range(4, 4 + n_shape):
        product(length)
    with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON_CREATION):
        product(4)

for way in json.loads(sys.argv[1]):
    if hasattr(os, "fork") and os.fork():
        if os.wait()[1]:
            sys.exit(1)
    else:
        listen(*way)
        break
"""
# Whether the cache is enlarged, what the user says of it, and how many shapes there are: the first is asked for again.
WAYS = {
    "forget": (False, {}, 400),
    "remember": (True, {}, 400),
    "user": (True, {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16"}, 20),
}


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_a_shape_of_long_ago_is_remembered(tmp_path):
    ways = [(str(tmp_path / name), *way) for name, way in WAYS.items()]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ONEDNN")}
    for some in [ways] if hasattr(os, "fork") else [[way] for way in ways]:
        subprocess.run([sys.executable, "-c", SCRIPT, json.dumps(some)], check=True, env=environment)
    said = {name: (tmp_path / name).read_text(encoding="utf-8") for name in WAYS}
    if "create" not in said["forget"]:
        pytest.skip("this torch makes convolutions without oneDNN")
    assert "cache_miss" in said["forget"]
    assert "cache_hit" in said["remember"] and "cache_miss" not in said["remember"]
    assert "cache_miss" in said["user"]  # what the user says stands


@pytest.mark.parametrize("command", ["train", "check", "selftest"])
def test_what_trains_asks_for_it_first(command, monkeypatch):
    seen = []
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "to be set back")
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    monkeypatch.setattr(train_job, "StopSignal", lambda: SimpleNamespace(exit_code=0))
    for name in ("launch", "check_recipe", "test_model"):
        monkeypatch.setattr(
            train_job, name, lambda *_: seen.append(os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"]) or []
        )
    getattr(train_job, command)(None)
    assert seen == [str(N_PRIMITIVE)]
