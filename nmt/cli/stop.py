"""Ctrl-C and other signals that end a command: at once and in order, or when what is in work is finished.

Translation finishes lines where somebody reads them, and drops them where there is a journal.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Ends the command at a signal, with the exit code that a shell expects. A context manager.

    At once, but inside `finishing`: there `ask` does it; and a second signal does it at once.
    """

    def __init__(self, names: Sequence[str] = ("SIGINT", "SIGTERM")) -> None:
        self._names, self._number = names, 0
        self._ended = 0  # number of the signal that has ended the command
        self._waits = False
        self._before: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            for name in self._names:
                number = getattr(signal, name, None)  # Windows has not all of them
                # One that is ignored stays so, as nohup, or a shell in the background, wants it.
                if number is not None and signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
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
        """End the command if a signal came meanwhile."""
        if self._number:
            raise SystemExit(128 + self._number)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if not self._waits or self._number:
            self._ended = number
            raise SystemExit(128 + number)
        self._number = number
        with contextlib.suppress(OSError):
            # Past Python's buffers, which may be in the middle of a write, to a terminal that may be gone.
            name = signal.Signals(number).name
            os.write(2, f"\n{name}: stopping after the lines in work; again: at once\n".encode("ascii"))
