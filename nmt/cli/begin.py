"""How a command begins and ends: while its modules are imported, and when its work is over, Ctrl-C ends it at once and
without a word.

Imports take a second, and some more with torch; Python takes a moment to tidy up at the end, in which an impatient user
presses Ctrl-C again. There is nothing to put in order then, and a KeyboardInterrupt would be a traceback, or be lost in
a library. Only the standard library is imported here.

Python looks for garbage meanwhile, again and again among all that was imported, and once more at the end: half a second
in all. What is imported is needed to the end, so in the process of a command it is taken out of what Python looks at.
"""

import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

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
