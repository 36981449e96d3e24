"""What the C library does with large blocks of memory that were freed: work on a CPU wants them back at once."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # from malloc.h


def keep_freed_blocks() -> bool:
    """Have glibc keep blocks for the next ones of their size instead of returning them to the system.

    An update, or a step of a search, takes and frees the same large blocks again and again, and each page that the
    system hands out anew costs a fault and is zeroed first. Returns whether this C library can be told so.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and mallopt(_MMAP_MAX, 0) == 1 and mallopt(_TRIM_THRESHOLD, -1) == 1
