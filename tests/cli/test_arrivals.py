import threading
import time

import pytest

from nmt.cli.translate_input import windows
from nmt.errors import DataError


def test_a_fast_input_comes_in_full_windows():
    assert list(windows(range(10), 4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_what_has_arrived_is_handed_over_when_the_input_pauses():
    go_on = threading.Event()

    def typed():
        yield "a"
        yield "b"
        assert go_on.wait(20)
        yield "c"

    found = windows(typed(), 1000, patience=0.3)
    assert next(found) == ["a", "b"]
    go_on.set()
    assert list(found) == [["c"]]


def test_an_error_of_the_input_comes_after_the_lines_before_it():
    def damaged():
        yield "a"
        raise DataError("cut")

    found = windows(damaged(), 5)
    assert next(found) == ["a"]
    with pytest.raises(DataError, match="cut"):
        next(found)


def test_reading_stops_when_nobody_wants_more():
    taken = []

    def endless():
        while True:
            taken.append(1)
            yield 1

    found = windows(endless(), 3)
    next(found)
    found.close()
    time.sleep(0.5)
    n_taken = len(taken)
    time.sleep(0.3)
    assert len(taken) == n_taken < 30
