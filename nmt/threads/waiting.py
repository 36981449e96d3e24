"""How the threads of a computation wait for each other: awake where they have the processors for themselves, and asleep
while other work wants them too.

A thread of OpenMP that has done its part looks for some milliseconds whether the others have, and sleeps only then:
that is fastest where nobody else wants its processor. Beside other work one thread often has to share its processor,
and the others, waiting for it, keep theirs from whoever could use them. GNU's OpenMP, which torch's packages for Linux
have, looks only shortly in a process that has more threads than processors. So while there is other work, there are
threads more that do nothing but sleep. What is computed is the same to the bit.
"""

import atexit
import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from nmt.native.openmp import NoOpenMP, find_openmp
from nmt.processes import n_core
from nmt.threads.other_work import OtherWork

_SECONDS = 1.0  # over which other work is measured
# Processors that other work must keep busy for threads to sleep, and to go on sleeping. One process that always has
# something to do is left 0.55 to 0.75 of one by threads that wait awake, and 0.85 to 1 by those that sleep; one that is
# idle half the time 0.3 and 0.3 to 0.55, and beside that one waiting awake is still faster.
_TO_SLEEP, _TO_SLEEP_ON = 0.5, 0.6
_FEW = 1 / 32  # of all threads: on large machines so much other work is nothing
_watched: set[int] = set()  # processes, this one or those it was forked from, that do so until they end
SAY_HOW = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # whoever sets one of these has said how threads wait


@contextmanager
def asleep_beside_other_work(device: torch.device) -> Iterator[None]:
    """Meanwhile, have the threads that compute on a CPU wait asleep whenever other work wants their processors.

    On a GPU, where they cannot be told how to wait, and where whoever started the process has said how, all is as it
    was.
    """
    n_thread = torch.get_num_threads()
    surplus = Surplus.of_this_process() if device.type == "cpu" and waits_awake(n_thread) else None
    if surplus is None or os.getpid() in _watched:
        yield
        return
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(surplus, n_thread, over), name="other work", daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


def stay_asleep_beside_other_work(device: torch.device) -> None:
    """The same from now on, until the process ends: for a model that is loaded once and asked again and again."""
    if os.getpid() not in _watched:
        watching = asleep_beside_other_work(device)
        watching.__enter__()
        _watched.add(os.getpid())
        atexit.register(watching.__exit__, None, None, None)


def waits_awake(n_thread: int) -> bool:
    """Whether so many threads keep their processors while they wait for each other, as OpenMP has it by itself."""
    return 1 < n_thread <= n_core() and not any(name in os.environ for name in SAY_HOW)


def shall_sleep(others: float | None, n_thread: int, n_processor: int, asleep: bool) -> bool:
    """Whether threads shall wait asleep from now on. others: processors that other work keeps busy, None: not known.

    asleep: they do so now.
    """
    wanted = (others or 0.0) - (n_processor - n_thread)  # of ours
    return wanted >= max(_TO_SLEEP_ON if asleep else _TO_SLEEP, _FEW * n_thread)


def _watch(surplus: "Surplus", n_thread: int, over: threading.Event) -> None:
    """Look at what others do until it is over."""
    work = OtherWork()
    while not over.wait(_SECONDS):
        surplus.set(shall_sleep(work.processors(), n_thread, n_core(), surplus.is_there))
        work = OtherWork()
    surplus.set(False)


class Surplus:
    """Threads of OpenMP that do nothing, so many that the process has more of them than there are processors."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._enough: threading.Event | None = None

    @classmethod
    def of_this_process(cls) -> "Surplus | None":
        """None where torch's OpenMP is not GNU's."""
        if sys.platform != "linux":
            return None
        try:
            path = find_openmp()
            return cls(ctypes.CDLL(str(path))) if path.name.startswith("libgomp") else None
        except (NoOpenMP, OSError):
            return None

    @property
    def is_there(self) -> bool:
        """Whether they are there now."""
        return self._enough is not None

    def set(self, wanted: bool) -> None:
        """Bring them, or send them away. They stay away where so many threads cannot be started."""
        if self._enough is not None and not wanted:
            self._enough.set()
            self._enough = None
        elif self._enough is None and wanted and _can_start(n_core() + 1):
            self._enough = threading.Event()
            threading.Thread(target=self._stay, args=(self._enough,), name="surplus", daemon=True).start()

    def _stay(self, enough: threading.Event) -> None:
        """A parallel region, whose threads then sleep as long as the one lives that asked for it."""
        # free(NULL) does nothing: what is wanted are the threads that do it.
        nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)
        self._library.GOMP_parallel(nothing, None, ctypes.c_uint(n_core()), ctypes.c_uint(0))
        enough.wait()


def _can_start(n: int) -> bool:
    """Whether this process may have n threads more: OpenMP ends a process in which it gets fewer than it wants."""
    enough, started = threading.Event(), list[threading.Thread]()
    try:
        for _ in range(n):
            thread = threading.Thread(target=enough.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        return False
    finally:
        enough.set()
        for thread in started:
            thread.join()
    return True
