"""What all commands share: exit codes, streams, and how an error reaches the user. Flags are in `parser.py`.

No traceback without --debug.
"""

import argparse
import io
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from nmt.cli.begin import begun
from nmt.cli.parser import Parser
from nmt.cli.printable import printable
from nmt.errors import NmtError, as_ours, is_of_machine
from nmt.extras import incomplete

# The others are in nmt/errors.py, at the errors; all in docs/reference.md.
INTERNAL, INTERRUPTED, READER_GONE = 1, 130, 141

Body = Callable[[argparse.Namespace], int | None]


def run(tool: str, body: Body, parser: Parser, argv: Sequence[str] | None = None) -> int:
    """Parse `argv`, call `body(arguments)` and turn whatever happens into an exit code and a readable message."""
    _stand_in_for_closed()
    _speak_utf8()
    parser.add_common_flags(tool)
    given = sys.argv[1:] if argv is None else argv
    try:
        try:
            given = parser.in_our_words(given)
            parser.refuse_unknown(given)
            arguments = parser.read(given)
            begun()
            code = body(arguments) or 0
        except SystemExit as stop:  # after --help and --version, too
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _abandon_stdout()
        return READER_GONE
    except Exception as error:
        code, message = _explain(error)
        if "--debug" in given:
            traceback.print_exc()
        for line in message.split("\n"):
            print(f"{tool}: error: {printable(line)}", file=sys.stderr)
        if isinstance(error, OSError):
            _abandon_stdout()
        return code


def must_be_free(path: Path, *, overwrite: bool, advice: str = "Choose another name") -> None:
    """Raise NmtError if an output cannot be written there, or would replace something that may not be."""
    if path.exists() and not overwrite:
        raise NmtError(f"{path} exists already. {advice}, or replace it with --overwrite.")
    folder = path.absolute().parent
    try:
        with tempfile.TemporaryFile(dir=folder):  # permissions do not tell all: nobody writes to /proc
            pass
    except OSError as error:
        if is_of_machine(error):
            raise
        raise NmtError(f"{path}: cannot be written: {folder} is no folder, or not yours to write to.") from None


def _explain(error: Exception) -> tuple[int, str]:
    """The exit code and the message for an error that ended a command."""
    if ours := as_ours(error):
        return ours.exit_code, str(ours)
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("nmt"):
        return NmtError.exit_code, incomplete(error)
    what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return INTERNAL, f"internal error (please report it; --debug shows the traceback): {what}"


def _stand_in_for_closed() -> None:
    """Where a shell has closed standard streams (`2>&-`), no other file may get their numbers, which libraries write
    to, and what is said on stderr must not get into the output, as Python has it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which gets the lowest number that is free
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")


def _speak_utf8() -> None:
    """Write UTF-8 and bare newlines whatever the locale or system: our output is data for other programs."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace")


def _abandon_stdout() -> None:
    """Let go of an output that cannot be written, or Python tries again while it exits and complains by itself."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
