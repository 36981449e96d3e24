"""Where the time goes: every second is counted once, and a device is never waited for."""

import time

import pytest

from nmt.run import Run
from nmt.training.engine import PARTS, Stopwatch, duration, size
from nmt.training.launch import launch
from nmt.training.reporter import Pace
from nmt.training.state import TrainState
from tests.training.test_log import log_of
from tests.training.test_resume import digest


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


# What people read for seconds and bytes.


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (4.21, "4.2 s"),
        (9.96, "10 s"),
        (59.6, "1 min 00 s"),
        (320, "5 min 20 s"),
        (11_100, "3 h 05 min"),
        (180_000, "2 days 2 h"),
    ],
)
def test_a_length_of_time(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("n", "text"), [(999, "1.0 kB"), (1_234_567, "1.2 MB"), (3.6e9, "3.6 GB"), (1.2e13, "12,000.0 GB")]
)
def test_a_number_of_bytes(n, text):
    assert size(n) == text
