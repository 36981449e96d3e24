"""A product of a shape that was seen hundreds of shapes ago is not prepared anew."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from nmt.cli import train_job
from nmt.training.onednn_cache import N_PRIMITIVE

# A convolution goes through oneDNN on every processor that it knows, in any arithmetic.
SCRIPT = """
import sys, torch
from nmt.training.onednn_cache import enlarge_onednn_cache

if sys.argv[1] == "remember":
    enlarge_onednn_cache()
weight = torch.ones(64, 64, 3)

@torch.no_grad()
def product(length):  # some kernels each
    torch.nn.functional.conv1d(torch.ones(8, 64, length), weight)

for length in range(4, 404):
    product(length)
with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON_CREATION):
    product(4)
"""


def told(what, **environment):
    rest = {name: value for name, value in os.environ.items() if not name.startswith("ONEDNN")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, what], capture_output=True, encoding="utf-8", check=True, env=rest | environment
    )
    return done.stdout


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_a_shape_of_long_ago_is_remembered():
    forgotten = told("forget")
    if "create" not in forgotten:
        pytest.skip("this torch makes convolutions without oneDNN")
    assert "cache_miss" in forgotten
    remembered = told("remember")
    assert "cache_hit" in remembered and "cache_miss" not in remembered
    assert "cache_miss" in told("remember", ONEDNN_PRIMITIVE_CACHE_CAPACITY="1024")  # what the user says stands


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
