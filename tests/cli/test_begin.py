"""Ctrl-C while a command still imports its modules, or when its work is over, ends it without a word."""

import gc
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from nmt.cli import begin, entry

ROOT = Path(__file__).parents[2]
PRESSED = """
import atexit, os, signal, sys
from nmt.cli import entry
class Finder:
    def find_spec(self, name, *_):
        if name == "{module}":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                pass  # as it gets lost in a library
sys.meta_path.insert(0, Finder())
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
sys.argv = ["nmt", "{folder}"]
sys.exit(entry.{command}())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are others there")
@pytest.mark.parametrize(
    ("command", "module", "said"),
    [
        ("train", "pydantic", ""),
        ("translate", "torch", ""),  # which is imported when the arguments have been read
        ("translate", "none", "nmt-translate: error: "),
    ],
)
def test_ctrl_c_ends_a_command_that_is_still_being_imported_or_over(tmp_path, command, module, said):
    (tmp_path / "recipe.yaml").touch()  # what is no run is answered before torch is imported
    code = PRESSED.format(module=module, folder=tmp_path, command=command)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, cwd=ROOT, text=True)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.startswith(said) and done.stderr.count("\n") == bool(said)


def test_every_installed_command_begins_there():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert scripts == {
        f"nmt-{name}": f"nmt.cli.entry:{name}" for name in ("preprocess", "train", "translate", "export")
    }
    assert all(callable(getattr(entry, place.partition(":")[2])) for place in scripts.values())


def test_ctrl_c_is_an_interrupt_once_all_is_imported_unless_others_have_decided_about_it():
    before = signal.getsignal(signal.SIGINT)
    try:
        for decided in (signal.SIG_IGN, lambda *_: None):
            signal.signal(signal.SIGINT, decided)
            begin.begin()
            assert signal.getsignal(signal.SIGINT) is decided and not gc.isenabled()
            begin.begun()
            assert signal.getsignal(signal.SIGINT) is decided and gc.isenabled()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        begin.begin()
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        begin.begun()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        begin.begun()
        signal.signal(signal.SIGINT, before)
