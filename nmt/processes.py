"""Cores for this process, waiting of its threads, and its rank if torchrun started it."""

import math
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from nmt.errors import NmtError


def n_core(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return the number of cores that this process may use: by its affinity, and by the CPU quota of its container."""
    n = len(_cores())
    with suppress(ValueError):  # the quota is "max", or there is no such file
        microseconds, period = map(int, system_text(quota).split())
        n = min(n, math.ceil(microseconds / period))
    return n


def _cores() -> set[int]:
    """Return the numbers of the cores that this process may run on, where the system tells."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _respect_quota() -> None:
    """Limit OpenMP threads to the CPU quota of the container, which torch ignores."""
    if (n := n_core()) < len(_cores()):
        os.environ.setdefault("OMP_NUM_THREADS", str(n))


def sleep_while_waiting() -> None:
    """Let OpenMP threads sleep instead of spin while they wait for each other. Call it before importing torch. A value
    in the environment takes precedence. Spinning is faster only on an idle machine, and only slightly in a search."""
    _respect_quota()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


_SAMPLES = 0.1, 0.4, 1.0  # seconds of each measurement; a short burst of load ends before the last one
_SPARE = 0.5  # cores that may be busy on an idle machine


def sleep_if_busy(n_thread: int) -> float:
    """Let OpenMP threads sleep while they wait if other processes use the cores. Call it before importing torch.

    n_thread: number of threads, 0 for the default. More threads than cores always sleep. Returns the number of busy
    cores; 0 if all are idle, if their load is unknown, or if the policy is decided already. A thread that has lost its
    core stops all others, which spin. Measured by nmt-train with each OMP_WAIT_POLICY, presets tiny and small, on two
    cores: spinning was 1.4 times as fast on idle cores, and 6 to 18 times slower beside one busy process.
    """
    _respect_quota()
    if "OMP_WAIT_POLICY" in os.environ or "torch" in sys.modules:
        return 0.0
    threads = os.environ.get("OMP_NUM_THREADS", "")
    has_smt = system_text(Path("/sys/devices/system/cpu/smt/active")) == "1\n"
    n_default = int(threads) if threads.isdecimal() else n_core() // (2 if has_smt else 1)
    n_thread = n_thread or n_default
    if n_thread <= 1:
        return 0.0  # a single thread does not wait
    for seconds in _SAMPLES:
        n_idle = _n_idle(seconds)
        if n_idle > n_thread - _SPARE:
            return 0.0
    sleep_while_waiting()
    n_busy = len(_cores()) - n_idle
    return n_busy if n_busy >= _SPARE else 0.0


def _n_idle(seconds: float, stat: Path = Path("/proc/stat")) -> float:
    """Return the number of idle cores in the next seconds, of those of this process; infinite if it is not known."""
    names = {f"cpu{core}" for core in _cores()}

    def idle_ticks() -> int:
        rows = (line.split() for line in system_text(stat).splitlines())
        return sum(int(row[4]) + int(row[5]) for row in rows if row[0] in names)

    if not (before := idle_ticks()):
        return math.inf
    time.sleep(seconds)
    return (idle_ticks() - before) / (seconds * os.sysconf("SC_CLK_TCK"))


def system_text(path: Path) -> str:
    """Return the text of a file of the system, empty if this system has no such file or forbids reading it."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")  # Linux cuts process names inside characters
    except OSError:
        return ""


class ProcessRank(NamedTuple):
    """Rank of a process among those that torchrun started. local_rank: among those of its machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0


def process_rank(environment: Mapping[str, str] = os.environ) -> ProcessRank:
    """The rank that the environment describes; without WORLD_SIZE, that of a single process. Raises NmtError for an
    environment that torchrun would not set."""
    defaults = {"RANK": "", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}  # in the order of the fields of `ProcessRank`
    found = {name: environment.get(name, default) for name, default in defaults.items()}
    if found["WORLD_SIZE"] == "1":
        return ProcessRank()
    numbers = [int(text) if text.isdecimal() else -1 for text in found.values()]
    if min(numbers) < 0 or numbers[0] >= numbers[1]:
        shown = ", ".join(f"{name}={text!r}" for name, text in found.items())
        raise NmtError(
            f"the environment has {shown}, but torchrun sets numbers, RANK below WORLD_SIZE. Start the processes by "
            "torchrun, or unset WORLD_SIZE."
        )
    return ProcessRank(*numbers)
