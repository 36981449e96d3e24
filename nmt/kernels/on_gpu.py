"""Support of kernels in Triton: GPUs, and tensors that they take. Triton comes with torch for CUDA."""

import functools
import importlib.util
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_WIDTHS = (16, 32, 64, 128)  # of a head: what a product of tiles takes
_MOST_BYTES = 256  # of a head
_MOST = 64  # rows of a tile
_WIDEST_ROW = 4096  # that is normalised: a program holds it whole
_WIDEST_BEAM = 8  # all that hypotheses of a sentence may go on with is looked at together
_OLDEST = (8, 0)  # capability of Ampere, the first with products in bf16


@functools.cache
def is_new(device: torch.device) -> bool:
    """True for a GPU of Ampere or later: what torch's attention of variable lengths wants, and so do ours."""
    return torch.cuda.get_device_capability(device) >= _OLDEST


@functools.cache
def works(device: torch.device) -> bool:
    """True if Triton can make kernels for a GPU, which takes a C compiler: tried once, by a small one."""
    if importlib.util.find_spec("triton") is None or not is_new(device):
        return False
    from nmt.kernels import tiles_triton

    with torch.cuda.device(device):
        return tiles_triton.counts(device)


def takes(x: Tensor) -> bool:
    """True if kernels take a tensor like this."""
    return x.is_cuda and x.dtype in _DTYPES and works(x.device)


def fits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """True if those of attention, where there are any, take queries, keys and values whose last dimension is the width
    of a head."""
    if v.dtype not in _DTYPES or not q.dtype == k.dtype == v.dtype:
        return False
    # The memory of a processor holds tiles of wide heads in 16 bits alone, but on the largest GPUs.
    return all(x.size(-1) in _WIDTHS and x.size(-1) * x.itemsize <= _MOST_BYTES for x in (q, v))


def takes_hypotheses(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """True if that of a search takes (B, H, K, d_k), (B, G, S, d_k), (B, G, S, d_v): all that look at one head's keys
    are one tile."""
    return fits(q, k, v) and q.size(1) // k.size(1) * q.size(2) <= _MOST and takes(v)


def takes_choice(logits: Tensor, beam: int, score: Tensor) -> bool:
    """True if those of the end of a step do: logits (R, V) of `beam` hypotheses of each sentence, and their scores."""
    return beam <= _WIDEST_BEAM and score.dtype == torch.float32 and takes(logits)


def takes_norm(x: Tensor, more: Tensor | None, weight: Tensor) -> bool:
    """True if that of sums and norms takes x and what is added to it, (..., D), and the weight of a norm, (D,): all of
    one type, in which torch would answer, too, which under autocast it would not."""
    if x.size(-1) > _WIDEST_ROW or weight.shape != x.shape[-1:] or weight.dtype != x.dtype:
        return False
    if more is not None and (more.dtype, more.shape) != (x.dtype, x.shape):
        return False
    return takes(x) and not torch.is_autocast_enabled(x.device.type)


def on_its_device(x: Tensor) -> AbstractContextManager[object]:
    """The device that kernels are to be started on."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def dense(x: Tensor) -> Tensor:
    """x with the numbers of the last dimension side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()
