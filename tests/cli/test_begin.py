"""Ctrl-C while a command still imports its modules, or when its work is over, ends it without a word."""

import os
import signal
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest

from nmt.cli import begin, entry

ROOT = Path(__file__).parents[2]
PRESSED = """
import os, runpy, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "{module}":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                pass  # as it gets lost in a library
sys.meta_path.insert(0, Finder())
sys.argv = ["nmt", "{folder}"]
{start}
"""
PRESSED_AT_THE_END = """
import atexit, os, runpy, signal, sys
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
sys.argv = ["nmt", "{folder}", *{flags}]
{start}
"""
AS_COMMAND = "from nmt.cli import entry; sys.exit(entry.{command}())"
AS_MODULE = "runpy.run_module('nmt.cli.{command}', run_name='__main__')"


@pytest.mark.skipif(sys.platform == "win32", reason="signals are others there")
@pytest.mark.parametrize(
    ("command", "start", "module"),
    [
        ("train", AS_MODULE, "pydantic"),
        ("translate", AS_COMMAND, "torch"),  # which is imported when the arguments have been read
    ],
)
def test_ctrl_c_ends_a_command_that_is_still_being_imported(tmp_path, command, start, module):
    (tmp_path / "recipe.yaml").touch()  # what is no run is answered before torch is imported
    code = PRESSED.format(module=module, start=start.format(command=command), folder=tmp_path)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


@pytest.mark.skipif(sys.platform == "win32", reason="signals are others there")
@pytest.mark.parametrize(
    ("command", "start", "folder"),
    [
        ("preprocess", AS_COMMAND, "none"),
        ("export", AS_MODULE, "none"),
        ("translate", AS_COMMAND, "RUN"),  # where torch is there to be tidied up as well
    ],
)
def test_ctrl_c_ends_a_command_whose_work_is_over(tmp_path, command, start, folder):
    (tmp_path / "recipe.yaml").touch()
    folder = folder.replace("RUN", str(tmp_path))
    flags = ["--to", "safetensors", "--output", "none"] if command == "export" else []
    code = PRESSED_AT_THE_END.format(flags=flags, start=start.format(command=command), folder=folder)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, cwd=ROOT)
    assert done.returncode == 130
    assert done.stderr.startswith(f"nmt-{command}: error: {folder}".encode()) and done.stderr.count(b"\n") == 1


def test_every_installed_command_begins_there():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert scripts == {
        f"nmt-{name}": f"nmt.cli.entry:{name}" for name in ("preprocess", "train", "translate", "export")
    }
    assert all(callable(getattr(entry, place.partition(":")[2])) for place in scripts.values())


def test_in_a_thread_of_its_own_a_command_leaves_signals_alone():
    before, found = signal.getsignal(signal.SIGINT), []

    def work():
        with begin.importing():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]


def test_who_has_decided_about_ctrl_c_already_is_left_alone():
    before = signal.getsignal(signal.SIGINT)
    try:
        for decided in (signal.SIG_IGN, lambda *_: None):
            signal.signal(signal.SIGINT, decided)
            with begin.importing():
                assert signal.getsignal(signal.SIGINT) is decided
            assert signal.getsignal(signal.SIGINT) is decided
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with begin.importing():
            assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
