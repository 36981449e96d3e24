"""Commands that are broken on purpose: processes that are forked and not started, that strace can watch and kill.

What a command imports is loaded once. Each then runs in a fork, in a session of its own, and can wait until strace is
attached to it; what kills it there is a real SIGKILL. This process itself computes nothing, so that a fork never
inherits a thread.
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

PATIENCE = 240.0  # seconds for one command; it takes about one, on a busy machine many


def has_strace() -> bool:
    """Return whether strace is here and may watch other processes of ours."""
    with contextlib.suppress(OSError):
        return (
            subprocess.run(["strace", "-qq", "-o", os.devnull, "true"], capture_output=True, check=False).returncode
            == 0
        )
    return False


@dataclass
class Ended:
    """Outcome of a command. code: as a shell says it, 137 for SIGKILL. left: processes that outlived it."""

    code: int
    said: str
    left: list[int]


class Child:
    """A command in a fork of this process. It waits for `go`, so that strace can be attached before."""

    def __init__(self, body: Callable[[], int], talk: Path, environment: dict[str, str] | None = None) -> None:
        self._talk = talk
        ready, self._gate = os.pipe()
        self._start = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            _become(body, talk, ready, self._gate, environment or {})
        os.close(ready)
        self._strace: subprocess.Popen[str] | None = None

    def attach(self, *arguments: str, trace: Path | None = None) -> "Child":
        """Attach strace with these arguments, and return when it watches."""
        output = str(trace or os.devnull)
        command = ["strace", "-f", "-o", output, *arguments, "-p", str(self.pid)]
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
        """Send a signal, if the command still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def runs(self) -> bool:
        """Return whether the command has not ended; `wait` still tells how it did."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def wait(self) -> Ended:
        """Wait for the end. A command that does not end is killed, and that is a failure of its own."""
        while self.runs() and time.monotonic() - self._start < PATIENCE:
            time.sleep(0.002)
        stuck = self.runs()
        if stuck:
            os.kill(self.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        if self._strace is not None:
            assert self._strace.stderr is not None
            self._strace.wait()
            self._strace.stderr.close()
        said = self._talk.read_text(encoding="utf-8", errors="replace")
        return Ended(
            code if code >= 0 else 128 - code, said + ("\nIT DID NOT END\n" if stuck else ""), _survivors(self.pid)
        )


def _become(body: Callable[[], int], talk: Path, ready: int, gate: int, environment: dict[str, str]) -> None:
    """Body of the fork; it never returns."""
    code = 70
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it dies with the sweep
        os.close(gate)
        for target, file in (
            (0, os.open(os.devnull, os.O_RDONLY)),
            (1, os.open(talk, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)),
        ):
            os.dup2(file, target)
        os.dup2(1, 2)
        os.environ.update(environment)
        tqdm.set_lock(threading.RLock())  # a killed process must not hold one that others share
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
        os.read(ready, 1)
        code = body()
    finally:
        if sys.exception() is not None:
            traceback.print_exc()
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _survivors(session: int) -> list[int]:
    """Processes of a session that are there a minute after its first one ended: what has only begun ends when it has
    imported what it needs, which takes a second, or ten and more where others have the cores.
    """
    until = time.monotonic() + 60
    while (found := processes_of(session)) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return found


def processes_of(session: int) -> list[int]:
    """The processes of a session: a command, which has its number, and what it started."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _session_of(pid) == session]


def _session_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return -1


def preload_commands() -> None:
    """Import what the commands import when they begin to work, before the first of them tells of all it imports."""
    preload([f"nmt.cli.{command}_job" for command in ("preprocess", "train", "translate")])


def preload(modules: list[str]) -> None:
    """Import what a run imports on its way, so that every fork has it already. Importing must start no thread."""
    for name in modules:
        if not name.startswith("_"):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    threads = {path.read_text(encoding="utf-8").strip() for path in Path("/proc/self/task").glob("*/comm")}
    # Arrow's allocator has a thread of its own, and knows about forks.
    assert len(threads - {"jemalloc_bg_thd"}) == 1, f"a fork would inherit half of a thread: {threads}"


def wrong_end(ended: Ended) -> list[str]:
    """Return what a command did that no command may do, however it ends."""
    wrong = []
    if ended.left:
        wrong.append(f"O7 {len(ended.left)} processes were left")
    for sign in ("Traceback", "internal error", "IT DID NOT END"):
        if sign in ended.said:
            wrong.append(f"it ended with {sign!r}: {last_words(ended.said)}")
    return wrong


def last_words(said: str) -> str:
    """The end of what a command said, on one line."""
    return " | ".join(said.strip().split("\n")[-3:])[-600:]


@cache
def nobody() -> int:
    """The user without rights, where this one has all; 0 where it has not, and cannot become another."""
    return 65534 if os.geteuid() == 0 else 0
