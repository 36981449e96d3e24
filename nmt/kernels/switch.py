"""The switch that puts the kernels to use, and what they take: dense tensors of fp32 or bf16 on a CPU."""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from nmt.kernels.compiler import NotCompiled, library

N_CHANCE = 2**16  # a decision of dropout is one of this many equally likely values
_LINE = 64  # bytes of the cache
_TYPES = (torch.float32, torch.bfloat16)
_used: ctypes.CDLL | None = None  # the library, while it is switched on


def use(wanted: bool) -> None:
    """Switch the kernels on or off, for all that follows in this process. Raises NotCompiled where there are none."""
    global _used
    _used = library() if wanted else None


@contextmanager
def kept() -> Iterator[None]:
    """Put the switch back at the end to where it was."""
    global _used
    before = _used
    try:
        yield
    finally:
        _used = before


def why_not() -> str:
    """Reason why there are no kernels on this machine; "" where there are."""
    try:
        library()
    except NotCompiled as why:
        return str(why)
    return ""


def takes(*tensors: Tensor) -> bool:
    """True if kernels are switched on and can work on these."""
    if _used is None:
        return False
    for tensor in tensors:
        if not tensor.is_cpu or tensor.dtype not in _TYPES:
            return False
    return not torch.compiler.is_compiling()


def half(tensor: Tensor | None) -> int:
    """1 if there is a tensor and its numbers are of two bytes, else 0."""
    return int(tensor is not None and tensor.dtype == torch.bfloat16)


def room(size: int) -> tuple[Tensor, int]:
    """So many bytes, and where they begin: with a line of the cache."""
    held = torch.empty(size + _LINE, dtype=torch.uint8)
    return held, -(-held.data_ptr() // _LINE) * _LINE


class _Rooms(threading.local):
    held = torch.empty(0, dtype=torch.uint8)  # each thread's own, which grows


_rooms = _Rooms()


def workroom(size: int) -> int:
    """Address of so many bytes for a kernel to work in, at a line of the cache: the next call in this thread may
    get the same ones, so that none need be found for each product."""
    if len(_rooms.held) < size + _LINE:
        _rooms.held, place = room(size)
        return place
    return -(-_rooms.held.data_ptr() // _LINE) * _LINE


def switched_on() -> ctypes.CDLL:
    """The library, for those who have asked `takes`."""
    assert _used is not None, "ask `takes` first"
    return _used
