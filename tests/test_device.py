"""Which device is taken, and which kernels torch takes on it."""

from types import SimpleNamespace

import pytest
import torch

from nmt import api, device
from nmt.training.precision import Precision

CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def as_it_was():
    """Switches of torch that hold for the process are set back."""
    found, precision = torch.backends.cuda.cudnn_sdp_enabled(), torch.get_float32_matmul_precision()
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield
    torch.backends.cuda.enable_cudnn_sdp(found)
    torch.set_float32_matmul_precision(precision)


def test_attention_of_cudnn_is_off_on_a_gpu_alone():
    device.set_up("cpu")
    assert torch.backends.cuda.cudnn_sdp_enabled()
    device.set_up("cuda")
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.mem_efficient_sdp_enabled() and torch.backends.cuda.flash_sdp_enabled()


def test_it_is_off_in_training():
    Precision("bf16", "", "cuda").apply()
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_it_is_off_in_translation(monkeypatch):
    seen = []
    run = SimpleNamespace(subwords=lambda: None, load_model=lambda *_: seen.append(1) or (None, "model"))
    monkeypatch.setattr(api, "Run", lambda _folder: run)
    monkeypatch.setattr(api, "choose_device", lambda _name: CUDA)
    monkeypatch.setattr(api, "Model", lambda *_: None)
    api.load("RUN", device="cuda")
    assert seen and not torch.backends.cuda.cudnn_sdp_enabled()
