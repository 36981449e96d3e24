"""The way of a window of lines: what of it is new goes to the model, or was answered by an earlier process."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from nmt.cli.translating.recall import Key, Recall, Slot
from nmt.cli.translating.requests import Odd
from nmt.cli.translating.workers import Pool, Task


class Line(NamedTuple):
    """A line of the input: its text, what is odd about it, and what stands beside it for its answer."""

    text: str
    odd: Odd
    beside: dict[str, Any]


class Window(NamedTuple):
    """Some lines of the input."""

    lines: list[Line]
    keys: list[Key]

    @property
    def digest(self) -> str:
        """What stands for these lines in a journal."""
        return hashlib.sha256("".join(f"{part}\n" for key in self.keys for part in key).encode("utf-8")).hexdigest()


class Solved(NamedTuple):
    """A window and the answer to each line. In the share of a rank, what another rank answers is ""."""

    window: Window
    answers: list[str]


class Record(Protocol):
    """Answers of earlier processes, in the order of the windows; and those of this one for later ones."""

    def take(self, digest: str) -> list[str] | None:
        """The answers to the new lines of the next window, None if it has to be answered now."""

    def add(self, digest: str, n_line: int, answers: list[str]) -> None:
        """Keep the answers to the new lines of the next window."""


class _Waiting(NamedTuple):
    window: Window
    slots: list[Slot]
    new: dict[Key, Slot]
    tasks: list[Task] | None  # None: answered before


def solve(
    windows: Iterable[Window],
    pool: Pool,
    recall: Recall,
    record: Record | None,
    *,
    ahead: int = 0,
    mine: Callable[[int], bool] = lambda number: True,
    on_progress: Callable[[int], object],
    on_live: Callable[[], object] = lambda: None,
) -> Iterator[Solved]:
    """Answer windows, in order.

    ahead: windows that are read and handed out while the first of them is not done, so that nobody has to wait.
    mine: whether the window of a number, from 0, is to be answered here. on_progress: told the lines that were
    answered. on_live: called before the first window that no earlier process answered.
    """
    waiting: deque[_Waiting] = deque()
    is_live = False

    def done() -> Solved:
        window, slots, new, tasks = waiting.popleft()
        if tasks is not None:
            pool.finish(tasks, on_progress)
            on_progress(len(slots) - len(new))
            if record:
                record.add(window.digest, len(slots), [slot.answer for slot in new.values()])
        return Solved(window, [slot.answer for slot in slots])

    for number, window in enumerate(windows):
        slots, new = recall.slots(window.keys)
        if not mine(number):
            continue
        told = record.take(window.digest) if record else None
        if told is None:
            if not is_live:
                is_live = True
                on_live()
            waiting.append(_Waiting(window, slots, new, pool.submit(list(new), list(new.values()))))
        else:
            for slot, answer in zip(new.values(), told, strict=True):
                slot.answer = answer
            waiting.append(_Waiting(window, slots, new, None))
        while len(waiting) > ahead:
            yield done()
    while waiting:
        yield done()
    if record:
        record.take("")  # if there is more, it was of another input
