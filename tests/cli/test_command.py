"""Behaviour that all commands share: exit codes, messages, streams, Ctrl-C and other signals."""

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
from nmt.cli.translate_output import say
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
def test_error_becomes_a_message_and_an_exit_code(error, code, message, capsys):
    assert run(fail_with(error), Parser("nmt-x"), []) == code
    stderr = capsys.readouterr().err
    assert message in stderr and stderr.startswith("nmt-x: error: ") and "Traceback" not in stderr
    assert run(fail_with(error), Parser("nmt-x"), ["--debug"]) == code
    assert "Traceback" in capsys.readouterr().err
    assert printable("caf\u00e9 \u65e5\u672c \ud800") == "caf\u00e9 \u65e5\u672c \\ud800"


def test_messages_to_a_lost_terminal_change_no_exit_code_and_end_no_work(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Mock(write=fail_with(OSError(errno.EIO, "Input/output error"))))
    assert run(fail_with(NmtError("no such thing")), Parser("nmt-x"), []) == 2
    assert run(lambda _: 0, Parser("nmt-x"), ["--unknown"]) == 2
    say("a note")


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (SystemExit(3), 3), (SystemExit(), 0)])
def test_stopped_command_exits_silently_with_its_code(stop, code, capsys):
    assert run(fail_with(stop), Parser("nmt-x"), []) == code
    assert capsys.readouterr() == ("", "")


PRINT_PROGRAM = """
import sys
from nmt.cli.parser import Parser, run
def body(_):
    for _ in range(100_000):
        print("gr\\u00fcn \\u65e5\\u672c")
sys.exit(run(body, Parser("nmt-x")))
"""


def test_output_is_utf8_with_bare_newlines_in_any_locale():
    result = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", PRINT_PROGRAM.replace("100_000", "2")],
        capture_output=True,
        check=True,
        env={"PATH": "", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": ":".join(sys.path)},
    )
    assert result.stdout == 2 * "gr\u00fcn \u65e5\u672c\n".encode()


@pytest.mark.parametrize(("unbuffered", "given"), [("", "--help"), ("1", "--version")])
def test_closed_output_pipe_ends_the_command_silently(unbuffered, given):
    command, env = [sys.executable, "-c", PRINT_PROGRAM, given], {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, env=env, check=False)
    os.close(write)
    assert (result.returncode, result.stderr) == (141, b"")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /dev/full")
@pytest.mark.parametrize(("unbuffered", "given"), [("", ""), ("1", ""), ("1", "--version")])
def test_unwritable_output_is_an_error(unbuffered, given):
    command, env = [sys.executable, "-c", PRINT_PROGRAM, *given.split()], {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=env, check=False)
    assert result.returncode == 1
    assert result.stderr.decode() == f"nmt-x: error: {'<stdout>: ' if given else ''}No space left on device\n"


OPEN_FILE_PROGRAM = """
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
def test_opened_file_never_takes_the_descriptor_of_a_closed_stream(tmp_path, closed):
    command = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", OPEN_FILE_PROGRAM, tmp_path / "out"]
    result = subprocess.run(command, check=False, capture_output=True)
    assert result.returncode == 0 and result.stdout == b"" and int((tmp_path / "out").read_text()) > 2


def test_full_disk_behind_stdout_fails_the_command(folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "in").write_bytes(SOURCE)
    out = io.FileIO(tmp_path / "out", "w")
    with full_disk(100), io.TextIOWrapper(out, encoding="utf-8", write_through=True) as stream:  # like PYTHONUNBUFFERED
        monkeypatch.setattr(sys, "stdout", stream)
        assert translate_main([folder, "-i", str(tmp_path / "in"), "--format", "jsonl"]) == 1
    assert (tmp_path / "out").stat().st_size == 100
    assert f"<stdout>: {os.strerror(errno.EFBIG)}" in capsys.readouterr().err


CTRL_C_PROGRAM = """
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
        ("translate", "torch", ""),  # imported after the arguments are read
        ("translate", "none", "nmt-translate: error: "),
    ],
)
def test_ctrl_c_ends_a_command_during_imports_and_at_exit(tmp_path, command, module, said):
    (tmp_path / "recipe.yaml").touch()  # without it the folder is refused before torch is imported
    code = CTRL_C_PROGRAM.format(module=module, folder=tmp_path, command=command)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, cwd=ROOT, text=True)
    assert (result.returncode, result.stdout) == (130, "")
    assert result.stderr.startswith(said) and result.stderr.count("\n") == bool(said)


def test_every_installed_command_starts_in_the_begin_module():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert {"nmt-preprocess", "nmt-train", "nmt-translate", "nmt-export"} <= set(scripts)
    for command, entry_point in scripts.items():
        assert entry_point == f"nmt.cli.begin:{command.removeprefix('nmt-')}"
        assert callable(getattr(begin, command.removeprefix("nmt-")))


@pytest.fixture
def handlers():
    """Set the signal handlers that a terminal gives, and restore the previous ones afterwards."""
    numbers = [getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, n)]
    previous = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    begin.end_startup()
    for number, handler in previous.items():
        signal.signal(number, handler)


def test_startup_restores_ctrl_c_and_keeps_a_foreign_handler(handlers):
    for handler in (signal.SIG_IGN, lambda *_: None):
        signal.signal(signal.SIGINT, handler)
        begin.begin_startup()
        assert signal.getsignal(signal.SIGINT) is handler and not gc.isenabled()
        begin.end_startup()
        assert signal.getsignal(signal.SIGINT) is handler and gc.isenabled()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    begin.begin_startup()
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    begin.end_startup()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


@posix
@pytest.mark.parametrize("name", ["SIGINT", "SIGUSR1"])
def test_signal_is_remembered_and_reported(handlers, capfd, name):
    with Stop(["SIGINT", "SIGUSR1"], "saving first") as stop, stop.finishing():
        assert not stop() and stop.exit_code == 0
        os.kill(os.getpid(), getattr(signal, name))
        assert stop() and stop.exit_code == 128 + getattr(signal, name)
    assert f"{name}: saving first" in capfd.readouterr().err


@posix
def test_second_ctrl_c_stops_at_once_but_a_second_sigterm_does_not(handlers):
    with pytest.raises(KeyboardInterrupt), Stop() as stop, stop.finishing():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.exit_code == 143
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


@posix
def test_signal_just_before_waiting_ends_the_wait_and_nohup_is_obeyed(handlers):
    with pytest.raises(SystemExit) as exit_info, Stop() as stop, stop.finishing():
        os.kill(os.getpid(), signal.SIGTERM)
        with stop.finishing(False):
            pytest.fail("it waits for a line that may never come")
    assert exit_info.value.code == 143
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Stop(["SIGHUP"]) as stop:
        os.kill(os.getpid(), signal.SIGHUP)
    assert not stop()


def test_signal_counts_even_if_a_library_raises_another_error(handlers):
    with pytest.raises(SystemExit) as exit_info, Stop():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except SystemExit:
            raise ValueError("as code in C does") from None
    assert exit_info.value.code == 130
    with pytest.raises(ValueError, match="of another kind"), Stop():
        raise ValueError("of another kind")
