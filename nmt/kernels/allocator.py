"""What the C library does with memory: work on a CPU wants large blocks back at once, and long work in large pages."""

import ctypes
import sys
from ctypes import c_int, c_size_t, c_void_p

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # from malloc.h
_MADV_HUGEPAGE = 14  # from sys/mman.h
_HUGE_PAGE = 2 << 20
_HEAP = 8 << 30  # bytes of addresses; memory is taken as they are used


def keep_freed_blocks(*, in_large_pages: bool = False) -> bool:
    """Have glibc keep blocks for the next ones of their size instead of returning them to the system.

    An update, or a step of a search, takes and frees the same large blocks again and again, and each page that the
    system hands out anew costs a fault and is zeroed first. Returns whether this C library can be told so.
    in_large_pages: of 2 MB. Some virtual machines take milliseconds to hand one out, so that is for training: a
    translation gains nothing by them that could be measured, and one of a single line has to wait for dozens.
    """
    libc = ctypes.CDLL(None)
    mallopt = getattr(libc, "mallopt", None) if sys.platform == "linux" else None
    kept = mallopt is not None and mallopt(_MMAP_MAX, 0) == 1 and mallopt(_TRIM_THRESHOLD, -1) == 1
    if kept and in_large_pages:
        _ask_for_huge_pages(libc)
    return kept


def _ask_for_huge_pages(libc: ctypes.CDLL) -> None:
    """Have the system back the heap to come with pages of 2 MB, where it is not set against that.

    Passes over tensors then look up few addresses. The system must be asked about addresses that there are, so the heap
    is made to reach over them now, and keeps them when the block is freed. Where there is no room for that, nothing is
    lost.
    """
    libc.malloc.restype = c_void_p
    block = libc.malloc(c_size_t(_HEAP))
    if not block:
        return
    first, end = -(-block // _HUGE_PAGE) * _HUGE_PAGE, (block + _HEAP) // _HUGE_PAGE * _HUGE_PAGE
    libc.madvise(c_void_p(first), c_size_t(end - first), c_int(_MADV_HUGEPAGE))
    libc.free(c_void_p(block))
