"""Requirements of the Triton kernels: GPUs and tensors that they support. Triton comes with torch for CUDA."""

import functools
import importlib.util
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_HEAD_WIDTHS = (16, 32, 64, 128)  # that products of tiles support
_MAX_HEAD_BYTES = 256
_MAX_TILE_ROWS = 64
_MAX_WIDTH = 4096  # of a norm: a program holds a whole row
_MAX_BEAM = 8  # a program holds all continuations of a sentence
_AMPERE = (8, 0)  # capability of the first GPUs with products in bf16


@functools.cache
def is_new(device: torch.device) -> bool:
    """True for a GPU of Ampere or later, which these kernels and torch's attention of variable lengths need."""
    return torch.cuda.get_device_capability(device) >= _AMPERE


@functools.cache
def works(device: torch.device) -> bool:
    """True if Triton can compile kernels for a GPU, which needs a C compiler. Tested once, with a small kernel."""
    if importlib.util.find_spec("triton") is None or not is_new(device):
        return False
    from nmt.kernels import tiles_triton

    with torch.cuda.device(device):
        return tiles_triton.can_compile(device)


def takes(x: Tensor) -> bool:
    """True if kernels take a tensor of this type and device."""
    return x.is_cuda and x.dtype in _DTYPES and works(x.device)


def fits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """True if the attention kernels, on a GPU that supports them, take queries, keys and values. The last dimension is
    the width of a head."""
    if v.dtype not in _DTYPES or not q.dtype == k.dtype == v.dtype:
        return False
    # Except on the largest GPUs, shared memory holds tiles of wide heads only in 16 bits.
    return all(x.size(-1) in _HEAD_WIDTHS and x.size(-1) * x.itemsize <= _MAX_HEAD_BYTES for x in (q, v))


def takes_hypotheses(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """True if the attention kernel of a search takes (B, H, K, d_k), (B, G, S, d_k), (B, G, S, d_v): the queries of one
    key/value head must fit into one tile."""
    return fits(q, k, v) and q.size(1) // k.size(1) * q.size(2) <= _MAX_TILE_ROWS and takes(v)


def takes_choice(logits: Tensor, beam: int, score: Tensor) -> bool:
    """True if the kernels for the end of a step take logits (R, V), with `beam` hypotheses per sentence, and scores."""
    return beam <= _MAX_BEAM and score.dtype == torch.float32 and takes(logits)


def takes_norm(x: Tensor, more: Tensor | None, weight: Tensor) -> bool:
    """True if the kernel of sums and norms takes x and a summand, (..., D), and the weight of a norm, (D,). All must
    have one type, and autocast must be off, so that torch would return the same type."""
    if x.size(-1) > _MAX_WIDTH or weight.shape != x.shape[-1:] or weight.dtype != x.dtype:
        return False
    if more is not None and (more.dtype, more.shape) != (x.dtype, x.shape):
        return False
    return takes(x) and not torch.is_autocast_enabled(x.device.type)


def on_its_device(x: Tensor) -> AbstractContextManager[object]:
    """Context manager: make the device of x the current one, on which Triton starts kernels."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def dense(x: Tensor) -> Tensor:
    """Return x with stride 1 in the last dimension."""
    return x if x.stride(-1) == 1 else x.contiguous()
