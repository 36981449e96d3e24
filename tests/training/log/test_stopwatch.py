"""Where the time goes: every second is counted once, and a device is never waited for."""

import itertools
import time

import pytest

from nmt.run import Run
from nmt.training.log.stopwatch import PARTS, Stopwatch, table
from nmt.training.meter import Pace
from nmt.training.starting.launch import launch
from nmt.training.state import TrainState
from tests.training.test_log import log_of
from tests.training.test_resume import digest


class FakeEvent:
    """An event of a device that works off what it was given when the test says so. Reading one early is an error."""

    def __init__(self, queue):
        self.queue, self.at = queue, None

    def record(self):
        self.queue.append(self)

    def query(self):
        return self.at is not None

    def elapsed_time(self, end):
        assert self.at is not None and end.at is not None, "read before it passed: for a real one that means waiting"
        return end.at - self.at


def test_a_device_is_timed_late_and_not_waited_for():
    queue, clock = [], itertools.count(1)
    stopwatch = Stopwatch(lambda: FakeEvent(queue))

    def let_pass(n):
        for _ in range(n):
            queue.pop(0).at = 1000.0 * next(clock)

    for _ in range(3):
        with stopwatch.device("forward"):
            pass
        with stopwatch.device("backward"):
            pass
    assert stopwatch.read()["forward"] == 0.0
    let_pass(5)  # a forward and a backward pass, and the beginning of a forward pass
    found = stopwatch.read()
    assert (found["forward"], found["backward"]) == (1.0, 1.0)
    let_pass(7)
    with stopwatch.device("step"):
        pass
    assert stopwatch.seconds["backward"] == 3.0
    assert len(queue) == 2 and not stopwatch.seconds["step"]


def test_on_the_host_the_parts_and_the_rest_are_all_the_time():
    stopwatch = Stopwatch()
    with stopwatch.host("saving"):
        time.sleep(0.02)
    with stopwatch.device("step"):
        time.sleep(0.01)
    time.sleep(0.03)
    found = stopwatch.read()
    assert found["saving"] >= 0.02 and found["step"] >= 0.01 and found["other"] >= 0.03
    assert sum(found[part] for part in (*PARTS, "other")) == pytest.approx(found["seconds"])


def test_only_the_waiting_for_items_counts_as_waiting():
    def slow():
        for n in range(3):
            time.sleep(0.01)
            yield n

    stopwatch, found = Stopwatch(), []
    for n in stopwatch.waiting("data", slow()):
        found.append(n)
        time.sleep(0.05)
    assert found == [0, 1, 2]
    assert 0.03 <= stopwatch.seconds["data"] < 0.1


def test_the_table_has_a_line_for_each_part_with_its_share():
    lines = table({"data": 1.0, "forward": 6.0, "other": 3.0, "seconds": 10.0})
    assert [line.split() for line in lines] == [
        ["data", "1.0", "s", "10.0%"],
        ["forward", "6.0", "s", "60.0%"],
        ["other", "3.0", "s", "30.0%"],
        ["in", "all", "10.0", "s", "100.0%"],
    ]


def test_the_time_left_counts_updates_validations_and_savings(recipe_of):
    recipe = recipe_of(train={"updates": 1000, "save_every": 100}, valid={"every": 50})
    pace, state = Pace(), TrainState()
    assert pace.left(state, recipe) == 0.0
    for seconds in (60.0, 1.0, 3.0):
        pace.add(seconds)
    assert pace.seconds == 2.0  # the first sets things up
    for seconds in (*[1.0] * 50, *[2.0] * 100):  # and only the last hundred count
        pace.add(seconds)
    state.update = 200
    assert pace.left(state, recipe) == 800 * 2.0
    state.measure_seconds, state.save_seconds = 10.0, 1.0
    assert pace.left(state, recipe) == 800 * 2.0 + 16 * 10.0 + (16 + 8) * 1.0


def test_timing_a_device_by_events_changes_no_bit(recipe_of, monkeypatch):
    class PassesAtOnce:
        def record(self):
            self.at = time.perf_counter()

        def query(self):
            return True

        def elapsed_time(self, end):
            return (end.at - self.at) * 1000

    sections = {
        "train": {"updates": 8, "save_every": 8, "log_every": 8},
        "valid": {"every": 100, "translate": False, "metric": "loss"},
    }
    host, events = recipe_of("host", **sections), recipe_of("events", **sections)
    launch(host)
    monkeypatch.setattr(Stopwatch, "of", lambda device: Stopwatch(PassesAtOnce))
    launch(events)
    assert digest(Run(host.run_folder), 8) == digest(Run(events.run_folder), 8)
    for recipe in (host, events):
        [told] = log_of(recipe, "time")
        assert min(told["forward"], told["backward"], told["step"]) > 0
