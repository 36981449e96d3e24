"""What all commands share: exit codes, messages, streams, Ctrl-C and other signals."""

import errno
import gc
import io
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from unittest.mock import Mock

import pytest
from disk import full_disk
from made_run import SOURCE

from nmt.cli import begin
from nmt.cli.begin import Stop, printable
from nmt.cli.parser import Parser, run
from nmt.cli.translate import main as translate_main
from nmt.errors import MachineError, NmtError, RecipeError, Unavailable

ROOT = Path(__file__).parents[2]
posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and shells are others there")


def fail_with(error):
    return Mock(side_effect=error)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (NmtError("no such thing"), 2, "nmt-x: error: no such thing\n"),
        (RecipeError("one\ntwo"), 2, "nmt-x: error: one\nnmt-x: error: two\n"),
        (MachineError("no memory"), 1, "nmt-x: error: no memory\n"),
        (Unavailable("no GPU"), 2, "nmt-x: error: no GPU\n"),
        (ModuleNotFoundError("…", name="torch"), 2, "installed without a package that it needs: no module torch"),
        (ModuleNotFoundError("No module named 'nmt.x'", name="nmt.x"), 1, "internal error (please report it"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "a.txt"), 2, "a.txt: No such file"),
        (OSError(errno.ENOSPC, "No space left on device", "big"), 1, "big: No space left on device"),
        (MemoryError(), 1, "out of memory"),
        (RuntimeError("[...] DefaultCPUAllocator: can't allocate memory: ..."), 1, "out of memory: [...] Default"),
        (KeyError("x"), 1, "internal error (please report it; --debug shows the traceback): KeyError: 'x'"),
        (NmtError("\x1b[2Jgone\x07 \u202egr\u00fcn"), 2, "\\x1b[2Jgone\\x07 \\u202egr\u00fcn"),
    ],
)
def test_an_error_becomes_a_message_and_an_exit_code(error, code, message, capsys):
    assert run(fail_with(error), Parser("nmt-x"), []) == code
    shown = capsys.readouterr().err
    assert message in shown and shown.startswith("nmt-x: error: ") and "Traceback" not in shown
    assert run(fail_with(error), Parser("nmt-x"), ["--debug"]) == code
    assert "Traceback" in capsys.readouterr().err
    assert printable("caf\u00e9 \u65e5\u672c \ud800") == "caf\u00e9 \u65e5\u672c \\ud800"


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (SystemExit(3), 3), (SystemExit(), 0)])
def test_being_stopped_is_silent(stop, code, capsys):
    assert run(fail_with(stop), Parser("nmt-x"), []) == code
    assert capsys.readouterr() == ("", "")


PRINTING = """
import sys
from nmt.cli.parser import Parser, run
def body(_):
    for _ in range(100_000):
        print("gr\\u00fcn \\u65e5\\u672c")
sys.exit(run(body, Parser("nmt-x")))
"""


def test_output_is_utf8_with_bare_newlines_in_any_locale():
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", PRINTING.replace("100_000", "2")],
        capture_output=True,
        check=True,
        env={"PATH": "", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout == 2 * "gr\u00fcn \u65e5\u672c\n".encode()


@pytest.mark.parametrize(("unbuffered", "given"), [("", "--help"), ("1", "--version")])
def test_where_nobody_reads_what_was_asked_for_that_is_silent(unbuffered, given):
    command, env = [sys.executable, "-c", PRINTING, given], {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, env=env, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /dev/full")
@pytest.mark.parametrize(("unbuffered", "given"), [("", ""), ("1", ""), ("1", "--version")])
def test_an_output_that_cannot_be_written_is_an_error(unbuffered, given):
    command, env = [sys.executable, "-c", PRINTING, *given.split()], {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=env, check=False)
    assert done.returncode == 1
    assert done.stderr.decode() == f"nmt-x: error: {'<stdout>: ' if given else ''}No space left on device\n"


CLOSED = """
import sys
from nmt.cli.parser import Parser, run
def body(_):
    print("said to nobody", file=sys.stderr)
    with open(sys.argv[1], "w") as file:
        file.write(str(file.fileno()))
sys.exit(run(body, Parser("nmt-x"), []))
"""


@posix
@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "2>&-"])
def test_where_streams_are_closed_no_file_takes_their_place(tmp_path, closed):
    command = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", CLOSED, tmp_path / "out"]
    done = subprocess.run(command, check=False, capture_output=True)
    assert done.returncode == 0 and done.stdout == b"" and int((tmp_path / "out").read_text()) > 2


