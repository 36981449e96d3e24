"""Where the time of a training process goes: so many seconds for data, forward, backward and so on.

Nothing waits for a GPU: what it computes is timed by events that it passes on its way, read when they are long past.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, cast

import torch

T = TypeVar("T")
Part = Literal["data", "forward", "backward", "step", "validation", "saving", "telling"]
PARTS: tuple[Part, ...] = ("data", "forward", "backward", "step", "validation", "saving", "telling")


class Stopwatch:
    """Seconds of each part since the process began to train.

    event: makes an event of the device with `record`, `query` and `elapsed_time` (in ms), as torch.cuda.Event does;
    None where the device is the host itself.
    """

    def __init__(self, event: Callable[[], Any] | None = None) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self.begin = time.perf_counter()
        self._event = event
        self._passing: deque[tuple[Part, Any, Any]] = deque()  # in the order in which the device comes by

    @classmethod
    def of(cls, device: torch.device) -> "Stopwatch":
        """The stopwatch for a device."""
        if device.type != "cuda":
            return cls()
        return cls(lambda: cast(Any, torch.cuda.Event)(enable_timing=True))  # which has no type hints

    @contextmanager
    def host(self, part: Part) -> Iterator[None]:
        """Time what this process does or waits for inside."""
        begin = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - begin

    @contextmanager
    def device(self, part: Part) -> Iterator[None]:
        """Time what the device does of the work that it is given inside."""
        if self._event is None:
            start = time.perf_counter()
            yield
            self.seconds[part] += time.perf_counter() - start
            return
        begin, end = self._event(), self._event()
        begin.record()
        yield
        end.record()
        self._passing.append((part, begin, end))
        self._read()

    def waiting(self, part: Part, items: Iterable[T]) -> Iterator[T]:
        """The items, timing how long each is waited for."""
        coming = iter(items)
        while True:
            with self.host(part):
                item = next(coming, coming)
            if item is coming:
                return
            yield cast(T, item)

    def read(self) -> dict[str, float]:
        """Seconds of each part, of all that is none of them as `other`, and in all as `seconds`.

        A GPU works while the process waits for data or saves: so the parts may add up to more than all, and then there
        is no other.
        """
        self._read()
        total = time.perf_counter() - self.begin
        return {**self.seconds, "other": max(0.0, total - sum(self.seconds.values())), "seconds": total}

    def _read(self) -> None:
        while self._passing and self._passing[0][2].query():
            part, begin, end = self._passing.popleft()
            self.seconds[part] += begin.elapsed_time(end) / 1000


def table(seconds: dict[str, float]) -> list[str]:
    """What `Stopwatch.read` returns, as lines for people."""
    total = max(1e-9, seconds["seconds"])
    return [
        f"{'in all' if part == 'seconds' else part:>12} {spent:11,.1f} s {spent / total:7.1%}"
        for part, spent in seconds.items()
    ]
