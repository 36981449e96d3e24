"""Ctrl-C and other signals that end a command: at once and in order, or when what is in work is finished.

Translation finishes lines where somebody reads them, and drops them where there is a journal. Training saves first.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

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
        """What is inside is finished before a signal ends the command; with wanted=False nothing is in work, and one
        that came just before ends it too: nobody would ask again until what is inside has come, which may be never.
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
        """What the shell expects of a program that a signal stopped."""
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
