"""The device of tensors: its choice, its set-up in torch, and its peak performance."""

import platform
import re
import warnings
from pathlib import Path

import torch
from torch import Tensor

from nmt.errors import NmtError, Unavailable
from nmt.processes import system_text


def choose_device(name: str, option: str = "--device") -> torch.device:
    """Return the device of a name: cpu, cuda, cuda:1, or auto for the GPU if there is one. option: for messages.

    No GPU is initialised, since several processes choose their own later. Raises Unavailable for a device that this
    machine lacks, and NmtError for a name that is no device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu(:0)?|cuda(:[1-9]?[0-9])?", name):
        raise NmtError(
            f"{option} {name}: there is no such device. Use {option} cpu, auto, cuda, or one of several GPUs: cuda:1."
        )
    device = torch.device(name)
    if device.type == "cuda":
        n_gpu = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= n_gpu:
            raise _unusable(name, option, f"torch sees {n_gpu or 'no'} GPU{'s' if n_gpu > 1 else ''} on this machine")
    return device


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the host to a device; to a GPU asynchronously."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def try_device(device: torch.device) -> None:
    """Raise Unavailable if no tensor can be created on a device."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise _unusable(str(device), "--device", str(error).split("\n")[0].rstrip(".")) from None


def _unusable(name: str, option: str, reason: str) -> Unavailable:
    return Unavailable(
        f"{option} {name}: cannot be used: {reason}. Use the CPU, {option} cpu, or install a torch built for your "
        "GPU's driver."
    )


def set_up(device: str) -> None:
    """Select the torch kernels that suit our batches on a type of device, cpu or cuda, for the whole process.

    On H100 and H200 torch prefers cuDNN attention. It takes some tenths of a second to prepare each of hundreds of
    shapes, and some versions round the dropout rate to sixteenths. Our attention always has a mask, for which the
    memory-efficient kernel is as good.

    The suppressed warning is about recurrent models, whose weights are intentionally not contiguous: decoding steps
    read the weights one by one. Calls on whole sentences copy them.
    """
    if device == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk of memory")


# Peaks of NVIDIA GPUs in TFLOP/s without sparsity, accumulated in fp32, from its data sheets (GeForce: white papers):
# bf16, fp16, and fp32, which is TF32 from Ampere on. Full names, since "RTX 4090 Laptop GPU" is another GPU.
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
    """Return the peak performance of a device in a precision, in FLOP/s; 0 if it is not known."""
    name = re.sub("^(NVIDIA|Tesla) ", "", processor_of(device))
    peaks = next((peaks for pattern, peaks in _PEAKS.items() if re.fullmatch(pattern, name)), (0.0, 0.0, 0.0))
    return 1e12 * peaks[("bf16", "fp16", "fp32").index(precision)]


def processor_of(device: torch.device) -> str:
    """The model name of the GPU or processor; "" if the system does not report it."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    match = re.search(r"^model name\s*: (.+)$", system_text(Path("/proc/cpuinfo")), re.MULTILINE)
    return match[1].strip() if match else platform.processor()
