"""What the kernels take and return, as their sources in C declare it.

So it is said once: numbers need not be told their types at each call, and a call with too few, or with one where a
place is wanted, is an error in Python.
"""

import ctypes
import re
from collections.abc import Iterable
from typing import Any

_DEFINED = re.compile(r"^(void|int|int64_t) (\w+)\(([^)]*)\) \{", re.MULTILINE)
_KINDS: dict[str, Any] = {
    "void": None,
    "int": ctypes.c_int,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float,
}


def declare(library: ctypes.CDLL, sources: Iterable[str]) -> ctypes.CDLL:
    """The library, whose functions now take what their definitions in the sources say."""
    for source in sources:
        for returned, name, listed in _DEFINED.findall(source):
            parameters = [] if listed == "void" else [one.split() for one in listed.split(",")]
            # What takes structures is called by kernels alone, and what is not compiled for this processor by nobody.
            if all("*" in one[-1] or one[-2] in _KINDS for one in parameters) and hasattr(library, name):
                function = getattr(library, name)
                function.restype = _KINDS[returned]
                function.argtypes = [ctypes.c_void_p if "*" in one[-1] else _KINDS[one[-2]] for one in parameters]
    return library
