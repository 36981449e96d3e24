"""Wrappers of kernels that pass over rows: softmax of the loss, sums. Shapes: N rows, D columns."""

from collections.abc import Sequence
from ctypes import c_int64, c_void_p

import torch
from torch import Tensor

from nmt.kernels.dropping import NO_DROPOUT
from nmt.kernels.switch import is_half, kernels, takes, workspace


def add_to(total: Tensor, x: Tensor) -> None:
    """total + x, in place of total."""
    assert total.is_contiguous() and x.is_contiguous() and total.shape == x.shape
    tensors = total, is_half(total), x, is_half(x), total, is_half(total)
    kernels().drop_add(*tensors, x.numel(), *NO_DROPOUT, torch.get_num_threads())


def add_bias(x: Tensor, bias: Tensor, *, relu: bool = False) -> Tensor:
    """x + bias, (N, D) and (D,) fp32, in place of x. relu: take the ReLU of the sum."""
    assert x.is_contiguous()
    kernels().add_bias(x, is_half(x), bias, relu, *x.shape, torch.get_num_threads())
    return x


def exponents(z: Tensor, gold: Tensor, kept: float) -> tuple[Tensor, Tensor]:
    """Turn logits z (N, V), in place, into p = exp(z - max), less kept · sum(p) at the gold column. gold: (N,) ids.

    Returns sum(p), and log(sum(exp(z))) - kept · z[gold], both (N,) fp32.
    """
    assert z.is_contiguous() and gold.is_contiguous()
    total, value = torch.empty(2, len(z)).unbind()
    kernels().exponents(z, is_half(z), gold, kept, total, value, z.size(0), z.size(1), torch.get_num_threads())
    return total, value


def column_sums(x: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Sum over rows: (N, D) -> (D,) fp32. hidden: the output of a ReLU. Then x is the gradient of that output, and is
    replaced by the gradient of the input."""
    assert x.is_contiguous() and (hidden is None or hidden.is_contiguous())
    sums = torch.empty(x.size(1))
    kernels().column_sums(
        x, hidden, is_half(x), x.size(0), x.size(1), sums, workspace(size_of_sums(*x.shape)), torch.get_num_threads()
    )
    return sums


def size_of_sums(n_row: int, n_col: int) -> int:
    """Return the bytes of the partial column sums that kernels add up."""
    n_part: int = -(-n_row // kernels().rows_a_sum())
    return 4 * n_part * n_col


def norm(tensors: Sequence[Tensor]) -> Tensor | None:
    """Root of the sum of all squares, 0-dim, of dense tensors of fp32; None for others, or without kernels."""
    if not (takes(*tensors) and all(tensor.is_contiguous() and tensor.dtype == torch.float32 for tensor in tensors)):
        return None
    sizes = [tensor.numel() for tensor in tensors]
    part_size = kernels().numbers_a_part()
    sums = torch.empty(sum(-(-size // part_size) for size in sizes), dtype=torch.float64)
    n = len(sizes)
    addresses = (c_void_p * n)(*(tensor.data_ptr() for tensor in tensors))
    kernels().squares(addresses, (c_int64 * n)(*sizes), n, sums, torch.get_num_threads())
    return sums.sum().sqrt().float()
