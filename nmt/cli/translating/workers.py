"""Several processes that answer the lines of a window: this one, and helpers that load the model for themselves.

How helpers are started and spoken to is in `nmt/processes.py`; a task is a batch.
"""

import argparse
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, NamedTuple

from nmt.cli.translating.recall import Key, Slot
from nmt.errors import MachineError, NmtError
from nmt.processes import Content, Helper, HelperLost, serve

if TYPE_CHECKING:
    from nmt.cli.translating.answering import Answering

_PATIENCE = 0.2  # seconds after which a helper that was lost is noticed
_WORTHWHILE = 200  # lines for which it pays to start a process, which takes seconds


class Task(NamedTuple):
    """Lines that share a batch, and where their answers go."""

    keys: list[Key]
    slots: list[Slot]
    done: "Future[list[str]]"


def n_worker(wanted: str | int, n_thread: int, n_core: int, device: str, n_line: int | None) -> int:
    """How many processes shall answer. wanted: a number, or auto. n_thread: of each. n_line: of the input, if known."""
    if wanted == "auto":
        useful = (n_line or 0) // _WORTHWHILE
        return 1 if device != "cpu" else max(1, min(n_core // n_thread, useful))
    if int(wanted) > 1 and device != "cpu":
        raise NmtError(f"--workers {wanted} is for the CPU, and this is {device}: leave it out, or give --device cpu.")
    return int(wanted)


class Pool:
    """This process and its helpers. A context manager; the helpers are gone when it ends.

    n_worker: 1 for this process alone. loaded: what a helper must have loaded, as `fingerprints` says it.
    """

    def __init__(self, answering: "Answering", args: argparse.Namespace, n_worker: int, loaded: list[str]) -> None:
        self.n_worker, self._answering = n_worker, answering
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._lost: list[NmtError] = []
        self._helpers: list[Helper] = []
        self._threads: list[threading.Thread] = []
        try:
            for _ in range(1, n_worker):  # this process is the first
                self._helpers.append(Helper("nmt.cli.translating.workers"))
        except BaseException:
            self.__exit__()
            raise
        setup = {"args": vars(args), "loaded": loaded}
        for number, helper in enumerate(self._helpers, start=2):
            name = f"worker {number} (process {helper.process.pid})"
            self._threads.append(threading.Thread(target=self._drive, args=(helper, name, setup), daemon=True))
            self._threads[-1].start()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        for helper in self._helpers:
            self._tasks.put(None)
            helper.kill()
        for thread in self._threads:
            thread.join()
        for helper in self._helpers:
            helper.close()

    def submit(self, keys: Sequence[Key], slots: Sequence[Slot]) -> list[Task]:
        """Have keys answered; `finish` gives the answers to the slots."""
        tasks = [
            Task([keys[place] for place in places], [slots[place] for place in places], Future())
            for places in self._answering.tasks(keys)
        ]
        for task in tasks:
            self._tasks.put(task)
        return tasks

    def finish(self, tasks: list[Task], on_progress: Callable[[int], object]) -> None:
        """Fill the slots of tasks, and lend a hand meanwhile. Raises MachineError naming a helper that died."""
        for task in tasks:
            while not task.done.done():
                if self._lost:
                    raise self._lost[0]
                try:
                    other = self._tasks.get_nowait()
                except queue.Empty:
                    wait([task.done], timeout=_PATIENCE)
                    continue
                assert other is not None, "only the end stops the helpers"
                other.done.set_result(self._answering.answer(other.keys))
            for slot, answer in zip(task.slots, task.done.result(), strict=True):
                slot.answer = answer
            on_progress(len(task.keys))

    def _drive(self, helper: Helper, name: str, setup: Content) -> None:
        """Give a helper tasks until it is over. A thread does this, which mostly waits."""
        try:
            _ask(helper, name, setup)
        except NmtError as error:
            self._lost.append(error)
            return
        while task := self._tasks.get():
            try:
                task.done.set_result(_ask(helper, name, {"keys": task.keys})["answers"])
            except NmtError as error:
                self._lost.append(error)
                task.done.set_exception(error)
                return
            finally:
                if not task.done.done():  # whatever happened, somebody waits
                    task.done.set_exception(MachineError(f"{name} gave no answer that can be read."))


def _ask(helper: Helper, name: str, task: Content) -> dict[str, Any]:
    """The answer of a helper. Raises an NmtError that names it."""
    try:
        return helper.ask(task)
    except HelperLost as error:
        raise MachineError(
            f"{name} {error}. What was answered is kept where --output names a file; with fewer --workers each has "
            "more memory."
        ) from None
    except NmtError as error:
        named = NmtError(f"{name}: {error}")
        named.exit_code = error.exit_code
        raise named from None


def _answers(setup: dict[str, Any]) -> Callable[[dict[str, Any]], Content]:
    """What a helper does: it loads the model, and then answers lines."""
    answering = _load(argparse.Namespace(**setup["args"]), setup["loaded"])
    return lambda task: {"answers": answering.answer([tuple(key) for key in task["keys"]])}


def _load(args: argparse.Namespace, loaded: list[str]) -> "Answering":
    import torch

    from nmt.cli.translating.answering import Answering, fingerprints

    torch.set_num_threads(args.threads or 1)
    answering = Answering(args)
    if fingerprints(args) != loaded:
        raise MachineError("the model changed while it was loaded: is it still being trained? Name a --checkpoint.")
    return answering


if __name__ == "__main__":
    sys.exit(serve(_answers))
