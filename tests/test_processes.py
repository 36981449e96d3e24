import contextlib
import math
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from nmt.processes import _n_idle, n_core

_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the load of the cores is measured on Linux only")
_DECIDE = "import os, nmt.processes as p; print(p.sleep_if_busy({}) > 0, os.environ.get('OMP_WAIT_POLICY'))"


@contextlib.contextmanager
def _busy_cores() -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _output(code: str, **environment: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    return subprocess.check_output([sys.executable, "-c", code], env=inherited | environment, text=True).strip()


def _decision(n_thread: int, **environment: str) -> str:
    return _output(_DECIDE.format(n_thread), **environment)


@_LINUX
def test_threads_sleep_while_they_wait_if_the_cores_are_busy():
    with _busy_cores():
        assert _decision(2) == "True passive"
        assert _decision(0, OMP_NUM_THREADS="2") == "True passive"
        assert _decision(1) == "False None", "a single thread does not wait"
        assert _decision(0, OMP_NUM_THREADS="1") == "False None"
        assert _decision(2, OMP_WAIT_POLICY="active") == "False active", "the environment takes precedence"


def test_more_threads_than_cores_sleep_but_an_idle_machine_is_not_called_busy():
    idle = "import os, nmt.processes as p; p._n_idle = lambda seconds: len(p._cores()) - 0.02; "
    assert _output(idle + "print(p.sleep_if_busy(10_000), os.environ.get('OMP_WAIT_POLICY'))") == "0.0 passive"


def test_load_is_unknown_if_the_counters_cannot_be_read(tmp_path):
    assert _n_idle(60.0, tmp_path) == math.inf, "reading a folder fails, as reading a protected file"


def test_load_is_unknown_without_counters_of_the_system(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sysconf", raising=False)  # as on Windows
    assert _n_idle(60.0, tmp_path / "missing") == math.inf, "at once, without waiting"


@pytest.mark.parametrize(("text", "n"), [("100000 100000", 1), ("50000 100000", 1), ("max 100000", None), (None, None)])
def test_the_quota_of_a_container_limits_the_cores(tmp_path, text, n):
    quota = tmp_path / "cpu.max"
    if text:
        quota.write_text(f"{text}\n")
    assert n_core(quota) == (n or n_core(tmp_path / "missing"))
