"""The smallest kernel in Triton, which shows whether larger ones can be made here."""

import subprocess

import torch
import triton
import triton.language as tl

_N = 16


@triton.jit
def _count(x, N: tl.constexpr):
    place = tl.arange(0, N)
    tl.store(x + place, place)


def counts(device: torch.device) -> bool:
    """Whether it can be made for a device, the present one, and does so there."""
    try:
        x = torch.zeros(_N, dtype=torch.int32, device=device)
        _count[(1,)](x, N=_N)
        return x.tolist() == list(range(_N))
    except (triton.TritonError, RuntimeError, OSError, ImportError, subprocess.SubprocessError):
        return False
