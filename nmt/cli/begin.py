"""How a command begins and ends: while its modules are imported, and when its work is over, Ctrl-C ends it at once and
without a word.

Imports take a second, and some more with torch; Python takes a moment to tidy up at the end, in which an impatient user
presses Ctrl-C again. There is nothing to put in order then, and a KeyboardInterrupt would be a traceback, or be lost in
a library. Only the standard library is imported here.
"""

import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def begin() -> None:
    """Ctrl-C ends the process at once, until `begun`. Where it is ignored, or caught by others, that stays so.

    In a thread of its own a command has no say in signals.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def begun() -> None:
    """Ctrl-C is a KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def ended(code: int) -> int:
    """The work is over: Ctrl-C ends the process at once again. Returns the exit code."""
    begin()
    return code


@contextmanager
def importing() -> Iterator[None]:
    """For what is imported later than at the top of a module, since it takes long. Nothing of it is garbage, for which
    Python would look a dozen times, a fifteenth of the time that it takes."""
    begin()
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
        begun()


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)
