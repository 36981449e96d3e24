"""The kernels as a library: compiled once for this processor and loaded.

Who has no C compiler, or another system than Linux, has no library, and torch's own operations do the same. Nothing of
it is in a wheel: what is compiled here may use all that this processor has.
"""

import contextlib
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
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

_HERE = Path(__file__).parent
_SOURCES = (
    "numbers.h",
    "tiles.h",
    "halves.h",
    "products.h",
    "passes.c",
    "norms.c",
    "products.c",
    "tiles.c",
    "panels.c",
    "sparse.c",
    "bytes.c",
    "weight_gradient.c",
    "half_products.c",
    "attention.c",
    "choice.c",
)
# Without -ffast-math, which would take it for granted that all is finite. Loops begin a line of the cache: panels are a
# tenth slower where theirs begins anywhere.
_FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-falign-loops=64", "-fopenmp", "-fPIC", "-std=gnu11")
_OF_PROCESSOR = {"x86_64": ("-march=native", "-mprefer-vector-width=512"), "aarch64": ("-mcpu=native",)}
_OF_CPU = (b"model name", b"flags", b"Features", b"CPU part")  # how lines of /proc/cpuinfo begin that tell of it
_N_SUM = 32  # bytes at the end of a library, of the SHA-256 of what is before them
_SECONDS = 120  # that a compiler may take

_DEFINED = re.compile(r"^(void|int|int64_t) (\w+)\(([^)]*)\) \{", re.MULTILINE)
_KINDS: dict[str, Any] = {
    "void": None,
    "int": ctypes.c_int,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float,
}


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
    """The library, or why there is none: who asks again is not kept waiting for the same answer."""
    try:
        return _load()
    except NotCompiled as why:
        return str(why)


def _load() -> ctypes.CDLL:
    flags = _OF_PROCESSOR.get(platform.machine())
    if sys.platform != "linux" or flags is None:
        raise NotCompiled(f"they are for Linux on x86-64 or ARM64, and this is {platform.platform()}")
    named = os.environ.get("CC", "").split()
    compiler = named[:1] or [name for name in ("gcc", "cc", "clang") if shutil.which(name)][:1]
    if not compiler or not shutil.which(compiler[0]):
        raise NotCompiled(f"there is no C compiler ({named[0] + ', which CC names' if named else 'gcc, cc or clang'})")
    command = [*compiler, *named[1:], *_FLAGS, *flags]
    try:
        openmp = find_openmp()
    except NoOpenMP as error:
        raise NotCompiled(str(error)) from None
    try:
        return _kept(command, openmp)
    except (OSError, RuntimeError):  # nothing can be kept, or be run from where it would be
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "kernels.so"
                _compile(command, openmp, path)
                return _declared(path)  # which stays, though its file goes
        except OSError as error:
            raise NotCompiled(str(error)) from None


def _kept(command: list[str], openmp: Path) -> ctypes.CDLL:
    """The library from the user's cache, compiled into it if it is not there, or damaged."""
    import fcntl  # which Windows lacks

    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(cache) / "nmt" / f"kernels-{_digest(command, openmp)}.so"
    if not _is_whole(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # of a file system without locks
                fcntl.flock(folder, fcntl.LOCK_EX)  # one process compiles for all that start at once
            if not _is_whole(path):
                _compile(command, openmp, path)
        finally:
            os.close(folder)
    return _declared(path)


def _declared(path: Path) -> ctypes.CDLL:
    return declare(ctypes.CDLL(str(path)), ((_HERE / name).read_text(encoding="utf-8") for name in _SOURCES))


def _is_whole(path: Path) -> bool:
    """True if a library is as it was written: half of one would end the process that uses it."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return False
    return _sum_of(content[:-_N_SUM]) == content[-_N_SUM:]


def _sum_of(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _digest(command: list[str], openmp: Path) -> str:
    """A digest of all that the library depends on: source, compiler, processor."""
    processor = {line for line in Path("/proc/cpuinfo").read_bytes().split(b"\n") if line.startswith(_OF_CPU)}
    sources = [(_HERE / name).read_bytes() for name in _SOURCES]
    told = [*sources, repr(command).encode(), _run([command[0], "--version"]), bytes(openmp)]
    return hashlib.sha256(b"\0".join([*told, *sorted(processor)])).hexdigest()[:24]


def _compile(command: list[str], openmp: Path, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        linked = Path(folder) / "kernels.so"
        parts = {str(_HERE / name): str(Path(folder) / f"{name}.o") for name in _SOURCES if name.endswith(".c")}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda part: _run([*command, "-c", part[0], "-o", part[1]]), parts.items()))
        _run([command[0], "-shared", *parts.values(), str(openmp), "-lm", "-o", str(linked)])
        content = linked.read_bytes()
        linked.write_bytes(content + _sum_of(content))  # behind all that the system reads of a library
        os.replace(linked, path)


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


def declare(library: ctypes.CDLL, sources: Iterable[str]) -> ctypes.CDLL:
    """The library, whose functions take what their definitions in C say: a call with too few arguments is an error in
    Python, numbers need not be told their types, and tensors are given as they are."""
    for source in sources:
        for returned, name, listed in _DEFINED.findall(source):
            parameters = [] if listed == "void" else [one.split() for one in listed.split(",")]
            # What takes structures is called by kernels alone, and what is not compiled for this processor by nobody.
            if all("*" in one[-1] or one[-2] in _KINDS for one in parameters) and hasattr(library, name):
                function = getattr(library, name)
                function.restype = _KINDS[returned]
                function.argtypes = [Address if "*" in one[-1] else _KINDS[one[-2]] for one in parameters]
    return library


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
