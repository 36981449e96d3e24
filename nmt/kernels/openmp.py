"""The library of threads that torch computes with: another one's threads and those would wait for each other."""

import ctypes
from pathlib import Path

import torch


class NoOpenMP(Exception):
    """Torch has no OpenMP that can be found."""

    def __init__(self, why: object = "") -> None:
        super().__init__(f"this torch has no OpenMP{f': {why}' if why else ''}")


def find_openmp() -> Path:
    """The file of that library, of those that are loaded. Linux only; raises NoOpenMP and OSError."""
    try:
        of_torch = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        place = ctypes.cast(of_torch.omp_get_max_threads, ctypes.c_void_p).value or 0
    except (OSError, AttributeError) as error:
        raise NoOpenMP(error) from None
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            first, end = (int(bound, 16) for bound in line.split(maxsplit=1)[0].split("-"))
            if first <= place < end:
                return Path("/" + line.rstrip("\n").partition("/")[2])
    raise NoOpenMP()
