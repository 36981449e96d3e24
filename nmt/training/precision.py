"""Precision of training: as the recipe says, or the fastest that the device has instructions for."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch

from nmt import ops
from nmt.device import choose_device, set_up
from nmt.errors import Unavailable
from nmt.models.int8 import half_is_faster
from nmt.recipe.training_options import TrainConfig


@dataclass(frozen=True)
class Precision:
    """The precision of a run, which a resumed run keeps, to give the same results. name: fp32, bf16 or fp16. why: one
    line for the user. kernels: use our own CPU kernels between matrix products; they round differently."""

    name: str
    why: str
    device: str
    kernels: bool = False

    def apply(self) -> None:
        """Set torch and our kernels to this precision, for the whole process."""
        ops.use_kernels(self.kernels)
        set_up(self.device)
        if self.device == "cuda":
            torch.set_float32_matmul_precision("high")  # TF32 for the remaining fp32 products
        else:
            cast(Any, torch.backends.mkldnn).matmul.fp32_precision = "none"

    @property
    def has_fast_bf16(self) -> bool:
        """True if the run computes in bf16 with kernels on a CPU that has instructions for it."""
        return self.name == "bf16" and self.kernels and not ops.bf16_in_fp32()

    def measuring(self) -> AbstractContextManager[object]:
        """Context manager for validation: autocast as in training, or fp32 where only our kernels are fast in bf16,
        since validation does not use them."""
        if self.name == "bf16" and self.kernels and ops.bf16_in_fp32():
            return nullcontext()
        return self.autocast()

    def autocast(self) -> AbstractContextManager[object]:
        """Context manager for forward passes."""
        if self.name == "fp32":
            return nullcontext()
        dtype = torch.bfloat16 if self.name == "bf16" else torch.float16
        return torch.autocast(self.device, dtype=dtype)

    def scaler(self) -> torch.amp.GradScaler:
        """Loss scaler, enabled only in fp16."""
        return torch.amp.GradScaler(self.device, enabled=self.name == "fp16")


def use_device(config: TrainConfig) -> torch.device:
    """Choose the device and set the number of CPU threads. Raises Unavailable if device or precision is unavailable."""
    device = choose_device(config.device, "--train.device")
    if config.precision == "fp16" and device.type == "cpu":
        raise Unavailable("train.precision: fp16 needs a GPU; on a CPU use auto, bf16 or fp32.")
    if config.threads:
        torch.set_num_threads(config.threads)
    return device


def choose_precision(config: TrainConfig, device: torch.device) -> Precision:
    """The precision of a new run: as the recipe says, or the fastest that the device has instructions for."""
    name, why = config.precision, "as the recipe says"
    if device.type == "cuda":
        if name == "auto":
            fast = torch.cuda.get_device_capability(device) >= (8, 0)  # Ampere or later
            name = "bf16" if fast else "fp16"
            why = f"{torch.cuda.get_device_name(device)} has {'' if fast else 'no '}fast bf16"
        return Precision(name, why, "cuda")
    if name == "auto":
        fast = half_is_faster()
        name, why = "bf16" if fast else "fp32", f"this processor has {'' if fast else 'no '}instructions for bf16"
    if config.kernels == "torch":
        return Precision(name, why, "cpu")
    why_not = ops.why_no_kernels()
    why += "; " + (f"no compiled kernels: {why_not}" if why_not else "kernels compiled for this processor")
    if name == "bf16" and ops.bf16_in_fp32():
        why += ", which has no bf16 instructions: bf16 products run in fp32, exact but no faster"
    return Precision(name, why, "cpu", kernels=not why_not)
