"""Arithmetic of training: chosen by measuring this machine, never by the name of its processor."""

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from nmt import ops
from nmt.device import is_ampere, set_up
from nmt.errors import Unavailable
from nmt.recipe.training_options import TrainConfig

_SHAPE = (2048, 512, 2048)  # a feed-forward product of a base model, 2,048 tokens
_TRIES = 5  # of each way to multiply
_MAX_RELATIVE_ERROR = 4  # times that of a usual product of fp32, of what may be called one
_HOPELESS = 4.0  # times the fastest so far: a way that takes longer is not tried again
_WORTH = 1.3  # a path must be this much faster before auto takes it


@dataclass(frozen=True)
class Precision:
    """The arithmetic of a run.

    name: fp32, bf16 or fp16. why: one line for the user. fast_fp32: whether fp32 products of the CPU go to oneDNN.
    kernels: whether what lies between products on a CPU is done by kernels of our own, which round in other places.
    A run keeps the arithmetic that it began with, or a resumed run would not be the same run.
    """

    name: str
    why: str
    device: str
    fast_fp32: bool = False
    kernels: bool = False

    def apply(self) -> None:
        """Switch the machine to this arithmetic."""
        ops.use_kernels(self.kernels)
        set_up(self.device)
        if self.device == "cuda":
            torch.set_float32_matmul_precision("high")  # TF32 where a product stays in fp32
        else:
            _mkldnn_matmul().fp32_precision = "bf16" if self.fast_fp32 else "none"

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
    """The precision of a new run on this device, with the kernels that it has."""
    if device.type != "cpu" or config.kernels == "torch":
        return _choose(config.precision, device)
    here = ops.kernels_here()
    chosen = _choose(config.precision, device)
    why = f"no kernels of our own: {here.why_not}" if here.why_not else "kernels compiled for this processor"
    if here.multiply_fp32 and chosen.name == "fp32":
        why += ", which multiply fp32, too, as exactly as others"
    if chosen.name == "bf16" and here.bf16_in_fp32:
        why += ", which has no instructions for bf16: products of it are made of fp32, exact and no faster than those"
    return replace(chosen, kernels=not here.why_not, why=f"{chosen.why}; {why}")


def must_be_possible(wanted: str, device: torch.device) -> None:
    """Raise Unavailable for an arithmetic that a device does not have."""
    if wanted == "fp16" and device.type == "cpu":
        raise Unavailable("train.precision: fp16 needs a GPU; on a CPU use auto, bf16 or fp32.")


def _choose(wanted: str, device: torch.device) -> Precision:
    """auto, fp32, bf16 or fp16 -> the arithmetic of products."""
    if device.type == "cuda":
        if wanted != "auto":
            return Precision(wanted, "as the recipe says", "cuda")
        if is_ampere(device):
            return Precision("bf16", f"{torch.cuda.get_device_name(device)} has fast bf16", "cuda")
        return Precision("fp16", f"{torch.cuda.get_device_name(device)} has no fast bf16", "cuda")
    must_be_possible(wanted, device)
    if wanted != "auto":  # nothing is measured: the same recipe gives the same bits on every run
        return Precision(wanted, "as the recipe says", "cpu")
    speed = _speeds()
    usual, switched, bf16 = speed["fp32"], speed["fp32 through oneDNN"], speed["bf16"]
    fast = switched > _WORTH * usual and onednn_is_honest()
    fp32 = switched if fast else usual
    path = "fp32 products through oneDNN" if fast else "fp32 products through torch's default library"
    figures = f"measured: fp32 {fp32:.0f}, bf16 {bf16:.0f} GFLOP/s; {path}"
    if bf16 > _WORTH * fp32:
        return Precision("bf16", figures, "cpu")
    return Precision("fp32", figures, "cpu", fast)


@functools.cache
def _speeds() -> dict[str, float]:
    """GFLOP/s of each way to multiply, at its best: 0 for one that this torch has not.

    The ways take turns, and the best of many tries counts: other work on the machine slows down all alike. Measured
    once, so that what is tried before a run is in the arithmetic that the run will have.
    """
    m, k, n = _SHAPE
    ways = {
        "fp32": (_product(torch.float32), False),
        "fp32 through oneDNN": (_product(torch.float32), True),
        "bf16": (_product(torch.bfloat16), False),
    }
    best = dict.fromkeys(ways, float("inf"))
    for attempt in range(_TRIES + 1):
        for name, (product, switched) in ways.items():
            if _HOPELESS * min(best.values()) < best[name] < float("inf"):
                continue
            seconds = _timed(product, switched)
            if attempt:  # the first one pays for set-up
                best[name] = min(best[name], seconds)
    return {name: 2e-9 * m * k * n / seconds for name, seconds in best.items()}


def _timed(product: Callable[[], Tensor], switched: bool) -> float:
    """Seconds of a product; infinite where oneDNN is asked for and this torch was built without."""
    try:
        with _fp32_through_onednn(switched):
            start = time.perf_counter()
            product()
            return time.perf_counter() - start
    except RuntimeError:
        if not switched:
            raise
        return float("inf")


def onednn_is_honest(multiply: Callable[[Tensor, Tensor], Tensor] = F.linear) -> bool:
    """Return whether oneDNN's fp32 products are as exact as the usual ones. multiply: (M, K), (N, K) -> (M, N).

    torch's switch for it is named after bf16 because it permits oneDNN to compute in bf16; on machines where it does
    so (AMX), a product against fp64 shows it.
    """
    exact, error = _product(torch.float64, multiply)(), list[float]()
    for switched in (False, True):
        with _fp32_through_onednn(switched):
            error.append(float((_product(torch.float32, multiply)().double() - exact).abs().max()))
    return error[1] < _MAX_RELATIVE_ERROR * error[0]


@contextmanager
def _fp32_through_onednn(switched: bool) -> Iterator[None]:
    """Send fp32 products there inside, or not at all."""
    settings = _mkldnn_matmul()
    before = settings.fp32_precision
    settings.fp32_precision = "bf16" if switched else "none"
    try:
        yield
    finally:
        settings.fp32_precision = before


def _mkldnn_matmul() -> Any:
    """torch's switches for fp32 products on the CPU, which its type hints do not know."""
    return cast(Any, torch.backends.mkldnn).matmul


def _product(dtype: torch.dtype, multiply: Callable[[Tensor, Tensor], Tensor] = F.linear) -> Callable[[], Tensor]:
    m, k, n = _SHAPE
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(m, k, generator=generator).to(dtype)
    b = torch.randn(n, k, generator=generator).to(dtype)
    return lambda: multiply(a, b)
