"""How much of the processors work other than this process takes, where the system tells: on Linux."""

import os
import time
from collections.abc import Collection
from pathlib import Path

_STAT = Path("/proc/stat")
_BUSY = (0, 1, 2, 5, 6, 7)  # columns after the name: user, nice, system, interrupts, and what other machines took


class OtherWork:
    """Watches, from now on, the processors that this process may use."""

    def __init__(self) -> None:
        self._began, self._own, self._all = time.perf_counter(), time.process_time(), _busy_ticks()

    def processors(self) -> float | None:
        """How many of them other work has kept busy since, on average; None where the system does not tell."""
        now = _busy_ticks()
        if now is None or self._all is None:
            return None
        everyone = (now - self._all) / os.sysconf("SC_CLK_TCK")
        own = time.process_time() - self._own
        return max(0.0, (everyone - own) / (time.perf_counter() - self._began))


def _busy_ticks() -> int | None:
    """What all work has taken of our processors since the machine was started."""
    try:
        return busy_ticks(_STAT.read_text(encoding="ascii"), os.sched_getaffinity(0))
    except (OSError, ValueError, AttributeError):  # no such file, another form of it, a system without affinity
        return None


def busy_ticks(stat: str, processors: Collection[int]) -> int:
    """Ticks that some processors were busy, of what /proc/stat says. Raises ValueError where it does not say so."""
    ours = {f"cpu{number}" for number in processors}
    lines = [line.split() for line in stat.split("\n") if line.split(" ", 1)[0] in ours]
    if len(lines) < len(ours) or any(len(line) <= 1 + max(_BUSY) for line in lines):
        raise ValueError("a processor is not told of")
    return sum(int(ticks[column]) for _, *ticks in lines for column in _BUSY)
