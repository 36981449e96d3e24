"""What other work takes of the processors, by what the system tells."""

import itertools
import os

import pytest

from nmt.threads import other_work
from nmt.threads.other_work import OtherWork, busy_ticks

STAT = """\
cpu  111 222 333 444 555 666 777 888 0 0
cpu0 1 20 300 9000 9000 4000 50000 600000 9 9
cpu1 2 0 0 9000 9000 0 0 0 9 9
cpu11 3 0 0 9000 9000 0 0 0 9 9
intr 5 4 3
"""


def test_idle_processors_and_those_of_others_do_not_count():
    assert [busy_ticks(STAT, some) for some in ({0}, {1}, {11}, {1, 11})] == [654321, 2, 3, 5]


@pytest.mark.parametrize("stat", ["", "cpu1 1 2 3\n", STAT.replace("cpu1 2", "cpu1 x")])
def test_what_is_not_told_is_not_guessed(stat):
    with pytest.raises(ValueError, match=r"not told of|invalid literal"):
        busy_ticks(stat, {1})


def test_what_this_process_took_is_not_other_work(monkeypatch):
    tick = os.sysconf("SC_CLK_TCK")
    monkeypatch.setattr(other_work, "_busy_ticks", itertools.cycle([1000 * tick, 1015 * tick]).__next__)
    monkeypatch.setattr(other_work.time, "process_time", itertools.cycle([50.0, 60.0]).__next__)
    monkeypatch.setattr(other_work.time, "perf_counter", itertools.cycle([700.0, 710.0]).__next__)
    assert OtherWork().processors() == pytest.approx(0.5)


def test_where_the_system_does_not_tell_nothing_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(other_work, "_STAT", tmp_path / "none")
    assert OtherWork().processors() is None


@pytest.mark.skipif(not other_work._STAT.exists(), reason="no /proc/stat to read what the processors do from")
def test_this_system_tells():
    assert OtherWork().processors() is not None
