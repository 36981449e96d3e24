"""The smallest kernel in Triton, which shows whether larger ones can be made here."""

import torch
import triton
import triton.language as tl

_N = 16


@triton.jit
def _count(x, N: tl.constexpr):
    place = tl.arange(0, N)
    tl.store(x + place, place)


def counts(device: torch.device) -> bool:
    """Whether it does so on a device, the present one. Raises what Triton raises where it cannot be made."""
    x = torch.zeros(_N, dtype=torch.int32, device=device)
    _count[(1,)](x, N=_N)
    return x.tolist() == list(range(_N))
