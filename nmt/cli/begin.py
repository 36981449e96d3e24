"""Entry points of the installed commands; signals; output to a terminal. Imports little, to handle Ctrl-C early."""

import gc
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

from nmt.extras import incomplete


def begin_startup() -> None:
    """Make Ctrl-C end the process silently, and stop garbage collection: importing torch takes seconds."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # keep a handler of the parent or the caller
        signal.signal(signal.SIGINT, _exit)
    gc.disable()


def end_startup() -> None:
    """Make Ctrl-C a KeyboardInterrupt again, and enable garbage collection. Called after all imports."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not gc.isenabled():
        gc.freeze()  # imported objects live until the process ends
        gc.enable()


def _run(command: str) -> int:
    begin_startup()
    try:
        code: int = importlib.import_module(f"nmt.cli.{command}").main()
    except ModuleNotFoundError as error:
        talk(f"nmt-{command}: error: {incomplete(error)}")
        code = 2
    begin_startup()  # again: from here Ctrl-C ends the process silently
    gc.freeze()
    return code


_commands = "preprocess", "train", "translate", "export", "score", "report"
preprocess, train, translate, export, score, report = (partial(_run, name) for name in _commands)


def _exit(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)


def printable(text: str) -> str:
    """Escape all control characters, so that text of a file cannot send commands to the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def talk(line: str) -> None:
    """Print a line for the user to stderr."""
    with suppress(OSError):  # stderr may be closed
        print(printable(line), file=sys.stderr)


def write_stdout(text: str) -> None:
    """Write text and flush it. Raises an OSError that names <stdout>."""
    if sys.stdout is None:  # closed by a shell
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        raise OSError(error.errno, error.strerror, "<stdout>") from None


class Stop:
    """Context manager: end the command at a signal, with the exit code that a shell expects.

    Inside `finishing` the first signal is recorded for the work to check, and a second Ctrl-C ends the command.
    """

    def __init__(
        self,
        names: Sequence[str] = ("SIGINT", "SIGTERM"),
        message: str = "stopping after the lines in progress; a second Ctrl-C stops at once",
    ) -> None:
        self._names, self._message = names, message
        self.number = 0  # of the signal that was received
        self._is_finishing = self._has_raised = False
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            for name in self._names:
                number = getattr(signal, name)
                if signal.getsignal(number) != signal.SIG_IGN:  # respect nohup
                    self._previous_handlers[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        # Interrupted C code may have replaced the exception by one of its own.
        if self._has_raised and kind is not None and issubclass(kind, Exception):
            raise SystemExit(self.exit_code) from None

    @contextmanager
    def finishing(self, is_finishing: bool = True) -> Iterator[None]:
        """Context manager: record signals. With False, for a body that only waits for input, end at a signal."""
        previous, self._is_finishing = self._is_finishing, is_finishing
        try:
            if self.number and not is_finishing:
                raise SystemExit(self.exit_code)
            yield
        finally:
            self._is_finishing = previous

    def __call__(self) -> bool:
        """Return whether a signal was received."""
        return self.number != 0

    @property
    def exit_code(self) -> int:
        """Exit code that a shell expects of a program stopped by the signal; 0 without a signal."""
        return 128 + self.number if self.number else 0

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        is_second, self.number = self.number == number == signal.SIGINT, number
        if is_second or not self._is_finishing:
            self._has_raised = True
            raise KeyboardInterrupt if is_second else SystemExit(self.exit_code)
        with suppress(OSError):
            # Python's buffers may be in the middle of a write, and the terminal may be gone.
            os.write(2, f"\n{signal.Signals(number).name}: {self._message}\n".encode("ascii"))
