"""Threads that wait for each other do so awake, and asleep while other work wants their processors."""

import os
import subprocess
import sys
import threading

import pytest
import torch

from nmt.processes import n_core
from nmt.threads import waiting
from nmt.threads.waiting import Surplus, asleep_beside_other_work, shall_sleep, waits_awake

CPU = torch.device("cpu")
NO_SURPLUS = "torch's OpenMP is not GNU's here, or there is one processor"
HAS_SURPLUS = n_core() > 1 and Surplus.of_this_process() is not None
N_REGION = 300

# How often threads gave their processor away in N_REGION short regions: one that waits asleep does each time.
COUNTING = f"""
import os, sys, time, torch
from nmt.threads.waiting import Surplus

def sleeps():
    of_threads = [open(f"/proc/self/task/{{one}}/status").read() for one in os.listdir("/proc/self/task")]
    return sum(int(text.partition("\\nvoluntary_ctxt_switches:")[2].split()[0]) for text in of_threads)

def in_regions():
    before = sleeps()
    for _ in range({N_REGION}):
        numbers.add_(1)
        time.sleep(0.0002)  # the other thread waits for work meanwhile
    return sleeps() - before - {N_REGION}  # the sleeps of this loop itself

torch.set_num_threads(2)
numbers = torch.zeros(1 << 17)
numbers.add_(1)
surplus = Surplus.of_this_process()
found = []
for wanted in (False, True, False):
    surplus.set(wanted)
    time.sleep(0.1)
    found.append(in_regions())
print(*found)
"""


@pytest.mark.skipif(not HAS_SURPLUS, reason=NO_SURPLUS)
def test_with_a_surplus_of_threads_those_that_wait_sleep_and_without_it_they_are_awake_again():
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run([sys.executable, "-c", COUNTING], env=usual, capture_output=True, text=True, check=True)
    before, meanwhile, after = map(int, done.stdout.split())
    assert max(before, after) < N_REGION / 2 < 0.9 * N_REGION < meanwhile


@pytest.mark.parametrize(
    ("others", "n_thread", "n_processor", "awake", "asleep"),
    [
        (None, 2, 2, False, False),
        (0.1, 2, 2, False, False),
        (0.55, 2, 2, True, False),  # always busy where threads are awake, half the time where they sleep
        (0.65, 2, 2, True, True),
        (1.65, 2, 4, False, False),  # on processors that are not ours
        (2.65, 2, 4, True, True),
        (1.9, 64, 64, False, False),
        (2.1, 64, 64, True, True),
    ],
)
def test_threads_sleep_beside_much_work_on_their_own_processors(others, n_thread, n_processor, awake, asleep):
    assert shall_sleep(others, n_thread, n_processor, False) == awake
    assert shall_sleep(others, n_thread, n_processor, True) == asleep


def test_threads_wait_awake_if_there_are_several_and_nobody_said_otherwise(monkeypatch):
    monkeypatch.setattr(waiting, "n_core", lambda: 4)
    for name in waiting.SAY_HOW:
        monkeypatch.delenv(name, raising=False)
    assert [waits_awake(n) for n in (1, 2, 4, 5)] == [False, True, True, False]
    for name in waiting.SAY_HOW:
        with monkeypatch.context() as told:
            told.setenv(name, "1")
            assert not waits_awake(4)


class Told:
    """Stands for `Surplus`: what it was told, one after the other. rest: the other work there is in the end."""

    rest = 0.0

    def __init__(self, n):
        self.is_there, self.told, self.enough, self._n = False, [], threading.Event(), n

    def set(self, wanted):
        self.is_there = wanted
        self.told.append(wanted)
        if len(self.told) == self._n:
            self.enough.set()


@pytest.fixture
def told(monkeypatch):
    """Threads that would wait awake, and other work that comes and goes."""
    told, seen = Told(4), iter([0.0, 0.9, 0.7])

    class Work:
        def processors(self):
            return next(seen, told.rest)

    monkeypatch.setattr(waiting, "OtherWork", Work)
    monkeypatch.setattr(waiting, "_watched", set())  # other tests may have loaded a model in this process
    monkeypatch.setattr(waiting, "_SECONDS", 0.001)
    monkeypatch.setattr(waiting, "waits_awake", lambda n_thread: True)
    monkeypatch.setattr(waiting, "n_core", torch.get_num_threads)
    monkeypatch.setattr(Surplus, "of_this_process", classmethod(lambda _: told))
    return told


def test_threads_sleep_while_other_work_is_there_and_are_awake_after_it(told):
    with asleep_beside_other_work(CPU):
        assert told.enough.wait(20)
    assert told.told[:4] == [False, True, True, False]
    assert not told.is_there
    assert "other work" not in [thread.name for thread in threading.enumerate()]


def test_what_began_to_sleep_is_awake_when_it_is_over(told):
    told._n, told.rest = 2, 0.9
    with pytest.raises(ZeroDivisionError), asleep_beside_other_work(CPU):
        assert told.enough.wait(20)
        raise ZeroDivisionError
    assert told.told[:2] == [False, True]
    assert not told.is_there


def test_beside_a_gpu_nobody_watches(told):
    with asleep_beside_other_work(torch.device("cuda")):
        assert "other work" not in [thread.name for thread in threading.enumerate()]
    assert told.told == []


def test_where_the_system_has_no_threads_to_spare_openmp_is_not_asked_for_any(monkeypatch):
    start, left = threading.Thread.start, iter(range(2))

    def refusing(thread):
        if next(left, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(waiting, "n_core", lambda: 2)
    surplus, before = Surplus(None), threading.active_count()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refusing)
        surplus.set(True)
    assert not surplus.is_there
    assert threading.active_count() == before
    surplus.set(False)


def test_another_openmp_is_left_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(waiting, "find_openmp", lambda: tmp_path / "libomp.so")
    assert Surplus.of_this_process() is None

    def none():
        raise waiting.NoOpenMP

    monkeypatch.setattr(waiting, "find_openmp", none)
    assert Surplus.of_this_process() is None