def test_translations_that_did_not_fit_are_no_success(folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "in").write_bytes(SOURCE)
    out = io.FileIO(tmp_path / "out", "w")
    with full_disk(100), io.TextIOWrapper(out, encoding="utf-8", write_through=True) as stream:  # as PYTHONUNBUFFERED
        monkeypatch.setattr(sys, "stdout", stream)
        assert translate_main([folder, "-i", str(tmp_path / "in"), "--format", "jsonl"]) == 1
    assert (tmp_path / "out").stat().st_size == 100
    assert f"<stdout>: {os.strerror(errno.EFBIG)}" in capsys.readouterr().err


PRESSED = """
import atexit, os, signal, sys
from nmt.cli import begin
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
sys.exit(begin.{command}())
"""


@posix
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
    assert {"nmt-preprocess", "nmt-train", "nmt-translate", "nmt-export"} <= set(scripts)
    for command, place in scripts.items():
        assert place == f"nmt.cli.begin:{command.removeprefix('nmt-')}"
        assert callable(getattr(begin, command.removeprefix("nmt-")))


@pytest.fixture
def handlers():
    """The handlers of signals that a terminal gives, whatever the tests were started by; afterwards put back."""
    numbers = [getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, n)]
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    begin.end_startup()
    for number, handler in before.items():
        signal.signal(number, handler)


def test_ctrl_c_is_an_interrupt_once_all_is_imported_unless_others_have_decided_about_it(handlers):
    for decided in (signal.SIG_IGN, lambda *_: None):
        signal.signal(signal.SIGINT, decided)
        begin.begin_startup()
        assert signal.getsignal(signal.SIGINT) is decided and not gc.isenabled()
        begin.end_startup()
        assert signal.getsignal(signal.SIGINT) is decided and gc.isenabled()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    begin.begin_startup()
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    begin.end_startup()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


@posix
@pytest.mark.parametrize("name", ["SIGINT", "SIGUSR1"])
def test_a_signal_is_remembered_and_told(handlers, capfd, name):
    with Stop(["SIGINT", "SIGUSR1"], "saving first") as stop, stop.finishing():
        assert not stop() and stop.exit_code == 0
        os.kill(os.getpid(), getattr(signal, name))
        assert stop() and stop.exit_code == 128 + getattr(signal, name)
    assert f"{name}: saving first" in capfd.readouterr().err


@posix
def test_a_second_ctrl_c_stops_at_once_and_a_second_sigterm_does_not(handlers):
    with pytest.raises(KeyboardInterrupt), Stop() as stop, stop.finishing():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.exit_code == 143
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


@posix
def test_a_signal_that_comes_just_before_it_waits_ends_it_too_and_nohup_is_obeyed(handlers):
    with pytest.raises(SystemExit) as end, Stop() as stop, stop.finishing():
        os.kill(os.getpid(), signal.SIGTERM)
        with stop.finishing(False):
            pytest.fail("it waits for a line that may never come")
    assert end.value.code == 143
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Stop(["SIGHUP"]) as stop:
        os.kill(os.getpid(), signal.SIGHUP)
    assert not stop()


def test_what_a_library_makes_of_a_signal_is_the_signal_all_the_same(handlers):
    with pytest.raises(SystemExit) as end, Stop():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except SystemExit:
            raise ValueError("as code in C does") from None
    assert end.value.code == 130
    with pytest.raises(ValueError, match="of another kind"), Stop():
        raise ValueError("of another kind")
