"""Start and end of a command: while its modules are imported, and when its work is over, Ctrl-C ends it at once and
without a word.

Imports take a second, and some more with torch; Python takes a moment to tidy up at the end, in which an impatient user
presses Ctrl-C again. There is nothing to put in order then, and a KeyboardInterrupt would be a traceback, or be lost in
a library. Only the standard library is imported here.

Python looks for garbage meanwhile, again and again among all that was imported, and once more at the end: half a second
in all. What is imported is needed to the end, so in the process of a command it is taken out of what Python looks at.
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

_is_command = False  # whether this process is that of a command, and not of others that call it


def begin() -> None:
    """The process is that of a command: Ctrl-C ends it at once, until `begun`, and Python looks for no garbage. Where
    Ctrl-C is ignored, or caught by others, that stays so.
    """
    global _is_command
    _is_command = True
    _end_at_once()
    gc.disable()


def begun() -> None:
    """Ctrl-C is a KeyboardInterrupt again, and Python looks for garbage."""
    _interrupt()
    if _is_command:
        gc.freeze()
        gc.enable()


def ended(code: int) -> int:
    """The work is over: Ctrl-C ends the process at once again, and Python looks for garbage no more. Returns the exit
    code."""
    begin()
    gc.freeze()
    return code


@contextmanager
def importing() -> Iterator[None]:
    """For what is imported later than at the top of a module, since it takes long."""
    _end_at_once()
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if _is_command:
            gc.freeze()
        if collects:
            gc.enable()
        _interrupt()


def _end_at_once() -> None:
    """In a thread of its own a command has no say in signals."""
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def _interrupt() -> None:
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)


# Text of users in a terminal.


def printable(text: str) -> str:
    """Escape every control character: words of a file may be printed, its terminal commands may not."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode("ascii") for c in text
    )


# What commands write to stdout, all of it or an error that names it.


def write_stdout(text: str) -> None:
    """Write text, as UTF-8 whatever the locale, and flush it for whoever waits at the other end.

    With PYTHONUNBUFFERED a stream writes what there is room for, tells how much that was, and nobody would know.
    Raises OSError that names <stdout>.
    """
    if sys.stdout is None:  # a shell has closed it: as with print, nothing is written
        return
    try:
        sys.stdout.flush()
        file = getattr(sys.stdout, "buffer", None)
        if file is None:  # a program has put a stream of its own there, which takes text only
            sys.stdout.write(text)
            return
        left = memoryview(text.encode("utf-8"))
        while left:
            if (n_byte := file.write(left)) is None:  # a raw stream that does not wait for its reader
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            left = left[n_byte:]
        file.flush()
    except OSError as error:
        raise OSError(error.errno, error.strerror, "<stdout>") from None


# Ctrl-C and other signals that end a command.


_AGAIN = 0.01  # seconds until a signal comes again that came where nothing can be raised


class Stop:
    """Ends the command at a signal, with the exit code that a shell expects. A context manager.

    At once, but inside `finishing`: there `ask` does it; and a second signal does it at once. What it raises in a
    destructor, or in what a weak reference calls, Python would tell of and forget: there the signal comes again.
    """

    def __init__(self, names: Sequence[str] = ("SIGINT", "SIGTERM")) -> None:
        self._names, self._number = names, 0
        self._ended = 0  # number of the signal that has ended the command
        self._waits = False
        self._before: dict[int, Any] = {}
        self._tell_ignored = sys.unraisablehook
        self._again: threading.Timer | None = None

    def __enter__(self) -> "Stop":
        self._tell_ignored, sys.unraisablehook = sys.unraisablehook, self._ignored
        self._before = _catch(self._names, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        sys.unraisablehook = self._tell_ignored
        if self._again is not None:
            self._again.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        # Code in C that was interrupted may make an error of its own of it.
        if self._ended and kind is not None and issubclass(kind, Exception):
            raise SystemExit(128 + self._ended) from None

    @contextmanager
    def finishing(self, wanted: bool = True) -> Iterator[None]:
        """Context manager: delay the end by a signal until the body is done; with wanted=False, where the body only
        waits for input, end at once, also by a signal that came just before.
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

    def _ignored(self, what: "sys.UnraisableHookArgs") -> None:
        if not self._ended or what.exc_type is not SystemExit:
            self._tell_ignored(what)
            return
        # In a while, when this place is left: here it would be ignored again.
        self._again = threading.Timer(_AGAIN, os.kill, (os.getpid(), self._ended))
        self._again.daemon = True
        self._again.start()


class StopSignal:
    """Remembers that somebody wants training to stop; the loop asks between two updates. A second Ctrl-C does not wait.

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
    """Have `note` called at these signals. Returns what was done at them before, by number.

    One that is ignored stays so, as nohup, or a shell in the background, wants it. In a thread of its own a command has
    no say in signals.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]  # Windows has not all of them
    return {one: signal.signal(one, note) for one in numbers if signal.getsignal(one) != signal.SIG_IGN}


def _tell(number: int, what: str) -> None:
    """Say what a signal leads to."""
    with contextlib.suppress(OSError):
        # Past Python's buffers, which may be in the middle of a write, to a terminal that may be gone.
        os.write(2, f"\n{signal.Signals(number).name}: {what}\n".encode("ascii"))
