"""The library of kernels: compiled once, cached if possible, and optional."""

import ctypes
import os
import subprocess
import sys

import pytest

from nmt.kernels import compiler, switch

NEEDS_COMPILER = pytest.mark.skipif(bool(switch.why_not()), reason=f"no kernels here: {switch.why_not()}")
ENVIRONMENT = dict(os.environ)  # its cache has the library of all sources


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, and few sources: compiling all of them takes ten times as long."""
    sources = [path for path in compiler._SOURCES if path.name in ("numbers.h", "choice.c")]
    monkeypatch.setattr(compiler, "_SOURCES", sources)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    compiler._library.cache_clear()
    yield tmp_path / "nmt"
    compiler._library.cache_clear()


@NEEDS_COMPILER
def test_library_is_compiled_once_for_each_compiler_and_cached(cache, monkeypatch):
    commands, run = [], compiler._run
    monkeypatch.setattr(compiler, "_run", lambda command: commands.append(command) or run(command))
    for cc, n_cached in (("", 1), ("", 1), ("cc -g0", 2)):
        monkeypatch.setenv("CC", cc)
        compiler._library.cache_clear()
        choose = compiler.library().choose
        assert len(list(cache.iterdir())) == sum("-shared" in command for command in commands) == n_cached
    assert choose.restype is None and choose.argtypes[:3] == [compiler.Address, ctypes.c_int, ctypes.c_int64]
    with pytest.raises((TypeError, ctypes.ArgumentError)):
        compiler.library().choose([0], 0.5)


@NEEDS_COMPILER
def test_library_is_compiled_for_the_process_without_a_cache(cache):
    cache.write_bytes(b"a file in the place of the folder")
    assert compiler.library().choose


@NEEDS_COMPILER
def test_library_uses_the_threads_of_torch_beside_other_libraries():
    code = """
import importlib.util, os, re
for other in ("ctranslate2", "sentencepiece"):
    if importlib.util.find_spec(other):
        __import__(other)
import torch
before = {line.split()[-1] for line in open("/proc/self/maps") if re.search(r"/lib(gomp|omp|iomp)[^/]*$", line)}
from nmt.kernels import switch
from nmt.kernels.passes import column_sums
switch.use(True)
torch.set_num_threads(2)
torch.ones(2**20).exp()  # which starts threads of torch
n_thread = len(os.listdir("/proc/self/task"))
column_sums(torch.empty(2**10, 2**10))
assert len(os.listdir("/proc/self/task")) == n_thread
assert before == {line.split()[-1] for line in open("/proc/self/maps") if re.search(r"/lib(gomp|omp|iomp)[^/]*$", line)}
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT)


@NEEDS_COMPILER
def test_compiler_may_have_a_wrapper(cache, tmp_path, monkeypatch):
    wrapper = tmp_path / "wrapper"
    wrapper.write_text('#!/bin/sh\nexec "$@"\n')  # as ccache
    wrapper.chmod(0o755)
    monkeypatch.setenv("CC", f"{wrapper} cc")
    assert compiler.library().choose and len(list(cache.iterdir())) == 1


@NEEDS_COMPILER
def test_library_is_compiled_elsewhere_if_the_cache_is_full(cache, monkeypatch):
    def run(command, real=compiler._run):
        if str(cache) in command[-1]:
            raise compiler.NotCompiled("cc failed: No space left on device")
        return real(command)

    monkeypatch.setattr(compiler, "_run", run)
    assert compiler.library().choose


@pytest.mark.skipif(sys.platform != "linux", reason="kernels are for Linux")
def test_compiler_of_another_machine_is_a_reason_and_no_error(tmp_path, monkeypatch):
    foreign = tmp_path / "gcc"
    foreign.write_bytes(b"\x7fELF of another machine")
    foreign.chmod(0o755)
    monkeypatch.setenv("CC", str(foreign))
    assert "Exec format error" in switch.why_not()


@pytest.mark.parametrize(
    ("cc", "reason"),
    [
        ("no-such-compiler -O1", r"no C compiler \(no-such-compiler, which CC names\)"),
        ("false", "false failed: code 1"),
    ],
)
def test_missing_compiler_is_named_in_the_error(cc, reason, monkeypatch):
    monkeypatch.setenv("CC", cc)
    with pytest.raises(compiler.NotCompiled, match=reason if sys.platform == "linux" else "Linux"):
        switch.use(True)
    monkeypatch.setattr(compiler.sys, "platform", "win32")
    compiler._library.cache_clear()
    assert "for Linux" in switch.why_not()


@NEEDS_COMPILER
def test_library_is_compiled_for_the_process_without_a_home(cache, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # its answer to a user without a home
    monkeypatch.chdir(cache.parent)
    assert compiler.library().choose and os.listdir(cache.parent) == []
