"""Peak speed of matrix products on this machine, the limit that training is compared with."""

import time
from typing import Any, cast

import torch
from torch import Tensor

# Width of the matrices that measure the peak: on a GPU wide enough for each of its processors to be busy to the end.
PEAK_SIZE = {"cpu": 2048, "cuda": 8192}


def peak(dtype: torch.dtype, device: torch.device, n: int) -> float:
    """FLOP/s of the best of several products of n x n matrices; on a GPU of several rows of products."""
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    if device.type == "cuda":
        return 2 * n**3 / min(_seconds_on_gpu(a, b) for _ in range(5))
    best = float("inf")
    for _ in range(4):
        begin = time.perf_counter()
        _ = a @ b
        best = min(best, time.perf_counter() - begin)
    return 2 * n**3 / best


def _seconds_on_gpu(a: Tensor, b: Tensor, n_product: int = 12) -> float:
    """Seconds of one a @ b. Many lie between two marks in the GPU's queue: neither their order nor the wait counts."""
    begin, end = (cast(Any, torch.cuda.Event)(enable_timing=True) for _ in range(2))  # which has no type hints
    begin.record()
    for _ in range(n_product):
        _ = a @ b
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000 / n_product  # it answers in milliseconds
