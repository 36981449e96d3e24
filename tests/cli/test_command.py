"""Exit codes, messages and streams that all commands share."""

import errno
import os
import subprocess
import sys

import pytest

from nmt.cli.begin import printable
from nmt.cli.parser import Parser, run
from nmt.errors import MachineError, NmtError, RecipeError, Unavailable


def fail_with(error):
    def body(_arguments):
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (NmtError("no such thing"), 2, "nmt-x: error: no such thing\n"),
        (RecipeError("one\ntwo"), 2, "nmt-x: error: one\nnmt-x: error: two\n"),
        (MachineError("no memory"), 1, "nmt-x: error: no memory\n"),
        (Unavailable("no GPU"), 2, "nmt-x: error: no GPU\n"),
        (
            ModuleNotFoundError("No module named 'torch'", name="torch"),
            2,
            "installed without what it needs: no module torch",
        ),
        (ModuleNotFoundError("No module named 'nmt.x'", name="nmt.x"), 1, "internal error (please report it"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "a.txt"), 2, "a.txt: No such file"),
        (OSError(errno.ENOSPC, "No space left on device", "big"), 1, "big: No space left on device"),
        (MemoryError(), 1, "out of memory"),
        (RuntimeError("[...] DefaultCPUAllocator: can't allocate memory: ..."), 1, "out of memory: [...] Default"),
        (KeyError("x"), 1, "internal error (please report it; --debug shows the traceback): KeyError: 'x'"),
    ],
)
def test_an_error_becomes_a_message_and_an_exit_code(error, code, message, capsys):
    assert run(fail_with(error), Parser("nmt-x"), []) == code
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.startswith("nmt-x: error: ")
    assert "Traceback" not in shown


def test_debug_shows_the_traceback(capsys):
    assert run(fail_with(NmtError("no")), Parser("nmt-x"), ["--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (SystemExit(3), 3), (SystemExit(), 0)])
def test_being_stopped_is_silent(stop, code, capsys):
    assert run(fail_with(stop), Parser("nmt-x"), []) == code
    assert capsys.readouterr() == ("", "")


def test_words_of_a_file_cannot_command_the_terminal(capsys):
    run(fail_with(NmtError("line \x1b[2Jgone\x07 \u202egr\u00fcn")), Parser("nmt-x"), [])
    shown = capsys.readouterr().err
    assert "\x1b" not in shown
    assert "\\x1b[2Jgone\\x07 \\u202egr\u00fcn" in shown
    assert printable("caf\u00e9 \u65e5\u672c \ud800") == "caf\u00e9 \u65e5\u672c \\ud800"


PRINTING = """
import sys
from nmt.cli.parser import run
from nmt.cli.parser import Parser
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
@pytest.mark.parametrize(("unbuffered", "given"), [("", ""), ("1", ""), ("", "--help"), ("1", "--version")])
def test_an_output_that_cannot_be_written_is_an_error(unbuffered, given):
    command, env = [sys.executable, "-c", PRINTING, *given.split()], {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=env, check=False)
    assert done.returncode == 1
    assert done.stderr.decode() == f"nmt-x: error: {'<stdout>: ' if given else ''}No space left on device\n"


@pytest.mark.skipif(sys.platform == "win32", reason="a shell of another kind")
def test_where_streams_are_closed_no_file_takes_their_place(tmp_path):
    body = (
        "import sys\n"
        "from nmt.cli.parser import run\n"
        "from nmt.cli.parser import Parser\n"
        "def body(_):\n"
        "    print('said to nobody', file=sys.stderr)\n"
        f"    with open({str(tmp_path / 'out')!r}, 'w') as file:\n"
        "        file.write(str(file.fileno()))\n"
        "sys.exit(run(body, Parser('nmt-x'), []))\n"
    )
    shell = 'exec "$@" <&- >&- 2>&-'
    assert subprocess.run(["/bin/sh", "-c", shell, "sh", sys.executable, "-c", body], check=False).returncode == 0
    assert int((tmp_path / "out").read_text()) > 2
    found = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", body], check=False, capture_output=True
    )
    assert found.returncode == 0 and found.stdout == b""
