"""Lines as they arrive: many at a time from a file, one by one from somebody who types."""

import contextlib
import queue
import threading
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from nmt.errors import MachineError, NmtError

T = TypeVar("T")

# Seconds of silence after which what has arrived is answered. Files and fast programs are never this slow.
PATIENCE = 0.05


@dataclass(frozen=True)
class _End:
    """The last thing that arrives."""

    error: Exception | None = None


def windows(lines: Iterable[T], size: int, patience: float | None = PATIENCE) -> Iterator[list[T]]:
    """Lists of at most `size` lines, none of them empty, in order.

    A list is full, or ends where the input ended or was silent for `patience` seconds; None: however long it is silent.
    An error of `lines` is raised after the lines before it. A thread does the reading, since a read of a pipe waits for
    as long as it likes.
    """
    arrived: queue.Queue[T | _End] = queue.Queue(maxsize=2 * size)
    stop = threading.Event()

    def put(thing: T | _End) -> None:
        while not stop.is_set():
            with contextlib.suppress(queue.Full):
                arrived.put(thing, timeout=0.2)
                return

    def read() -> None:
        # Whatever happens here, somebody waits; and an end that nobody explains is not taken for the end of the input.
        error: Exception | None = MachineError("the input could not be read to its end.")
        try:
            for line in lines:
                put(line)
                if stop.is_set():
                    return
            error = None
        except (OSError, EOFError, ValueError, MemoryError, zlib.error, NmtError) as found:
            error = found
        finally:
            put(_End(error))

    # A daemon: nobody can wake a thread that waits for a terminal, and Ctrl-C must not wait for it.
    threading.Thread(target=read, name="reader", daemon=True).start()
    try:
        end = None
        while end is None:
            window: list[T] = []
            thing: T | _End | None = arrived.get()
            while thing is not None:
                if isinstance(thing, _End):
                    end = thing
                    break
                window.append(thing)
                thing = _next(arrived, patience) if len(window) < size else None
            if window:
                yield window
        if end.error is not None:
            raise end.error
    finally:
        stop.set()


def _next(arrived: "queue.Queue[T | _End]", patience: float | None) -> T | _End | None:
    try:
        return arrived.get(timeout=patience)
    except queue.Empty:
        return None
