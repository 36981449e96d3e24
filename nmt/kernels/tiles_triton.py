"""Shared functions of the Triton kernels, and a minimal kernel that tests if Triton can compile."""

import subprocess

import torch
import triton
import triton.language as tl


@triton.jit
def load_spans(first, end, place, is_inside):
    """Load the bounds of the spans of places. Places that are not inside get an empty span that begins behind all."""
    return tl.load(first + place, mask=is_inside, other=2147483647), tl.load(end + place, mask=is_inside, other=0)


@triton.jit
def load_rows(x, place, stride, column, is_inside):
    """Load columns of the rows at places: (places, columns), 0 for places that are not inside."""
    return tl.load(x + place[:, None] * stride + column[None, :], mask=is_inside[:, None], other=0.0)


@triton.jit
def attend_to_tile(z, values, top, total, weighted):
    """One step of online softmax attention. z: (N, M) scores to base 2, -inf where masked; values: (M, D).

    top: (N,) highest score so far. total: (N,) sum of exp2(score - top). weighted: (N, D) weighted sum of values, not
    yet divided by the total. Returns all three, updated.
    """
    higher = tl.maximum(top, tl.max(z, 1))
    base = tl.where(higher == -float("inf"), 0.0, higher)  # -inf if all is masked so far
    p = tl.exp2(z - base[:, None])
    shrink = tl.exp2(top - base)
    total = total * shrink + tl.sum(p, 1)
    weighted = tl.dot(p.to(values.dtype), values, weighted * shrink[:, None], input_precision="ieee")
    return higher, total, weighted


_N = 16


@triton.jit
def _count(x, N: tl.constexpr):
    place = tl.arange(0, N)
    tl.store(x + place, place)


def can_compile(device: torch.device) -> bool:
    """True if a kernel compiles for a device, the current one, and gives the right result."""
    try:
        x = torch.zeros(_N, dtype=torch.int32, device=device)
        _count[(1,)](x, N=_N)
        return x.tolist() == list(range(_N))
    except (triton.TritonError, RuntimeError, OSError, ImportError, subprocess.SubprocessError):
        return False
