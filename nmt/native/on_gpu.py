"""Whether there are kernels in Triton here, which comes with torch for CUDA, and for which tensors."""

import importlib.util
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDTHS = (16, 32, 64, 128)  # of a head: what a product of tiles takes
_MOST = 64
_IS_THERE = importlib.util.find_spec("triton") is not None


def takes(*tensors: Tensor) -> bool:
    """Whether kernels take tensors like these."""
    return _IS_THERE and all(x.is_cuda and x.dtype in DTYPES and x.dtype == tensors[0].dtype for x in tensors)


def takes_heads(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether those of attention take queries, keys and values, whose last dimension is the width of a head."""
    return takes(q, k, v) and q.size(-1) in WIDTHS and v.size(-1) in WIDTHS


def takes_hypotheses(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether that of a search takes (B, H, K, d_k), (B, G, S, d_k), (B, G, S, d_v): all that look at one head's keys
    are one tile."""
    return takes_heads(q, k, v) and q.size(1) // k.size(1) * q.size(2) <= _MOST


def on_its_device(x: Tensor) -> AbstractContextManager[object]:
    """The device that kernels are to be started on."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def dense(x: Tensor) -> Tensor:
    """x with the numbers of the last dimension side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()
