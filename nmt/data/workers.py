"""Processes that share the work on blocks: each is given one after the other, and the answers come in order.

Whoever left something of a block in a file has met its words, so what is to be done with that file later is best done
by the same process, and by another only where that one has nothing else to do.

Helpers are started anew and not forked, since a fork of a process with threads in it may hang. They speak over their
stdin and stdout, in what `pack.py` writes, and end when their stdin does, so none outlives this process. What there is
to do is in `block_work.py`.
"""

import contextlib
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import nmt
from nmt.data.pack import read_packed, write_packed
from nmt.errors import DataError, MachineError

Content = Mapping[str, Any]
Work = Callable[[str, Content], dict[str, Any]]  # from the name of a task and its content to the answer
Asked = tuple[str, Content, "Future[dict[str, Any]]"]

_AHEAD = 3  # blocks for each helper that wait or are worked on
_MODULE = "nmt.data.block_work"


class Hands(Protocol):
    """Who does the work: `Helpers`, or those of several machines, which `crew.py` has."""

    def begin(self, setup: Content, make: Callable[[Content, int], Work]) -> None:
        """Say what all tasks share. make: what does the work in this process, if there is no other."""

    def submit(self, name: str, task: Content) -> "Future[dict[str, Any]]":
        """Have a task done."""
        ...

    def each(self, name: str, tasks: Iterable[Content]) -> Iterator[dict[str, Any]]:
        """The answer to each task, in order."""
        ...


class Helpers:
    """Some processes, or with n = 1 this one alone. A context manager; the processes are gone when it ends."""

    def __init__(self, n: int) -> None:
        """n: processes, 1 for none beside this one."""
        self._work: Work | None = None
        self._tasks = _Tasks()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        try:
            for _ in range(n if n > 1 else 0):
                self._processes.append(_start())
        except OSError as error:
            self.__exit__()
            raise MachineError(
                f"data.workers: cannot start process {len(self._processes) + 1} of {n} ({error.strerror or error})."
            ) from None
        except BaseException:  # a signal
            self.__exit__()
            raise

    def __enter__(self) -> "Helpers":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        self._tasks.close()
        for thread in self._threads:
            thread.join()
        for process in self._processes:
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    if pipe:
                        pipe.close()
            process.wait()

    def begin(self, setup: Content, make: Callable[[Content, int], Work]) -> None:
        """Say what all tasks share. make: what does the work in this process, if there is no other."""
        if not self._processes:
            self._work = make(setup, 0)
        for number, process in enumerate(self._processes):
            thread = threading.Thread(target=self._drive, args=(process, {**setup, "number": number}), daemon=True)
            self._threads.append(thread)
            thread.start()

    def submit(self, name: str, task: Content) -> "Future[dict[str, Any]]":
        """Have a task done, by a helper if there is any."""
        done: Future[dict[str, Any]] = Future()
        if self._processes:
            self._tasks.put((name, task, done))
        else:
            assert self._work is not None, "begin comes first"
            done.set_result(self._work(name, task))
        return done

    def each(self, name: str, tasks: Iterable[Content]) -> Iterator[dict[str, Any]]:
        """The answer to each task, in order. Some are taken ahead, few enough for the memory."""
        waiting: deque[Future[dict[str, Any]]] = deque()
        for task in tasks:
            waiting.append(self.submit(name, task))
            if len(waiting) > _AHEAD * len(self._processes):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _drive(self, process: "subprocess.Popen[bytes]", setup: Content) -> None:
        """Give a helper tasks until it is over. A thread does this, which mostly waits."""
        lost: MachineError | None = None
        try:
            _ask(process, "setup", setup)
        except (OSError, ValueError):
            lost = _lost(process)
        files = set[str]()
        while (task := self._tasks.take(files)) is not None:
            name, content, done = task
            try:
                if lost:
                    raise lost
                answer = _ask(process, name, content)
                if "file" in answer:
                    files.add(answer["file"])
                done.set_result(answer)
            except (DataError, MachineError) as error:
                done.set_exception(error)
            except (OSError, ValueError):
                lost = _lost(process)
                done.set_exception(lost)


class _Tasks:
    """Tasks that wait for a helper; each helper takes one when it has none."""

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


def _start() -> "subprocess.Popen[bytes]":
    paths = [str(Path(nmt.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    # One thread each: there are as many processes as cores are to be used.
    few = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
    # Arrays of some MB come and go. What glibc does not give back to the system, it need not ask for again.
    few |= {"MALLOC_TRIM_THRESHOLD_": str(1 << 26), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}
    return subprocess.Popen(
        [sys.executable, "-m", _MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **few, "PYTHONPATH": os.pathsep.join(paths)},
        # Ctrl-C at a terminal is for the process that ends us.
        process_group=None if sys.platform == "win32" else 0,
    )


def _ask(process: "subprocess.Popen[bytes]", name: str, task: Content) -> dict[str, Any]:
    assert process.stdin is not None and process.stdout is not None
    write_packed(cast(BinaryIO, process.stdin), {"task": name, **task})
    process.stdin.flush()
    answer = read_packed(process.stdout.read)
    if answer is None:
        raise OSError("no answer")
    if "refused" in answer:
        raise DataError(answer["refused"])
    if "failed" in answer:
        raise MachineError(answer["failed"])
    return answer


def _lost(process: "subprocess.Popen[bytes]") -> MachineError:
    return MachineError(
        f"data.workers: a process that worked on a part of the data ended ({_ending(process)}). Was it killed "
        "for memory? Prepare again with fewer: --data.workers 1."
    )


def _ending(process: "subprocess.Popen[bytes]") -> str:
    with contextlib.suppress(subprocess.TimeoutExpired):
        return f"exit code {process.wait(1)}"
    return "its pipe is broken"


def serve(make: Callable[[Content, int], Work], stdin: BinaryIO, stdout: BinaryIO) -> None:
    """What a helper does all its life. make: what does the work, from the setup, which comes first."""
    work: Work | None = None
    while (task := _next(stdin)) is not None:
        name, answer = task.pop("task"), dict[str, Any]()
        try:
            if work is None:
                work = make(task, task["number"])
            else:
                answer = work(name, task)
        except DataError as error:
            answer = {"refused": str(error)}
        except OSError as error:
            where = f"{error.filename}: " if error.filename is not None else ""
            answer = {"failed": f"{where}{error.strerror or error}, in a process that works on a part of the data."}
        except MemoryError:
            answer = {"failed": "out of memory. Prepare with fewer processes: --data.workers 1."}
        try:
            write_packed(stdout, answer)
            stdout.flush()
        except OSError:
            os._exit(1)  # nobody is there any more to tell it to, and Python would try again in its end


def _next(stdin: BinaryIO) -> dict[str, Any] | None:
    """The next task; None if there is none, or only its beginning: then who gave it is gone."""
    try:
        return read_packed(stdin.read)
    except ValueError:
        return None


def n_core() -> int:
    """Cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
