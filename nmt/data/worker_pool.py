"""Pool of worker processes for the blocks of a corpus: one block after the other for each, answers in order.

The process that left something of a block in a file knows its words. So it is given that file again, and another
process only where it has nothing else to do.

Start and pipes are in `nmt/processes.py`, the tasks in `block_work.py`.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

from nmt.errors import MachineError, NmtError
from nmt.processes import Content, Helper, HelperLost, serve

Work = Callable[[str, Content], dict[str, Any]]  # from the name of a task and its content to the answer
Asked = tuple[str, Content, "Future[dict[str, Any]]"]

_AHEAD = 3  # blocks for each worker that wait or are worked on
_MODULE = "nmt.data.block_work"


class WorkerPool:
    """Worker processes, or with n = 1 this process alone. A context manager; the processes are gone when it ends."""

    def __init__(self, n: int) -> None:
        """n: processes, 1 for none beside this one."""
        self._work: Work | None = None
        self._tasks = _Tasks()
        self._workers: list[Helper] = []
        self._threads: list[threading.Thread] = []
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
        self._tasks.close()
        for thread in self._threads:
            thread.join()
        for worker in self._workers:
            worker.close()

    def begin(self, setup: Content, make: Callable[[Content, int], Work]) -> None:
        """Give all workers what their tasks share. make: does the work in this process, if there is no other."""
        if not self._workers:
            self._work = make(setup, 0)
        for number, worker in enumerate(self._workers):
            thread = threading.Thread(target=self._drive, args=(worker, {**setup, "number": number}), daemon=True)
            self._threads.append(thread)
            thread.start()

    def submit(self, name: str, task: Content) -> "Future[dict[str, Any]]":
        """Have a task done, by a worker if there is any."""
        done: Future[dict[str, Any]] = Future()
        if self._workers:
            self._tasks.put((name, task, done))
        else:
            assert self._work is not None, "begin comes first"
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

    def _drive(self, worker: Helper, setup: Content) -> None:
        """Give a worker tasks until it is over. A thread does this, which mostly waits."""
        lost: NmtError = MachineError("data.workers: a process that works on a part of the data cannot be asked.")
        files, done = set[str](), None
        try:
            worker.ask(setup)
            while (task := self._tasks.take(files)) is not None:
                name, content, done = task
                try:
                    answer = worker.ask({"task": name, **content})
                except NmtError as error:
                    done.set_exception(error)
                else:
                    if "file" in answer:
                        files.add(answer["file"])
                    done.set_result(answer)
        except HelperLost as error:
            lost = _lost(error)
        except NmtError as error:  # it cannot begin
            lost = error
        finally:  # whatever happened, somebody waits
            if done is not None and not done.done():
                done.set_exception(lost)
            while (task := self._tasks.take(files)) is not None:
                task[-1].set_exception(lost)


class _Tasks:
    """Tasks that wait for a worker; each worker takes one when it has none."""

    def __init__(self) -> None:
        self._waiting: list[Asked] = []
        self._is_open, self._news = True, threading.Condition()

    def put(self, task: Asked) -> None:
        """Add a task."""
        with self._news:
            self._waiting.append(task)
            self._news.notify()

    def close(self) -> None:
        """Nobody waits any longer; what is there is still taken."""
        with self._news:
            self._is_open = False
            self._news.notify_all()

    def take(self, files: Collection[str]) -> Asked | None:
        """The first task about one of these files, or else the first; waits for one, None if none will come."""
        with self._news:
            self._news.wait_for(lambda: self._waiting or not self._is_open)
            if not self._waiting:
                return None
            its = (n for n, (_, content, _) in enumerate(self._waiting) if content.get("file") in files)
            return self._waiting.pop(next(its, 0))


def _start() -> Helper:
    # One thread each: there are as many processes as cores are to be used.
    few = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
    # Arrays of some MB come and go. What glibc does not give back to the system, it need not ask for again.
    few |= {"MALLOC_TRIM_THRESHOLD_": str(1 << 26), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}
    return Helper(_MODULE, few)


def _lost(error: HelperLost) -> MachineError:
    return MachineError(
        f"data.workers: a process that worked on a part of the data ended: it {error}. Prepare again with fewer, so "
        "that each has more memory: --data.workers 1."
    )


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
