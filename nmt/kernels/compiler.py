"""The C kernels as a shared library: compiled once for this processor, cached for the user, and loaded.

Without a C compiler, or on a system other than Linux, there is no library, and torch operations are used instead.
"""

import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

_SOURCES = tuple(sorted(path for path in Path(__file__).parent.iterdir() if path.suffix in (".c", ".h")))
# No -ffast-math: it assumes that all numbers are finite. Loops are aligned to cache lines: without that, panels are a
# tenth slower.
_FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-falign-loops=64", "-fopenmp", "-fPIC", "-std=gnu11")
_FLAGS_OF = {"x86_64": ("-march=native", "-mprefer-vector-width=512"), "aarch64": ("-mcpu=native",)}
_CPU_FIELDS = (b"model name", b"flags", b"Features", b"CPU part")  # of /proc/cpuinfo, that identify the processor
_SECONDS = 120  # timeout of a command

_DEFINITION = re.compile(r"^(void|int|int64_t) (\w+)\(([^)]*)\) \{", re.MULTILINE)
_C_TYPES: dict[str, Any] = {"void": None, "int": ctypes.c_int, "int64_t": ctypes.c_int64}
_C_TYPES |= {"uint64_t": ctypes.c_uint64, "float": ctypes.c_float}


class NotCompiled(Exception):
    """Raised if there is no library, with the reason."""


def library() -> ctypes.CDLL:
    """Return the library; compile it if the cache has none. Raises NotCompiled, with the reason."""
    result = _library()
    if isinstance(result, str):
        raise NotCompiled(result)
    return result


@functools.cache
def _library() -> ctypes.CDLL | str:
    """Return the library, or the reason why there is none. Failures are cached, too."""
    try:
        return _load()
    except (NotCompiled, OSError) as error:
        return str(error)


def _load() -> ctypes.CDLL:
    flags = _FLAGS_OF.get(platform.machine())
    if sys.platform != "linux" or flags is None:
        raise NotCompiled(f"they are for Linux on x86-64 or ARM64, and this is {platform.platform()}")
    # No clang: its OpenMP needs functions that the library of torch lacks.
    compiler = os.environ.get("CC", "").split() or [name for name in ("gcc", "cc") if shutil.which(name)][:1]
    if not compiler or not shutil.which(compiler[0]):
        raise NotCompiled(f"there is no C compiler ({compiler[0] + ', which CC names' if compiler else 'gcc or cc'})")
    openmp = find_openmp()
    processor = {line for line in Path("/proc/cpuinfo").read_bytes().split(b"\n") if line.startswith(_CPU_FIELDS)}
    inputs = [path.read_bytes() for path in _SOURCES]
    inputs += [repr([compiler, _FLAGS, flags]).encode(), _run([*compiler, "--version"]), bytes(openmp)]
    name = f"kernels-{hashlib.sha256(b'|'.join([*inputs, *sorted(processor)])).hexdigest()[:24]}.so"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if cache.parts[:1] != ("~",):  # ~ stays if there is no home
        # The cache may be full, or not writable or executable: try again elsewhere.
        with suppress(OSError, NotCompiled):
            return _load_or_compile(cache / "nmt" / name, compiler, flags, openmp)
    with tempfile.TemporaryDirectory() as temporary:  # the library stays loaded without its file
        return _load_or_compile(Path(temporary) / name, compiler, flags, openmp)


def _load_or_compile(path: Path, compiler: list[str], flags: Sequence[str], openmp: Path) -> ctypes.CDLL:
    """Load the library, after compiling it if the file is missing. Raises OSError or NotCompiled."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.is_file():
        with tempfile.TemporaryDirectory(dir=path.parent) as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = {source: f"{folder}/{source.name}.o" for source in _SOURCES if source.suffix == ".c"}
            command = [*compiler, *_FLAGS, *flags, "-c"]
            list(pool.map(lambda item: _run([*command, str(item[0]), "-o", item[1]]), objects.items()))
            libraries = [str(openmp), "-lm", "-Wl,--no-undefined"]  # fail now, not when it is loaded
            _run([*compiler, "-shared", *objects.values(), *libraries, "-o", f"{folder}/kernels.so"])
            with open(f"{folder}/kernels.so", "rb") as file:
                os.fsync(file.fileno())
            os.replace(f"{folder}/kernels.so", path)  # only a complete file has the final name
    return _declared(ctypes.CDLL(str(path)))


def _run(command: list[str]) -> bytes:
    """Return the output of a command. Raises NotCompiled if it fails."""
    try:
        completed = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NotCompiled(f"{command[0]} took over {_SECONDS} seconds") from None
    if completed.returncode:
        errors = [line for line in completed.stderr.decode("utf-8", "replace").split("\n") if "error" in line]
        raise NotCompiled(f"{command[0]} failed: {errors[0] if errors else f'code {completed.returncode}'}")
    return completed.stdout


class Address(ctypes.c_void_p):
    """Argument type of a kernel: the address of a tensor, or another pointer."""

    @classmethod
    def from_param(cls, value: Any) -> Any:
        """value: a tensor, an address, an array or None."""
        return ctypes.c_void_p(value.data_ptr()) if isinstance(value, torch.Tensor) else super().from_param(value)


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the functions of the library with the types of their definitions in C."""
    for source in _SOURCES:
        for restype, name, listed in _DEFINITION.findall(source.read_text(encoding="utf-8")):
            parameters = [] if listed == "void" else [parameter.split() for parameter in listed.split(",")]
            # Skips functions with structures, which only kernels call, and those not compiled for this processor.
            if all("*" in words[-1] or words[-2] in _C_TYPES for words in parameters) and hasattr(library, name):
                function = getattr(library, name)
                function.restype = _C_TYPES[restype]
                function.argtypes = [Address if "*" in words[-1] else _C_TYPES[words[-2]] for words in parameters]
    return library


def find_openmp() -> Path:
    """Return the path of the OpenMP library that torch has loaded. Linux only; raises NotCompiled."""
    try:
        torch_library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        address = ctypes.cast(torch_library.omp_get_max_threads, ctypes.c_void_p).value or 0
    except (OSError, AttributeError) as error:
        raise NotCompiled(f"this torch has no OpenMP: {error}") from None
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            first, end = (int(bound, 16) for bound in line.split(maxsplit=1)[0].split("-"))
            if first <= address < end:
                return Path("/" + line.rstrip("\n").partition("/")[2])
    raise NotCompiled("this torch has no OpenMP")
