"""Wrappers of kernels for the best continuations of hypotheses."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from nmt.kernels import on_gpu
from nmt.kernels.switch import is_half, kernels, takes


def choose(logits: Tensor, n: int, never: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the n best columns of each row of logits (R, V), without the ids of `never`: values in fp32 and columns,
    (R, n), best first, of equal ones the first; and the logsumexp of all columns, (R,). None if no kernel takes it."""
    if not takes(logits):
        return None
    logits, never = logits.contiguous(), never.contiguous()
    n_row, n_col = logits.shape
    assert n > 0 and never.dtype == torch.int64 and all(0 <= column < n_col for column in never.tolist())
    best, column, log_total = torch.empty(n_row, n), torch.empty(n_row, n, dtype=torch.int64), torch.empty(n_row)
    kernels().choose(
        logits, is_half(logits), n_row, n_col, never, len(never), n, best, column, log_total, torch.get_num_threads()
    )
    return best, column, log_total


def scan(logits: Tensor, never: Tensor, width: int | None) -> tuple[Tensor, Tensor] | None:
    """Return the logsumexp of each row of (R, V), and the maximum of each block of `width` columns, without those of
    `never`, in one pass on a GPU; None if no kernel takes it."""
    if not width or not on_gpu.takes(logits):
        return None
    from nmt.kernels import search_triton

    allowed = torch.ones(logits.size(-1), dtype=torch.uint8, device=never.device).index_fill_(0, never, 0)
    return search_triton.scan(logits, allowed, width)


def store(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, n_step: Tensor) -> bool:
    """Store keys and values as `ops.store` does, on a GPU. Returns False if no kernel takes it."""
    if not on_gpu.takes_hypotheses(k, k, v):
        return False
    from nmt.kernels import search_triton

    search_triton.store(keys, values, k, v, n_step)
    return True


def end_of_step(
    logits: Tensor, allowed: Callable[[], Tensor], state: Tensor, of: Mapping[str, Tensor], *more: Any
) -> Tensor | None:
    """`choice_triton.end_of_step`; None if no kernel takes it. The choice among equal columns is deterministic."""
    if not on_gpu.takes_choice(logits, of["score"].size(1), of["score"]):
        return None
    from nmt.kernels import choice_triton

    return choice_triton.end_of_step(logits, allowed(), state, of, *more)
