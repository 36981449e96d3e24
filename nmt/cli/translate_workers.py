"""Several processes that answer the lines of a window: this one, and helpers that load the model for themselves.

Helpers are started anew and not forked, since a fork of a process with threads in it, and torch has some, may hang.
They speak JSON, a line a batch, over their stdin and stdout, and end when their stdin does, so none outlives this
process.
"""

import argparse
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import nmt
from nmt.cli.translate_memory import Key, Slot
from nmt.errors import MachineError, NmtError

if TYPE_CHECKING:
    from nmt.cli.translate_engine import Engine

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

    def __init__(self, engine: "Engine", args: argparse.Namespace, n_worker: int, loaded: list[str]) -> None:
        self.n_worker, self._engine = n_worker, engine
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._lost: list[NmtError] = []
        self._helpers: list[_Helper] = []
        self._threads: list[threading.Thread] = []
        try:
            for number in range(2, n_worker + 1):  # this process is the first
                self._helpers.append(_Helper(number, {"args": vars(args), "loaded": loaded}))
        except BaseException:
            self.__exit__()
            raise
        self._threads = [threading.Thread(target=self._drive, args=(one,), daemon=True) for one in self._helpers]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        for helper in self._helpers:
            self._tasks.put(None)
            helper.process.kill()
        for thread in self._threads:
            thread.join()
        for helper in self._helpers:
            helper.close()

    def submit(self, keys: Sequence[Key], slots: Sequence[Slot]) -> list[Task]:
        """Have keys answered; `finish` gives the answers to the slots."""
        tasks = [
            Task([keys[place] for place in places], [slots[place] for place in places], Future())
            for places in self._engine.tasks(keys)
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
                other.done.set_result(self._engine.answer(other.keys))
            for slot, answer in zip(task.slots, task.done.result(), strict=True):
                slot.answer = answer
            on_progress(len(task.keys))

    def _drive(self, helper: "_Helper") -> None:
        """Give a helper tasks until it is over. A thread does this, which mostly waits."""
        try:
            helper.reply()
        except NmtError as error:
            self._lost.append(error)
            return
        while task := self._tasks.get():
            try:
                task.done.set_result(helper.ask(task.keys))
            except NmtError as error:
                self._lost.append(error)
                task.done.set_exception(error)
                return
            finally:
                if not task.done.done():  # whatever happened, somebody waits
                    task.done.set_exception(MachineError(f"{helper.name} gave no answer that can be read."))


class _Helper:
    """A process that answers, seen from here."""

    def __init__(self, number: int, setup: dict[str, Any]) -> None:
        package = str(Path(nmt.__file__).parents[1])
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        # A group of its own: Ctrl-C is for this process, which then decides.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nmt.cli.translate_workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            process_group=0,
        )
        self.name = f"worker {number} (process {self.process.pid})"
        with contextlib.suppress(BrokenPipeError):  # then the reply is missing, which says more
            self._send(setup)

    def ask(self, keys: Sequence[Key]) -> list[str]:
        """The answers of the process."""
        with contextlib.suppress(BrokenPipeError):
            self._send(keys)
        answers: list[str] = self.reply()
        return answers

    def reply(self) -> Any:
        """What the process says next. Raises the NmtError that it says, or one that says that it died."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.endswith(b"\n"):
            raise MachineError(
                f"{self.name} {_end_of(self.process.wait())}. What was answered is kept where --output names a file; "
                "with fewer --workers each has more memory."
            )
        said = json.loads(line)
        if "error" in said:
            error = NmtError(f"{self.name}: {said['error']}")
            error.exit_code = said["exit_code"]
            raise error
        return said["answers"]

    def close(self) -> None:
        """Forget a process that was killed, when nobody talks to it any more."""
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):  # what it was not told before
                assert pipe is not None
                pipe.close()

    def _send(self, thing: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(thing).encode("ascii") + b"\n")
        self.process.stdin.flush()


def _end_of(code: int) -> str:
    if code == -9:
        return "was killed (signal 9: by somebody, or by the system for want of memory)"
    return f"died of signal {-code}" if code < 0 else f"ended with exit code {code}"


def serve() -> int:
    """The life of a helper: what to load, then tasks. It ends at once when its stdin does."""
    coming: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        # Our own file objects: Python locks those of sys when it exits.
        with open(0, "rb", closefd=False) as source:
            for line in source:
                coming.put(line)
        os._exit(0)

    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed here is no answer

    def say(thing: dict[str, Any]) -> None:
        sink.write(json.dumps(thing).encode("ascii") + b"\n")
        sink.flush()

    threading.Thread(target=read, daemon=True).start()
    try:
        setup = json.loads(coming.get())
        engine = _load(argparse.Namespace(**setup["args"]), setup["loaded"])
        say({"answers": []})
        while True:
            say({"answers": engine.answer([tuple(key) for key in json.loads(coming.get())])})
    except NmtError as error:
        say({"error": str(error), "exit_code": error.exit_code})
        return error.exit_code


def _load(args: argparse.Namespace, loaded: list[str]) -> "Engine":
    import torch

    from nmt.cli.translate_engine import Engine, fingerprints

    torch.set_num_threads(args.threads or 1)
    engine = Engine(args)
    if fingerprints(args) != loaded:
        raise MachineError("the model changed while it was loaded: is it still being trained? Name a --checkpoint.")
    return engine


if __name__ == "__main__":
    sys.exit(serve())
