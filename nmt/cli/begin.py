"""Start and end of a command, its signals, and its text in a terminal. Imports the standard library alone.

While modules are imported, which takes seconds with torch, and when the work is over, Ctrl-C ends the command at once
and without a word. Python collects no garbage meanwhile, which would take half a second in all.
"""

import contextlib
import errno
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

_is_command = False  # True in the process of a command, and not in others that call it


def begin() -> None:
    """Mark the process as that of a command: until `begun` Ctrl-C ends it at once, and no garbage is collected."""
    global _is_command
    _is_command = True
    _on_interrupt(signal.default_int_handler, _end)
    gc.disable()


def begun() -> None:
    """Make Ctrl-C a KeyboardInterrupt again, and let garbage be collected."""
    _on_interrupt(_end, signal.default_int_handler)
    if _is_command:
        gc.freeze()  # what was imported is needed to the end
        gc.enable()


def ended(code: int) -> int:
    """Let Ctrl-C end the process at once again, now that the work is over. Returns the exit code."""
    begin()
    gc.freeze()
    return code


@contextmanager
def importing() -> Iterator[None]:
    """Context manager: import later than at the top of a module what takes long."""
    collects = gc.isenabled()
    _on_interrupt(signal.default_int_handler, _end)
    gc.disable()
    try:
        yield
    finally:
        _on_interrupt(_end, signal.default_int_handler)
        if _is_command:
            gc.freeze()
        if collects:
            gc.enable()


def _on_interrupt(before: Any, after: Any) -> None:
    """Change what Ctrl-C does, unless others have decided about it. In a thread of its own a command has no say."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is before:
        signal.signal(signal.SIGINT, after)


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)


def printable(text: str) -> str:
    """Escape every control character: words of a file may be printed, its terminal commands may not."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode("ascii") for c in text
    )


def write_stdout(text: str) -> None:
    """Write text as UTF-8 whatever the locale, all of it, and flush it. Raises OSError that names <stdout>."""
    if sys.stdout is None:  # closed by a shell
        return
    try:
        sys.stdout.flush()
        file = getattr(sys.stdout, "buffer", None)
        if file is None:  # a stream of a program, which takes text only
            sys.stdout.write(text)
            return
        left = memoryview(text.encode("utf-8"))
        while left:  # with PYTHONUNBUFFERED a stream writes what there is room for
            if (n_byte := file.write(left)) is None:  # a raw stream that does not wait for its reader
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            left = left[n_byte:]
        file.flush()
    except OSError as error:
        raise OSError(error.errno, error.strerror, "<stdout>") from None


# Ctrl-C and other signals that end a command.


class Stop:
    """Ends the command at a signal, with the exit code that a shell expects. A context manager.

    At once, but inside `finishing`: there `ask` does it, and a second signal at once.
    """

    def __init__(self, names: Sequence[str] = ("SIGINT", "SIGTERM")) -> None:
        self._names, self._number = names, 0
        self._ended = 0  # number of the signal that has ended the command
        self._waits = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        self._before = _catch(self._names, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        # Code in C that was interrupted may make an error of its own of it.
        if self._ended and kind is not None and issubclass(kind, Exception):
            raise SystemExit(128 + self._ended) from None

    @contextmanager
    def finishing(self, wanted: bool = True) -> Iterator[None]:
        """Context manager: delay the end by a signal until the body is done.

        With wanted=False, where the body only waits for input, end at once, also by a signal that came just before.
        """
        before, self._waits = self._waits, wanted
        try:
            if not wanted:
                self.ask()
            yield
        finally:
            self._waits = before

    def ask(self) -> None:
        """End the command if a signal came meanwhile: raises SystemExit."""
        if self._number:
            raise SystemExit(128 + self._number)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if not self._waits or self._number:
            self._ended = number
            raise SystemExit(128 + number)
        self._number = number
        _tell(number, "stopping after the lines in work; again: at once")


class StopSignal:
    """Remembers a signal that ends training; the loop asks between two updates. A second Ctrl-C does not wait.

    Its handlers stay until the process ends, or until `let_go`.
    """

    def __init__(self, names: Sequence[str] = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")) -> None:
        self.number = 0
        self._before = _catch(names, self._note)

    def let_go(self) -> None:
        """Put the handlers back that there were."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.number == signal.SIGINT == number:
            raise KeyboardInterrupt
        self.number = number
        _tell(number, "stopping; what is trained is saved first")

    def __call__(self) -> bool:
        return self.number != 0

    @property
    def exit_code(self) -> int:
        """The exit code that a shell expects of a program stopped by a signal."""
        return 128 + self.number if self.number else 0


def _catch(names: Sequence[str], note: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """Have `note` called at these signals, but those that are ignored, as nohup wants it.

    Returns what was done at them before, by number.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]  # Windows has not all of them
    return {one: signal.signal(one, note) for one in numbers if signal.getsignal(one) != signal.SIG_IGN}


def _tell(number: int, what: str) -> None:
    with contextlib.suppress(OSError):
        # Past Python's buffers, which may be in the middle of a write, to a terminal that may be gone.
        os.write(2, f"\n{signal.Signals(number).name}: {what}\n".encode("ascii"))
