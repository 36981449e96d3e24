"""The installed commands: start and end, signals, and text in a terminal. Imports little: Ctrl-C is seen to first."""

import contextlib
import gc
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

from nmt.extras import incomplete


def begin() -> None:
    """Have Ctrl-C end the process at once, without a word, and no garbage collected: importing torch takes seconds."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else others have decided about it
        signal.signal(signal.SIGINT, _end)
    gc.disable()


def begun() -> None:
    """Make Ctrl-C a KeyboardInterrupt again, and have garbage collected, now that all is imported."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not gc.isenabled():
        gc.freeze()  # what was imported is needed to the end
        gc.enable()


def ended(code: int) -> int:
    """Let Ctrl-C end the process at once again, now that the work is over. Returns the exit code."""
    begin()
    gc.freeze()
    return code


def _run(command: str) -> int:
    begin()
    try:
        main = importlib.import_module(f"nmt.cli.{command}").main
    except ModuleNotFoundError as error:
        print(f"nmt-{command}: error: {incomplete(error)}", file=sys.stderr)
        return ended(2)
    return ended(main())


_commands = "preprocess", "train", "translate", "export", "score", "report"
preprocess, train, translate, export, score, report = (partial(_run, name) for name in _commands)


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)


def printable(text: str) -> str:
    """Escape every control character: words of a file may be printed, its terminal commands may not."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode("ascii") for c in text
    )


def talk(line: str) -> None:
    """Print a line for people to stderr."""
    with contextlib.suppress(OSError):  # nobody can hear it
        print(printable(line), file=sys.stderr)


def write_stdout(text: str) -> None:
    """Write text and flush it. Raises OSError that names <stdout>."""
    if sys.stdout is None:  # closed by a shell
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        raise OSError(error.errno, error.strerror, "<stdout>") from None


class Stop:
    """Signals that end a command, with the exit code that a shell expects. A context manager.

    They end it at once; inside `finishing` they are remembered, for the work to ask, and a second Ctrl-C ends it.
    """

    def __init__(
        self,
        names: Sequence[str] = ("SIGINT", "SIGTERM"),
        told: str = "stopping after the lines in work; a second Ctrl-C: at once",
    ) -> None:
        self._names, self._told = names, told
        self.number = 0  # of the signal that came
        self._waits = self._has_raised = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            for name in self._names:
                number = getattr(signal, name, None)  # Windows has not all of them
                if number is not None and signal.getsignal(number) != signal.SIG_IGN:  # as nohup wants it
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        # Code in C that was interrupted may make an error of its own of it.
        if self._has_raised and kind is not None and issubclass(kind, Exception):
            raise SystemExit(self.exit_code) from None

    @contextmanager
    def finishing(self, wanted: bool = True) -> Iterator[None]:
        """Context manager: remember signals. With wanted=False, where the body only waits for input, end at one."""
        before, self._waits = self._waits, wanted
        try:
            if not wanted:
                self.ask()
            yield
        finally:
            self._waits = before

    def ask(self) -> None:
        """End the command if a signal came meanwhile: raises SystemExit."""
        if self.number:
            raise SystemExit(self.exit_code)

    def __call__(self) -> bool:
        """Return whether a signal came."""
        return self.number != 0

    @property
    def exit_code(self) -> int:
        """The exit code that a shell expects of a program stopped by the signal; 0 for none."""
        return 128 + self.number if self.number else 0

    def _note(self, number: int, _frame: FrameType | None) -> None:
        is_second, self.number = self.number == number == signal.SIGINT, number
        if is_second or not self._waits:
            self._has_raised = True
            raise KeyboardInterrupt if is_second else SystemExit(self.exit_code)
        with contextlib.suppress(OSError):
            # Past Python's buffers, which may be in the middle of a write, to a terminal that may be gone.
            os.write(2, f"\n{signal.Signals(number).name}: {self._told}\n".encode("ascii"))
