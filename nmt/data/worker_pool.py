"""Pool of worker processes for the blocks of a corpus. Results come in the order of the tasks."""

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

from nmt.errors import MachineError, NmtError, as_nmt_error

_AHEAD = 3  # queued or running tasks for each worker
# The slow import of the tasks starts at once, before the first task arrives.
_CODE = "import sys, nmt.data.block_work; from nmt.data.worker_pool import serve; serve(int(sys.argv[1]))"
# One thread for each worker: the number of processes is the number of cores to use. The malloc settings keep freed
# arrays of some MB in the process, since new ones follow soon.
_ENVIRONMENT = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1") | {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 26),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 25),
}


class _Worker:
    """A worker process, spawned and not forked: a fork of a process with threads may hang."""

    def __init__(self) -> None:
        package = str(Path(__file__).parents[2])
        paths = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        self.connection, worker_end = Pipe()
        with worker_end:
            self.process = subprocess.Popen(
                # -P: a folder called nmt in the working directory must not be imported
                [sys.executable, "-P", "-c", _CODE, str(worker_end.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=2,  # output of a library goes to stderr
                pass_fds=[worker_end.fileno()],
                env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": paths},
                process_group=0,  # Ctrl-C at a terminal goes only to the main process
            )


class WorkerPool:
    """Worker processes, or with n = 1 this process alone. A context manager that ends the processes at exit."""

    def __init__(self, n: int) -> None:
        self._tasks: Any = None
        self._free: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(n)  # each waits for a worker
        try:  # after an error, workers that were started exit, since their connections are closed
            self._workers = [_Worker() for _ in range(n if n > 1 else 0)]
        except OSError as error:
            raise MachineError(
                f"data.workers: cannot start {n} processes ({error.strerror or error}). Choose fewer."
            ) from None

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.kill()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:  # no thread uses the connections any more
            worker.connection.close()
            worker.process.wait()

    def begin(self, make: Callable[..., Any], *setup: Any) -> None:
        """Create the object with the tasks as methods, in each process: make(*setup)."""
        if not self._workers:
            self._tasks = make(*setup)
        for worker in self._workers:
            self._threads.submit(self._ask, worker, "", (make, *setup))

    def submit(self, name: str, *arguments: Any) -> "Future[Any]":
        """Start a task in a worker. Without workers, run it at once."""
        if self._workers:
            return self._threads.submit(self._ask, None, name, arguments)
        future: Future[Any] = Future()
        future.set_result(getattr(self._tasks, name)(*arguments))
        return future

    def each(self, name: str, tasks: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Yield the result of each task, in order. Few tasks are started ahead, to limit the memory."""
        futures: deque[Future[Any]] = deque()
        for arguments in tasks:
            futures.append(self.submit(name, *arguments))
            if len(futures) > _AHEAD * len(self._workers):
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()

    def _ask(self, worker: _Worker | None, name: str, arguments: tuple[Any, ...]) -> Any:
        """Run a task in this or any free worker and return its result. Raises the NmtError of the task."""
        worker = worker or self._free.get()
        try:
            worker.connection.send((name, arguments))
            answer = worker.connection.recv()
        except (EOFError, OSError):
            raise MachineError(
                f"data.workers: a worker process ended with code {worker.process.wait()}. See the messages above. If "
                "there are none, memory may have run out: --data.workers 1 needs less."
            ) from None
        finally:
            self._free.put(worker)
        if isinstance(answer, NmtError):
            raise answer
        return answer


def serve(descriptor: int) -> None:
    """Main loop of a worker: run tasks until the pool closes the connection. A running task is finished first."""
    setup, tasks = list[Any](), None
    with Connection(descriptor) as connection, contextlib.suppress(ConnectionError):
        while True:
            try:
                name, arguments = connection.recv()
            except EOFError:
                return
            answer: Any = None
            try:
                if not name:  # the setup runs with the first task, whose caller gets its errors
                    setup += arguments
                else:
                    tasks = tasks or setup[0](*setup[1:])
                    answer = getattr(tasks, name)(*arguments)
            except (NmtError, OSError) as error:
                answer = as_nmt_error(error)
            except MemoryError:
                answer = MachineError("out of memory. Prepare with fewer processes: --data.workers 1.")
            connection.send(answer)
