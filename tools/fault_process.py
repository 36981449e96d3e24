"""Processes for fault injection: commands in forks of this process, which strace can trace and kill.

The modules of the commands are imported once. Each command runs in a fork with its own session, and can wait until
strace is attached. The kill is a real SIGKILL. This process computes nothing, so a fork never inherits a thread.
"""

import contextlib
import ctypes
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tqdm import tqdm

PATIENCE = 240.0  # seconds for a command; it needs about one, and many on a busy machine


def has_strace() -> bool:
    """Return whether strace is installed and may trace our processes."""
    with contextlib.suppress(OSError):
        return (
            subprocess.run(["strace", "-qq", "-o", os.devnull, "true"], capture_output=True, check=False).returncode
            == 0
        )
    return False


@dataclass
class Ended:
    """Outcome of a command. code: as in a shell, 137 for SIGKILL. survivors: processes that outlived it."""

    code: int
    output: str
    survivors: list[int]


class Child:
    """A command in a fork of this process. It waits for `go`, so strace can be attached first."""

    def __init__(self, body: Callable[[], int], output: Path, environment: dict[str, str] | None = None) -> None:
        self._output = output
        gate_reader, self._gate = os.pipe()
        self._start = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            _become(body, output, gate_reader, self._gate, environment or {})
        os.close(gate_reader)
        self._strace: subprocess.Popen[str] | None = None

    def attach(self, *arguments: str, trace: Path | None = None) -> "Child":
        """Attach strace with these arguments, and return when it is attached."""
        command = ["strace", "-f", "-o", str(trace or os.devnull), *arguments, "-p", str(self.pid)]
        self._strace = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, encoding="utf-8")
        assert self._strace.stderr is not None
        line = self._strace.stderr.readline()
        assert "attached" in line, line
        return self

    def go(self) -> "Child":
        """Let the command begin."""
        os.write(self._gate, b"!")
        os.close(self._gate)
        return self

    def send(self, number: int) -> None:
        """Send a signal if the command still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def runs(self) -> bool:
        """Return whether the command still runs. `wait` returns its outcome also afterwards."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def wait(self) -> Ended:
        """Wait for the end. A command that does not end in time is killed, which is a failure."""
        while self.runs() and time.monotonic() - self._start < PATIENCE:
            time.sleep(0.002)
        is_stuck = self.runs()
        if is_stuck:
            os.kill(self.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        if self._strace is not None:
            assert self._strace.stderr is not None
            self._strace.wait()
            self._strace.stderr.close()
        output = self._output.read_text(encoding="utf-8", errors="replace")
        output += "\nIT DID NOT END\n" if is_stuck else ""
        return Ended(code if code >= 0 else 128 - code, output, _survivors(self.pid))


def _become(body: Callable[[], int], output: Path, gate_reader: int, gate: int, environment: dict[str, str]) -> None:
    """Run the body of the fork. Never returns."""
    code = 70
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: the fork dies with the sweep
        os.close(gate)
        for target, file in (
            (0, os.open(os.devnull, os.O_RDONLY)),
            (1, os.open(output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)),
        ):
            os.dup2(file, target)
        os.dup2(1, 2)
        os.environ.update(environment)
        tqdm.set_lock(threading.RLock())  # a killed process must not hold a shared lock
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
        os.read(gate_reader, 1)
        code = body()
    finally:
        if sys.exception() is not None:
            traceback.print_exc()
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _survivors(session: int) -> list[int]:
    """Kill and return the processes of a session that still run a minute after its first one ended.

    A process that has just started ends only after its imports, which take a second, or ten and more on busy cores.
    """
    deadline = time.monotonic() + 60
    while (survivors := processes_of(session)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in survivors:
        os.kill(pid, signal.SIGKILL)
    return survivors


def processes_of(session: int) -> list[int]:
    """Return the processes of a session: a command, whose id is that of the session, and its children."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _session_of(pid) == session]


def _session_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return -1


def preload_commands() -> None:
    """Import the modules of the work of each command, before the first command reports its complete list."""
    preload(["nmt.data.prepare", "nmt.training.launch", "nmt.cli.translate_job"])


def preload(modules: list[str]) -> None:
    """Import modules, so that every fork has them already. Importing must start no thread."""
    for name in modules:
        if not name.startswith("_"):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    threads = {path.read_text(encoding="utf-8").strip() for path in Path("/proc/self/task").glob("*/comm")}
    # The allocator of Arrow has a thread, and handles forks.
    assert len(threads - {"jemalloc_bg_thd"}) == 1, f"a fork would inherit half of a thread: {threads}"


def failures_of(ended: Ended) -> list[str]:
    """Return the failures of a command that are wrong after any fault."""
    failures = []
    if ended.survivors:
        failures.append(f"O7 {len(ended.survivors)} processes were left")
    for sign in ("Traceback", "internal error", "IT DID NOT END"):
        if sign in ended.output:
            failures.append(f"it ended with {sign!r}: {last_lines(ended.output)}")
    return failures


def last_lines(output: str) -> str:
    """Return the end of the output of a command on one line."""
    return " | ".join(output.strip().split("\n")[-3:])[-600:]


@cache
def nobody() -> int:
    """Return the id of an unprivileged user; 0 if this process is not root and cannot switch users."""
    return 65534 if os.geteuid() == 0 else 0
