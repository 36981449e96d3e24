"""The library of kernels: compiled once, kept where it can be, and done without where it cannot be had."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nmt.kernels import compiler, switch

NEEDS_COMPILER = pytest.mark.skipif(bool(switch.why_not()), reason=f"no kernels here: {switch.why_not()}")


FEW = ("numbers.h", "choice.c")  # to compile all of them takes ten times as long
OWN = dict(os.environ)  # in which the library of all of them is in the cache


@pytest.fixture
def few_sources(monkeypatch):
    monkeypatch.setattr(compiler, "_SOURCES", FEW)


@pytest.fixture(scope="module")
def of_few(tmp_path_factory):
    """The library of few sources, in a cache that is only read."""
    cache = tmp_path_factory.mktemp("of few")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "_SOURCES", FEW)
        patch.setenv("XDG_CACHE_HOME", str(cache))
        patch.delenv("CC", raising=False)
        compiler._load()
    (kept,) = (cache / "nmt").iterdir()
    return kept


@pytest.fixture(autouse=True)
def an_empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    compiler._library.cache_clear()
    yield tmp_path / "nmt"
    compiler._library.cache_clear()


@pytest.fixture
def compilations(monkeypatch):
    """Every command that is run."""
    seen, run = [], compiler._run
    monkeypatch.setattr(compiler, "_run", lambda command: seen.append(command) or run(command))
    return lambda: sum("-shared" in command for command in seen)


def forget():
    compiler._library.cache_clear()


@NEEDS_COMPILER
@pytest.mark.usefixtures("few_sources")
def test_it_is_compiled_once_and_then_found(an_empty_cache, compilations):
    compiler.library()
    (kept,) = an_empty_cache.iterdir()
    assert compilations() == 1
    compiler.library()
    forget()
    compiler.library()
    assert compilations() == 1 and list(an_empty_cache.iterdir()) == [kept]


@NEEDS_COMPILER
@pytest.mark.parametrize("left", [0, 1000, -1])
@pytest.mark.usefixtures("few_sources")
def test_a_damaged_one_is_compiled_again(an_empty_cache, compilations, of_few, left, monkeypatch):
    whole, kept = of_few.read_bytes(), an_empty_cache / of_few.name
    an_empty_cache.mkdir()
    kept.write_bytes(whole[:left])

    def load(path, real=compiler.ctypes.CDLL):
        assert Path(path) != kept or kept.read_bytes() == whole, "half a library would end this process"
        return real(path)

    monkeypatch.setattr(compiler.ctypes, "CDLL", load)
    compiler.library()
    assert compilations() == 1 and kept.read_bytes() == whole
    forget()
    compiler.library()
    assert compilations() == 1


@NEEDS_COMPILER
@pytest.mark.usefixtures("few_sources")
def test_another_source_or_compiler_is_another_library(an_empty_cache, compilations, of_few, tmp_path, monkeypatch):
    shutil.copytree(of_few.parent, an_empty_cache)
    compiler.library()
    changed = tmp_path / "changed"
    shutil.copytree(compiler._HERE, changed)
    with (changed / "numbers.h").open("ab") as header:
        header.write(b"/* changed */\n")
    monkeypatch.setattr(compiler, "_HERE", changed)
    forget()
    compiler.library()
    monkeypatch.setenv("CC", "cc -g0")
    forget()
    compiler.library()
    assert compilations() == 2 and len(list(an_empty_cache.iterdir())) == 3


@NEEDS_COMPILER
@pytest.mark.usefixtures("few_sources")
def test_where_nothing_can_be_kept_it_is_compiled_for_this_process(an_empty_cache, compilations):
    an_empty_cache.write_bytes(b"a file in the place of the folder")
    compiler.library()
    assert compilations() == 1 and an_empty_cache.is_file()


@NEEDS_COMPILER
def test_of_several_processes_one_compiles(an_empty_cache, tmp_path):
    code = f"""
import os
from nmt.kernels import compiler
compiler._SOURCES = {FEW!r}
compile = compiler._compile
def compile_and_note(*given):
    open({str(tmp_path / "noted")!r}, "a").write("x")
    compile(*given)
compiler._compile = compile_and_note
for _ in range(3):
    if os.fork() == 0:
        compiler.library()
        os._exit(0)
assert [os.wait()[1] for _ in range(3)] == [0, 0, 0]
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert [path.suffix for path in an_empty_cache.iterdir()] == [".so"]
    assert (tmp_path / "noted").read_text() == "x"


@NEEDS_COMPILER
def test_it_works_with_the_threads_of_torch_whoever_else_brought_some():
    code = """
import importlib.util, os, re
for other in ("ctranslate2", "sentencepiece"):
    if importlib.util.find_spec(other):
        __import__(other)
import torch
before = {line.split()[-1] for line in open("/proc/self/maps") if re.search(r"/lib(gomp|omp|iomp)[^/]*$", line)}
from nmt.kernels import switch
from nmt.kernels.passes import decide
switch.use(True)
torch.set_num_threads(2)
torch.ones(2**20).exp()  # which starts threads of torch
n_thread = len(os.listdir("/proc/self/task"))
decide(torch.empty(2**20), 1, 1)
assert len(os.listdir("/proc/self/task")) == n_thread
assert before == {line.split()[-1] for line in open("/proc/self/maps") if re.search(r"/lib(gomp|omp|iomp)[^/]*$", line)}
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=OWN)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ("no-such-compiler -O1", r"no C compiler \(no-such-compiler, which CC names\)"),
        ("false", "false failed: code 1"),
    ],
)
def test_who_has_no_compiler_is_told_and_has_no_kernels(told, why, monkeypatch):
    monkeypatch.setenv("CC", told)
    if sys.platform != "linux":
        why = "Linux"
    with pytest.raises(compiler.NotCompiled, match=why):
        compiler.library()
    assert switch.why_not()
    with pytest.raises(compiler.NotCompiled):
        switch.use(True)


def test_another_system_has_no_kernels(monkeypatch):
    monkeypatch.setattr(compiler.sys, "platform", "win32")
    assert "for Linux" in switch.why_not()


@NEEDS_COMPILER
def test_numbers_have_the_types_of_the_definition():
    squares = compiler.library().squares
    assert squares.argtypes == [compiler.Address] * 2 + [ctypes.c_int64, compiler.Address, ctypes.c_int]
    assert squares.restype is None and compiler.library().lanes.restype is ctypes.c_int
    drop_add = compiler.library().drop_add
    assert [drop_add.argtypes[i] for i in (7, 9)] == [ctypes.c_uint64, ctypes.c_float]


@NEEDS_COMPILER
@pytest.mark.parametrize("wrong", [(0, 0, 1, 0), (0, 0.5, 1, 0, 1), ([0], 0, 1, 0, 1)])
def test_a_wrong_call_is_an_error(wrong):
    with pytest.raises((TypeError, ctypes.ArgumentError)):
        compiler.library().decide(*wrong)
