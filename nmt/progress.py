"""Progress bars, on standard error: on a terminal redrawn in place, in a file or a pipe a line now and then."""

import io
import sys
import time
from typing import Any

from tqdm import tqdm

# Seconds: what is done by then needs no bar.
DELAY = 2.0
# Seconds between two lines where a bar cannot be redrawn, as in the log of a cluster's job.
EVERY = 30.0


class Bar(tqdm):  # type: ignore[type-arg]  # it takes none when it runs
    """A bar of tqdm's, with tqdm's arguments, that knows whether anybody looks at it.

    tqdm shows a bar whenever something is written above it, however early; this one does not.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        stream = kwargs.setdefault("file", sys.stderr)
        delay = kwargs.setdefault("delay", DELAY)
        self._in_place = bool(getattr(stream, "isatty", bool)())
        # When it may be shown next: on a terminal ever after, elsewhere the time of one line.
        self._due = time.monotonic() + (delay if self._in_place else EVERY)
        self._told: float | None = None  # how far it was when a line was last written
        super().__init__(*args, **kwargs)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if time.monotonic() < self._due:
            return
        if self._in_place:
            super().display(msg, pos)
        elif msg != "":
            self._tell()

    def postpone(self) -> None:
        """Leave out the next line where the bar cannot be redrawn: something else has just told as much."""
        if not self._in_place:
            self._due = time.monotonic() + EVERY

    def clear(self, *args: Any, **kwargs: Any) -> None:
        if self._in_place and time.monotonic() >= self._due:
            super().clear(*args, **kwargs)

    def close(self) -> None:
        if not self._in_place and not self.disable:
            # Of what took no time nothing is told, unless it was to be seen from the beginning.
            if self.leave and self.n != self._told and (self._told is not None or not self.delay):
                self._tell()
            self.fp, self.leave = io.StringIO(), False  # tqdm would clear its line
        super().close()

    def _tell(self) -> None:
        if not self.desc and self.bar_format:  # a bar of words, before there are any
            return
        self._due, self._told = time.monotonic() + EVERY, self.n
        self.fp.write(f"{self}\n")
        self.fp.flush()
