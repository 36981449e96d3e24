"""The kernels that pass over rows, called with tensors: dropout, the softmax of the loss, sums. N rows, D columns."""

from collections.abc import Sequence
from ctypes import c_int64, c_void_p

import torch
from torch import Tensor

from nmt.kernels.switch import half, switched_on, takes, workroom


def drop_add(x: Tensor, residual: Tensor | None, seed: int, n_drop: int, scale: float, dtype: torch.dtype) -> Tensor:
    """residual + x · scale where it stays, in `dtype`: which elements stay follows from the seed and their number."""
    x = x.contiguous()
    out = torch.empty_like(x, dtype=dtype)
    _drop_add(out, x, None if residual is None else residual.contiguous(), seed, n_drop, scale)
    return out


def add_to(total: Tensor, x: Tensor) -> None:
    """total + x, in place."""
    assert total.is_contiguous() and x.is_contiguous() and total.shape == x.shape
    _drop_add(total, x, total, seed=0, n_drop=0, scale=1.0)


def _drop_add(out: Tensor, x: Tensor, residual: Tensor | None, seed: int, n_drop: int, scale: float) -> None:
    tensors = out, half(out), x, half(x), residual, half(residual)
    switched_on().drop_add(*tensors, x.numel(), seed, n_drop, scale, torch.get_num_threads())


def add_bias(x: Tensor, bias: Tensor, *, relu: bool = False) -> Tensor:
    """x + bias, (N, D) and (D,) fp32, in place, and the ReLU of that if wanted."""
    assert x.is_contiguous()
    switched_on().add_bias(x, half(x), bias, relu, *x.shape, torch.get_num_threads())
    return x


def exponents(z: Tensor, gold: Tensor, kept: float) -> tuple[Tensor, Tensor]:
    """Logits z (N, V) become p = exp(z - max), less kept · sum(p) at the gold column. gold: (N,) ids.

    Returns sum(p), and log(sum(exp(z))) - kept · z[gold], both (N,) fp32.
    """
    assert z.is_contiguous() and gold.is_contiguous()
    total, value = torch.empty(2, len(z)).unbind()
    switched_on().exponents(z, half(z), gold, kept, total, value, z.size(0), z.size(1), torch.get_num_threads())
    return total, value


def turned(x: Tensor) -> Tensor:
    """(N, D) fp32 -> (D, N), which is dense."""
    assert x.is_contiguous() and x.dtype == torch.float32
    out = torch.empty(x.size(1), x.size(0))
    switched_on().turn(out, x, *x.shape, torch.get_num_threads())
    return out


def column_sums(x: Tensor, hidden: Tensor | None = None) -> Tensor:
    """(N, D) -> (D,) fp32. hidden: the output of a ReLU; then x is its gradient, and becomes that of the input."""
    assert x.is_contiguous() and (hidden is None or hidden.is_contiguous())
    sums = torch.empty(x.size(1))
    switched_on().column_sums(
        x, hidden, half(x), x.size(0), x.size(1), sums, workroom(size_of_sums(*x.shape)), torch.get_num_threads()
    )
    return sums


def size_of_sums(n_row: int, n_col: int) -> int:
    """Bytes of the sums of columns of parts of rows, which kernels add up."""
    n_part: int = -(-n_row // switched_on().rows_a_sum())
    return 4 * n_part * n_col


def norm(tensors: Sequence[Tensor]) -> Tensor | None:
    """The root of the sum of all squares, 0-dim, of dense tensors of fp32; None for others, or without kernels."""
    if not (takes(*tensors) and all(one.is_contiguous() and one.dtype == torch.float32 for one in tensors)):
        return None
    size = [tensor.numel() for tensor in tensors]
    part = switched_on().numbers_a_part()
    sums = torch.empty(sum(-(-n // part) for n in size), dtype=torch.float64)
    n = len(size)
    places = (c_void_p * n)(*(tensor.data_ptr() for tensor in tensors))
    switched_on().squares(places, (c_int64 * n)(*size), n, sums, torch.get_num_threads())
    return sums.sum().sqrt().float()
