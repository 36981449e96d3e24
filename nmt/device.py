"""The device that tensors lie on: which one is taken, and how torch is to compute there."""

import platform
import re
import warnings
from pathlib import Path

import torch
from torch import Tensor

from nmt.errors import NmtError, Unavailable


def choose_device(name: str, option: str = "--device") -> torch.device:
    """auto: the GPU if there is one; else what is named: cpu, cuda, cuda:1. option: which the name was given to.

    No GPU is touched: of several processes each takes its own later. Raises Unavailable for a device that is not
    there, and NmtError for a name that no device has.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise NmtError(
            f"{option} {name}: there is no such device. Expected auto, cpu, cuda, or one of several GPUs as cuda:1; "
            f"the CPU is {option} cpu."
        ) from None
    if device.type == "cuda":
        n_gpu = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= n_gpu:
            raise _unusable(name, option, f"torch sees {n_gpu or 'no'} GPU{'s' if n_gpu > 1 else ''} on this machine")
    return device


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device. On a GPU nobody waits until it is there."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def try_device(device: torch.device, option: str = "--device") -> None:
    """Raise Unavailable where no tensor can be made on a device."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise _unusable(str(device), option, str(error).split("\n")[0].rstrip(".")) from None


def _unusable(name: str, option: str, reason: str) -> Unavailable:
    return Unavailable(
        f"{option} {name}: cannot be used: {reason}. Take the CPU, {option} cpu, or install a torch built for your "
        "GPU's driver."
    )


def set_up(device: str) -> None:
    """Have torch take the kernels that suit our batches on a type of device, cpu or cuda, in all of this process.

    On H100 and H200 it prefers cuDNN's attention, which prepares its work for each shape anew, some tenths of a second
    for every one of hundreds of shapes, and on some versions rounds the rate of dropout to sixteenths. With a mask,
    which is always there, the memory-efficient kernel serves as well.

    What it warns of in recurrent models is so by intent: their weights do not lie end to end in memory, since a step
    reads them one by one, and are copied for each call that reads whole sentences.
    """
    if device == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk of memory")


# Peaks of NVIDIA's GPUs in TFLOP/s without sparsity, sums in fp32, from its data sheets, for GeForce its white papers:
# bf16, fp16, and fp32, which is TF32 from Ampere on. By whole names, since "RTX 4090 Laptop GPU" is another.
_PEAKS: dict[str, tuple[float, float, float]] = {
    r"V100-SXM\d-\w+": (0, 125, 15.7),
    r"V100-PCIE-\w+": (0, 112, 14),
    "T4": (0, 65, 8.1),
    "A10": (125, 125, 62.5),
    r"A100-\w+-\w+|A100 80GB PCIe": (312, 312, 156),
    "L4": (121, 121, 60),
    "L40S": (362, 362, 183),
    "H100 PCIe": (756.5, 756.5, 378),
    "H100 NVL|H200 NVL": (835.5, 835.5, 417.5),
    "H100 80GB HBM3|H200": (989.5, 989.5, 494.5),
    "B200": (2250, 2250, 1125),
    "GeForce RTX 3090": (71, 71, 35.6),
    "GeForce RTX 4090": (165.2, 165.2, 82.6),
}


def peak_flops(device: torch.device, precision: str) -> float:
    """Return the peak of a device in a precision, in operations (FLOP) a second; 0 where it is not known."""
    name = re.sub("^(NVIDIA|Tesla) ", "", processor_of(device))
    known = next((peaks for pattern, peaks in _PEAKS.items() if re.fullmatch(pattern, name)), (0.0, 0.0, 0.0))
    return 1e12 * known[("bf16", "fp16", "fp32").index(precision)]


def processor_of(device: torch.device) -> str:
    """The name of the GPU or of the processor, as its maker calls it; "" where the system does not tell."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    found = re.search(r"^model name\s*: (.+)$", told, re.MULTILINE)
    return found[1].strip() if found else platform.processor()
