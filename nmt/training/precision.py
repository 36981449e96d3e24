"""Arithmetic of training: what the recipe says, or the fastest that the device has instructions for."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch

from nmt import ops
from nmt.device import set_up
from nmt.errors import Unavailable
from nmt.models.int8 import half_is_faster
from nmt.recipe.training_options import TrainConfig


@dataclass(frozen=True)
class Precision:
    """The arithmetic of a run. name: fp32, bf16 or fp16. why: one line for the user. kernels: what lies between
    products on a CPU is done by our own, which round in other places. A run keeps the arithmetic that it began with, or
    it would be another run."""

    name: str
    why: str
    device: str
    kernels: bool = False

    def apply(self) -> None:
        """Switch the machine to this arithmetic."""
        ops.use_kernels(self.kernels)
        set_up(self.device)
        if self.device == "cuda":
            torch.set_float32_matmul_precision("high")  # TF32 where a product stays in fp32
        else:
            cast(Any, torch.backends.mkldnn).matmul.fp32_precision = "none"

    def measuring(self) -> AbstractContextManager[object]:
        """The context that validation runs in: that of training, or fp32 where kernels alone are fast in bf16, which
        are for training."""
        if self.name == "bf16" and self.kernels and ops.kernels_here().bf16_in_fp32:
            return nullcontext()
        return self.autocast()

    def autocast(self) -> AbstractContextManager[object]:
        """The context that forward passes run in."""
        if self.name == "fp32":
            return nullcontext()
        dtype = torch.bfloat16 if self.name == "bf16" else torch.float16
        return torch.autocast(self.device, dtype=dtype)

    def scaler(self) -> torch.amp.GradScaler:
        """Loss scaling, which only fp16 needs; otherwise it does nothing."""
        return torch.amp.GradScaler(self.device, enabled=self.name == "fp16")


def choose_precision(config: TrainConfig, device: torch.device) -> Precision:
    """The precision of a new run on this device: what the recipe says, or the fastest that it has instructions for."""
    name, why = config.precision, "as the recipe says"
    if device.type == "cuda":
        if name == "auto":
            fast = torch.cuda.get_device_capability(device) >= (8, 0)  # Ampere or later
            name = "bf16" if fast else "fp16"
            why = f"{torch.cuda.get_device_name(device)} has {'' if fast else 'no '}fast bf16"
        return Precision(name, why, "cuda")
    must_be_possible(name, device)
    if name == "auto":
        fast = half_is_faster()
        name, why = "bf16" if fast else "fp32", f"this processor has {'' if fast else 'no '}instructions for bf16"
    if config.kernels == "torch":
        return Precision(name, why, "cpu")
    here = ops.kernels_here()
    why += "; " + (f"no kernels of our own: {here.why_not}" if here.why_not else "kernels compiled for this processor")
    if here.multiply_fp32 and name == "fp32":
        why += ", which multiply fp32, too, as exactly as others"
    if name == "bf16" and here.bf16_in_fp32:
        why += ", which has no instructions for bf16: products of it are made of fp32, exact and no faster than those"
    return Precision(name, why, "cpu", kernels=not here.why_not)


def must_be_possible(wanted: str, device: torch.device) -> None:
    """Raise Unavailable for an arithmetic that a device does not have."""
    if wanted == "fp16" and device.type == "cpu":
        raise Unavailable("train.precision: fp16 needs a GPU; on a CPU use auto, bf16 or fp32.")
