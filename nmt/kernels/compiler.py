"""The kernels as a library: compiled once for this processor, kept in the user's cache, and loaded.

Without a C compiler, or on another system than Linux, there is none, and torch's own operations do the same.
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
# Without -ffast-math, which would take it for granted that all is finite. Loops begin a line of the cache: panels are a
# tenth slower where theirs begins anywhere.
_FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-falign-loops=64", "-fopenmp", "-fPIC", "-std=gnu11")
_OF_PROCESSOR = {"x86_64": ("-march=native", "-mprefer-vector-width=512"), "aarch64": ("-mcpu=native",)}
_OF_CPU = (b"model name", b"flags", b"Features", b"CPU part")  # how lines of /proc/cpuinfo begin that tell of it
_SECONDS = 120  # that a compiler may take

_DEFINED = re.compile(r"^(void|int|int64_t) (\w+)\(([^)]*)\) \{", re.MULTILINE)
_KINDS: dict[str, Any] = {"void": None, "int": ctypes.c_int, "int64_t": ctypes.c_int64}
_KINDS |= {"uint64_t": ctypes.c_uint64, "float": ctypes.c_float}


class NotCompiled(Exception):
    """Raised with the reason where there is no library."""


def library() -> ctypes.CDLL:
    """The library, compiled now if it never was. Raises NotCompiled, saying why."""
    found = _library()
    if isinstance(found, str):
        raise NotCompiled(found)
    return found


@functools.cache
def _library() -> ctypes.CDLL | str:
    """The library, or why there is none: a second question does not wait for the same answer."""
    try:
        return _load()
    except (NotCompiled, OSError) as why:
        return str(why)


def _load() -> ctypes.CDLL:
    flags = _OF_PROCESSOR.get(platform.machine())
    if sys.platform != "linux" or flags is None:
        raise NotCompiled(f"they are for Linux on x86-64 or ARM64, and this is {platform.platform()}")
    # No clang: its OpenMP has functions that torch's has not.
    compiler = os.environ.get("CC", "").split() or [name for name in ("gcc", "cc") if shutil.which(name)][:1]
    if not compiler or not shutil.which(compiler[0]):
        raise NotCompiled(f"there is no C compiler ({compiler[0] + ', which CC names' if compiler else 'gcc or cc'})")
    openmp = find_openmp()
    processor = {line for line in Path("/proc/cpuinfo").read_bytes().split(b"\n") if line.startswith(_OF_CPU)}
    made_of = [path.read_bytes() for path in _SOURCES]
    made_of += [repr([compiler, _FLAGS, flags]).encode(), _run([*compiler, "--version"]), bytes(openmp)]
    digest = hashlib.sha256(b"\0".join([*made_of, *sorted(processor)])).hexdigest()[:24]
    name = f"kernels-{digest}.so"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if cache.parts[:1] != ("~",):  # as where nobody has a home
        with suppress(OSError, NotCompiled):  # where it cannot be written, has no room, or nothing is run from it
            return _made(cache / "nmt" / name, compiler, flags, openmp)
    with tempfile.TemporaryDirectory() as temporary:  # the library stays, though its file goes
        return _made(Path(temporary) / name, compiler, flags, openmp)


def _made(path: Path, compiler: list[str], flags: Sequence[str], openmp: Path) -> ctypes.CDLL:
    """The library of a file; if it is not there, it is compiled, and gets its name when it is whole. Raises OSError or
    NotCompiled."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.is_file():
        with tempfile.TemporaryDirectory(dir=path.parent) as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
            parts = {source: f"{folder}/{source.name}.o" for source in _SOURCES if source.suffix == ".c"}
            command = [*compiler, *_FLAGS, *flags, "-c"]
            list(pool.map(lambda part: _run([*command, str(part[0]), "-o", part[1]]), parts.items()))
            libraries = [str(openmp), "-lm", "-Wl,--no-undefined"]  # rather than fail when it is loaded
            _run([*compiler, "-shared", *parts.values(), *libraries, "-o", f"{folder}/kernels.so"])
            with open(f"{folder}/kernels.so", "rb") as file:
                os.fsync(file.fileno())
            os.replace(f"{folder}/kernels.so", path)
    return _declared(ctypes.CDLL(str(path)))


def _run(command: list[str]) -> bytes:
    """Return the output of a command. Raises NotCompiled where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NotCompiled(f"{command[0]} took over {_SECONDS} seconds") from None
    if done.returncode:
        said = [line for line in done.stderr.decode("utf-8", "replace").split("\n") if "error" in line]
        raise NotCompiled(f"{command[0]} failed: {said[0] if said else f'code {done.returncode}'}")
    return done.stdout


class Address(ctypes.c_void_p):
    """Address of a tensor, or any other pointer, as an argument of a kernel."""

    @classmethod
    def from_param(cls, value: Any) -> Any:
        """value: a tensor, an address, an array or None."""
        return ctypes.c_void_p(value.data_ptr()) if isinstance(value, torch.Tensor) else super().from_param(value)


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library, whose functions take what their definitions in C say: tensors, and numbers by their types."""
    for source in _SOURCES:
        for returned, name, listed in _DEFINED.findall(source.read_text(encoding="utf-8")):
            parameters = [] if listed == "void" else [one.split() for one in listed.split(",")]
            # What takes structures is called by kernels alone, and what is not compiled for this processor by nobody.
            if all("*" in one[-1] or one[-2] in _KINDS for one in parameters) and hasattr(library, name):
                function = getattr(library, name)
                function.restype = _KINDS[returned]
                function.argtypes = [Address if "*" in one[-1] else _KINDS[one[-2]] for one in parameters]
    return library


def find_openmp() -> Path:
    """The file of torch's OpenMP, of the libraries that are loaded. Linux only; raises NotCompiled."""
    try:
        of_torch = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        place = ctypes.cast(of_torch.omp_get_max_threads, ctypes.c_void_p).value or 0
    except (OSError, AttributeError) as error:
        raise NotCompiled(f"this torch has no OpenMP: {error}") from None
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            first, end = (int(bound, 16) for bound in line.split(maxsplit=1)[0].split("-"))
            if first <= place < end:
                return Path("/" + line.rstrip("\n").partition("/")[2])
    raise NotCompiled("this torch has no OpenMP")
