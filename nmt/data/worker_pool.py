"""Pool of worker processes for the blocks of a corpus: answers come in the order of the tasks."""

import contextlib
import os
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from nmt.errors import MachineError, NmtError

_AHEAD = 3  # blocks for each worker that wait or are worked on
# The tasks are imported before anything is known of them, since it takes time.
_CODE = "import sys, nmt.data.block_work; from nmt.data.worker_pool import serve; serve(int(sys.argv[1]))"
# One thread each: there are as many processes as cores are to be used. Arrays of some MB come and go; what glibc does
# not give back to the system, it need not ask for again.
_ENVIRONMENT = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1") | {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 26),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 25),
}


class _Worker:
    """A process that is started anew, not forked: a fork of a process with threads may hang."""

    def __init__(self) -> None:
        package = str(Path(__file__).parents[2])
        paths = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        self.connection, there = Pipe()
        with there:
            self.process = subprocess.Popen(
                # -P: not from a folder called nmt where the user stands
                [sys.executable, "-P", "-c", _CODE, str(there.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a library prints is none of our output
                pass_fds=[there.fileno()],
                env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": paths},
                process_group=0,  # Ctrl-C at a terminal is for the process that started it
            )

    def ask(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """The answer to a task. Raises the NmtError that it is."""
        try:
            self.connection.send((name, arguments))
            answer = self.connection.recv()
        except (EOFError, OSError):
            code = self.process.wait()
            how = f"died of signal {-code}" if code < 0 else f"ended with exit code {code}"
            how += " (somebody killed it, or the system for want of memory)" if code == -9 else ""
            advice = "What went wrong is above; --data.workers 1 does the work in this process."
            if code < 0:
                advice = "Prepare again with fewer, so that each has more memory: --data.workers 1."
            raise MachineError(f"data.workers: a process that worked on a part of the data {how}. {advice}") from None
        if isinstance(answer, NmtError):
            raise answer
        return answer


class WorkerPool:
    """Worker processes, or with n = 1 this process alone. A context manager; the processes are gone when it ends."""

    def __init__(self, n: int) -> None:
        """n: processes, 1 for none beside this one."""
        self._work: Any = None
        self._workers: list[_Worker] = []
        self._free: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(n)  # each waits for a worker
        try:
            for _ in range(n if n > 1 else 0):
                self._workers.append(_Worker())
        except OSError as error:
            self.__exit__()
            raise MachineError(
                f"data.workers: cannot start process {len(self._workers) + 1} of {n} ({error.strerror or error})."
            ) from None
        except BaseException:  # a signal
            self.__exit__()
            raise

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.kill()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:  # nobody talks to them any more
            worker.connection.close()
            worker.process.wait()

    def begin(self, make: Callable[..., Any], *setup: Any) -> None:
        """Have the object made whose methods are the tasks, in each process: from the setup and its number there."""
        if not self._workers:
            self._work = make(*setup, 0)
        for number, worker in enumerate(self._workers):
            self._threads.submit(self._ask, worker, "", (make, *setup, number))

    def submit(self, name: str, *arguments: Any) -> "Future[Any]":
        """Have a task done, by a worker if there is any."""
        if self._workers:
            return self._threads.submit(self._ask, None, name, arguments)
        done: Future[Any] = Future()
        done.set_result(getattr(self._work, name)(*arguments))
        return done

    def each(self, name: str, tasks: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Yield the answer to each task, in order. Some are taken ahead, few enough for the memory."""
        waiting: deque[Future[Any]] = deque()
        for arguments in tasks:
            waiting.append(self.submit(name, *arguments))
            if len(waiting) > _AHEAD * len(self._workers):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _ask(self, worker: _Worker | None, name: str, arguments: tuple[Any, ...]) -> Any:
        worker = worker or self._free.get()
        try:
            return worker.ask(name, arguments)
        finally:
            self._free.put(worker)


def serve(descriptor: int) -> None:
    """Work on tasks as a process of `WorkerPool`, until nobody asks any more; a task that was begun is finished."""
    setup, work = list[Any](), None
    with Connection(descriptor) as connection, contextlib.suppress(ConnectionError):
        while True:
            try:
                name, arguments = connection.recv()
            except EOFError:
                return
            answer: Any = None
            try:
                if not name:  # what is wrong with the setup is the answer to a task
                    setup += arguments
                else:
                    work = work or setup[0](*setup[1:])
                    answer = getattr(work, name)(*arguments)
            except NmtError as error:
                answer = error
            except OSError as error:
                where = f"{error.filename}: " if error.filename is not None else ""
                what = f"{where}{error.strerror or error}, in a process that works on a part of the data."
                answer = MachineError(what)
            except MemoryError:
                answer = MachineError("out of memory. Prepare with fewer processes: --data.workers 1.")
            connection.send(answer)
