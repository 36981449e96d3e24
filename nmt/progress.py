"""Progress bars on standard error: redrawn in place on a terminal, a line now and then in a file or a pipe."""

import io
import sys
import time
from typing import Any

from tqdm import tqdm

DELAY = 2.0  # seconds; shorter work shows no bar
EVERY = 30.0  # seconds between two lines if the bar cannot be redrawn, as in the log of a cluster job


class Bar(tqdm):  # type: ignore[type-arg]  # at run time it takes no type argument
    """A tqdm bar, with the arguments of tqdm, that prints plain lines if the stream is not a terminal.

    Unlike a tqdm bar, it does not appear before its delay is over when a text is written above it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        stream = kwargs.setdefault("file", sys.stderr)
        delay = kwargs.setdefault("delay", DELAY)
        self._in_place = bool(getattr(stream, "isatty", bool)())
        # Earliest time to show it: on a terminal the first time, elsewhere the next line.
        self._due = time.monotonic() + (delay if self._in_place else EVERY)
        self._n_written: float | None = None  # progress in the last line
        super().__init__(*args, **kwargs)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if time.monotonic() < self._due:
            return
        if self._in_place:
            super().display(msg, pos)
        elif msg != "":
            self._write_line()

    def postpone(self) -> None:
        """Skip the next line if the bar cannot be redrawn: another message has just shown the progress."""
        if not self._in_place:
            self._due = time.monotonic() + EVERY

    def clear(self, *args: Any, **kwargs: Any) -> None:
        if self._in_place and time.monotonic() >= self._due:
            super().clear(*args, **kwargs)

    def close(self) -> None:
        if not self._in_place and not self.disable:
            # Short work gets no line, unless the bar has no delay.
            if self.leave and self.n != self._n_written and (self._n_written is not None or not self.delay):
                self._write_line()
            self.fp, self.leave = io.StringIO(), False  # tqdm would clear its line
        super().close()

    def _write_line(self) -> None:
        if not self.desc and self.bar_format:  # the format is the description alone, and there is none yet
            return
        self._due, self._n_written = time.monotonic() + EVERY, self.n
        self.fp.write(f"{self}\n")
        self.fp.flush()
