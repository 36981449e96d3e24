"""Switch for the CPU kernels, the tensors that they take (dense fp32 or bf16), and their workspace."""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from nmt.kernels.compiler import NotCompiled, library

N_CHANCE = 2**16  # dropout draws one of this many equally likely values for an element
_LINE = 64  # bytes of a cache line
_DTYPES = (torch.float32, torch.bfloat16)
_active: ctypes.CDLL | None = None  # the library while it is switched on


def use(wanted: bool) -> None:
    """Switch the kernels on or off for this process. Raises NotCompiled if this machine has none."""
    global _active
    _active = library() if wanted else None


@contextmanager
def kept() -> Iterator[None]:
    """Context manager: restore the switch at the end."""
    global _active
    before = _active
    try:
        yield
    finally:
        _active = before


def why_not() -> str:
    """Return the reason why this machine has no kernels; "" if it has them."""
    try:
        library()
    except NotCompiled as why:
        return str(why)
    return ""


def takes(*tensors: Tensor | None) -> bool:
    """True if kernels are switched on and take these tensors; None stands for a tensor that is left out."""
    if _active is None:
        return False
    if torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") not in _DTYPES:
        return False  # products would have another type than their factors
    for tensor in tensors:
        if tensor is not None and (not tensor.is_cpu or tensor.dtype not in _DTYPES):
            return False
    return not torch.compiler.is_compiling()


def is_half(tensor: Tensor | None) -> int:
    """Return 1 for a tensor of bf16, and 0 for another or None: the flag that kernels take."""
    return int(tensor is not None and tensor.dtype == torch.bfloat16)


def dtype_of_products(x: Tensor) -> torch.dtype:
    """Return the type of products of x: that of autocast, if it is on."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def allocate(size: int) -> tuple[Tensor, int]:
    """Allocate `size` bytes. Returns the tensor that owns them, and the address of the first, on a cache line."""
    buffer = torch.empty(size + _LINE, dtype=torch.uint8)
    return buffer, -(-buffer.data_ptr() // _LINE) * _LINE


class _Workspace(threading.local):
    buffer, address = torch.empty(0, dtype=torch.uint8), 0  # one per thread, which grows


_workspace = _Workspace()


def workspace(size: int) -> int:
    """Return the address of `size` bytes of scratch memory, on a cache line. The next call in this thread may return
    the same memory, which saves an allocation for each product."""
    if len(_workspace.buffer) < size + _LINE:
        _workspace.buffer, _workspace.address = allocate(size)
    return _workspace.address


def kernels() -> ctypes.CDLL:
    """Return the library. Only after `takes` has returned True."""
    assert _active is not None, "ask `takes` first"
    return _active
