"""Choice of the device, and of torch's attention kernels on it."""

import pytest
import torch

from nmt import device
from nmt.errors import MachineError, NmtError


def test_cudnn_attention_is_disabled_only_on_a_gpu():
    was_enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    device.set_up("cpu")
    assert torch.backends.cuda.cudnn_sdp_enabled()
    device.set_up("cuda")
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.mem_efficient_sdp_enabled() and torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(was_enabled)


@pytest.fixture
def gpus(monkeypatch):
    """gpus(n): pretend that the machine has n GPUs; nothing is computed on them."""

    def set_count(n):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: n > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: n)

    return set_count


@pytest.mark.parametrize(
    ("n_gpu", "name", "found"),
    [(0, "auto", "cpu"), (2, "auto", "cuda"), (2, "cpu", "cpu"), (2, "cuda", "cuda"), (2, "cuda:1", "cuda:1")],
)
def test_requested_device_is_chosen_without_touching_a_gpu(gpus, n_gpu, name, found):
    gpus(n_gpu)
    assert device.choose_device(name) == torch.device(found)


@pytest.mark.parametrize(
    ("n_gpu", "name", "told"),
    [
        (0, "cuda", "cannot be used: torch sees no GPU on"),
        (1, "cuda:1", "cannot be used: torch sees 1 GPU on"),
        (2, "cuda:2", "cannot be used: torch sees 2 GPUs"),
        (0, "abacus", r"there is no such device\. Use"),
        (0, "meta", r"there is no such device\. Use"),
    ],
)
def test_missing_device_is_a_user_error(gpus, n_gpu, name, told):
    gpus(n_gpu)
    with pytest.raises(NmtError, match=f"--train.device {name}: {told}.*--train.device cpu") as error:
        device.choose_device(name, "--train.device")
    assert error.value.exit_code == 2


def test_error_names_an_unusable_device(monkeypatch):
    def fail(*_, device):
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable.\nCUDA kernel errors ...")

    device.try_device(torch.device("cpu"))
    monkeypatch.setattr(torch, "empty", fail)
    with pytest.raises(MachineError, match=r"cuda:1: cannot be used: CUDA error: .* unavailable\. Use the CPU"):
        device.try_device(torch.device("cuda:1"))


@pytest.mark.parametrize(
    ("name", "peaks"),
    [
        ("NVIDIA H200", (989.5, 989.5, 494.5)), ("NVIDIA A100-SXM4-80GB", (312, 312, 156)), ("Tesla T4", (0, 65, 8.1)),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", (0, 0, 0)), ("NVIDIA L40", (0, 0, 0)), ("Intel(R) Xeon(R)", (0, 0, 0)),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", (0, 0, 0)), ("Tesla V100-SXM2-16GB", (0, 125, 15.7)),
    ],
)  # fmt: skip
def test_peak_flops_are_known_only_by_full_device_names(monkeypatch, name, peaks):
    monkeypatch.setattr(device, "processor_of", lambda _: name)
    cpu = torch.device("cpu")
    assert [device.peak_flops(cpu, dtype) for dtype in ("bf16", "fp16", "fp32")] == [1e12 * peak for peak in peaks]
