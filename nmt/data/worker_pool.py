"""Pool of worker processes for the blocks of a corpus: answers come in the order of the tasks.

Start and pipes are in `nmt/processes.py`, the tasks in `block_work.py`.
"""

import contextlib
import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from nmt.errors import MachineError
from nmt.processes import Content, Helper, HelperLost, serve

Work = Callable[[str, Content], dict[str, Any]]  # from the name of a task and its content to the answer

_AHEAD = 3  # blocks for each worker that wait or are worked on
_MODULE = "nmt.data.block_work"


class WorkerPool:
    """Worker processes, or with n = 1 this process alone. A context manager; the processes are gone when it ends."""

    def __init__(self, n: int) -> None:
        """n: processes, 1 for none beside this one."""
        self._work: Work | None = None
        self._workers: list[Helper] = []
        self._free: queue.SimpleQueue[tuple[Helper, Content | None]] = queue.SimpleQueue()  # with the setup, once
        self._threads = ThreadPoolExecutor(n)  # each waits for a worker
        try:
            for _ in range(n if n > 1 else 0):
                self._workers.append(_start())
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
            worker.kill()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close()

    def begin(self, setup: Content, make: Callable[[Content, int], Work]) -> None:
        """Give all workers what their tasks share. make: does the work in this process, if there is no other."""
        if not self._workers:
            self._work = make(setup, 0)
        for number, worker in enumerate(self._workers):
            self._free.put((worker, {**setup, "number": number}))

    def submit(self, name: str, task: Content) -> "Future[dict[str, Any]]":
        """Have a task done, by a worker if there is any."""
        if self._workers:
            return self._threads.submit(self._ask, name, task)
        assert self._work is not None, "begin comes first"
        done: Future[dict[str, Any]] = Future()
        done.set_result(self._work(name, task))
        return done

    def each(self, name: str, tasks: Iterable[Content]) -> Iterator[dict[str, Any]]:
        """Yield the answer to each task, in order. Some are taken ahead, few enough for the memory."""
        waiting: deque[Future[dict[str, Any]]] = deque()
        for task in tasks:
            waiting.append(self.submit(name, task))
            if len(waiting) > _AHEAD * len(self._workers):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _ask(self, name: str, task: Content) -> dict[str, Any]:
        worker, setup = self._free.get()
        try:
            if setup is not None:
                worker.ask(setup)
                setup = None
            return worker.ask({"task": name, **task})
        except HelperLost as error:
            raise MachineError(
                f"data.workers: a process that worked on a part of the data ended: it {error}. Prepare again with "
                "fewer, so that each has more memory: --data.workers 1."
            ) from None
        finally:
            self._free.put((worker, setup))


def _start() -> Helper:
    # One thread each: there are as many processes as cores are to be used.
    few = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
    # Arrays of some MB come and go. What glibc does not give back to the system, it need not ask for again.
    few |= {"MALLOC_TRIM_THRESHOLD_": str(1 << 26), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}
    return Helper(_MODULE, few)


def serve_as_worker(make: Callable[[Content, int], Work]) -> int:
    """Serve tasks as a worker process. make: makes the function that does them, from the setup, which comes first."""

    def begun(setup: dict[str, Any]) -> Callable[[dict[str, Any]], Content]:
        with _errors_told():
            work = make(setup, setup["number"])

        def answer(task: dict[str, Any]) -> Content:
            with _errors_told():
                return work(task.pop("task"), task)

        return answer

    return serve(begun)


@contextlib.contextmanager
def _errors_told() -> Iterator[None]:
    """Say what the system lacks, as an answer."""
    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        raise MachineError(
            f"{where}{error.strerror or error}, in a process that works on a part of the data."
        ) from None
    except MemoryError:
        raise MachineError("out of memory. Prepare with fewer processes: --data.workers 1.") from None
