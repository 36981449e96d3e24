"""The kernels that look for the best continuations of hypotheses, called with tensors."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from nmt.kernels import on_gpu
from nmt.kernels.switch import half, switched_on, takes


def choose(logits: Tensor, n: int, never: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """The n best columns of each row of logits (R, V) but for those of `never`, ids, best first and of equal ones the
    first: values in fp32 and columns, (R, n); and the logarithm of the sum of the exponentials of all columns, (R,);
    None where torch is to look for them."""
    if not takes(logits):
        return None
    logits, never = logits.contiguous(), never.contiguous()
    n_row, n_col = logits.shape
    assert n > 0 and never.dtype == torch.int64 and all(0 <= column < n_col for column in never.tolist())
    best, column, log_total = torch.empty(n_row, n), torch.empty(n_row, n, dtype=torch.int64), torch.empty(n_row)
    switched_on().choose(
        logits, half(logits), n_row, n_col, never, len(never), n, best, column, log_total, torch.get_num_threads()
    )
    return best, column, log_total


def scan(logits: Tensor, never: Tensor, width: int | None) -> tuple[Tensor, Tensor] | None:
    """The logarithm of the sum of the exponentials of each row of (R, V), and the highest of each `width` columns that
    are not among `never`, by one pass on a GPU; None where there is none such."""
    if not width or not on_gpu.takes(logits):
        return None
    from nmt.kernels import search_triton

    return search_triton.scan(logits, search_triton.allowed(logits.size(-1), never), width)


def store(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, n_step: Tensor) -> bool:
    """Store keys and values as `ops.store` does, on a GPU. Returns False where torch is to do it."""
    if not on_gpu.takes_hypotheses(k, k, v):
        return False
    from nmt.kernels import search_triton

    search_triton.write(keys, values, k, v, n_step)
    return True


def end_of_step(
    logits: Tensor, allowed: Callable[[], Tensor], state: Tensor, of: Mapping[str, Tensor], *more: Any
) -> Tensor | None:
    """`choice_triton.go_on`, of equally good columns any, but always the same; None where torch is to do it."""
    if not on_gpu.takes_choice(logits, of["score"].size(1), of["score"]):
        return None
    from nmt.kernels import choice_triton

    return choice_triton.go_on(logits, allowed(), state, of, *more)
