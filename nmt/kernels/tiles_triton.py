"""Pieces that kernels in Triton share, and the smallest kernel, which shows if larger ones can be made here."""

import subprocess

import torch
import triton
import triton.language as tl


@triton.jit
def span_of(first, end, place, is_there):
    """Bounds of the spans of some places; those of places that are not there begin behind all others."""
    return tl.load(first + place, mask=is_there, other=2147483647), tl.load(end + place, mask=is_there, other=0)


@triton.jit
def rows_of(x, place, stride, at, is_there):
    """Numbers `at` of the rows in some places: (places, numbers), 0 where a place is not there."""
    return tl.load(x + place[:, None] * stride + at[None, :], mask=is_there[:, None], other=0.0)


@triton.jit
def look_further(z, values, top, total, found):
    """Attention that has seen more: z (N, M) scores to base 2, -inf where nothing is to be seen, of values (M, D).

    top, total: (N,) the highest score so far and the sum of exp2 of all less that one; found: (N, D) what weights that
    are not divided by the sum have found. Returns all three anew.
    """
    higher = tl.maximum(top, tl.max(z, 1))
    base = tl.where(higher == -float("inf"), 0.0, higher)  # where nothing is seen yet
    p = tl.exp2(z - base[:, None])
    shrink = tl.exp2(top - base)
    total = total * shrink + tl.sum(p, 1)
    found = tl.dot(p.to(values.dtype), values, found * shrink[:, None], input_precision="ieee")
    return higher, total, found


_N = 16


@triton.jit
def _count(x, N: tl.constexpr):
    place = tl.arange(0, N)
    tl.store(x + place, place)


def counts(device: torch.device) -> bool:
    """True if a kernel can be made for a device, the present one, and does its work there."""
    try:
        x = torch.zeros(_N, dtype=torch.int32, device=device)
        _count[(1,)](x, N=_N)
        return x.tolist() == list(range(_N))
    except (triton.TritonError, RuntimeError, OSError, ImportError, subprocess.SubprocessError):
        return False
