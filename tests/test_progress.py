"""Progress bars: redrawn on a terminal, a line now and then elsewhere, and silent where nothing takes long."""

import io

import pytest

from nmt import progress
from nmt.progress import Bar


class Terminal(io.StringIO):
    """Something that says of itself that it is one."""

    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that is moved by hand."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("kind", [Terminal, io.StringIO])
def test_what_is_done_soon_shows_no_bar_even_if_something_is_said(kind):
    stream = kind()
    with Bar(total=10, file=stream) as bar:
        Bar.write("a warning", file=stream)
        bar.update(10)
    assert stream.getvalue() == "a warning\n"


def test_in_a_file_a_bar_is_a_line_now_and_then(clock):
    stream = io.StringIO()
    with Bar(desc="reading", total=100, file=stream, mininterval=0, delay=0) as bar:
        for _ in range(100):
            clock[0] += progress.EVERY / 10
            bar.update()
            Bar.write("said", file=stream)
    told = [line for line in stream.getvalue().split("\n") if line != "said"]
    assert told.pop() == ""  # whole lines only
    assert [line.split("|")[0].split()[1] for line in told] == [f"{n}%" for n in range(10, 101, 10)]
    assert not {"\r", "\x1b"} & set(stream.getvalue())


def test_the_last_line_of_a_bar_that_was_told_of_is_its_end(clock):
    cases = [(True, 30, 1, ["10/20", "12/20"]), (False, 30, 1, ["10/20"]), (True, 1, 1, []), (True, 1, 0, ["12/20"])]
    for leave, passed, delay, ends in cases:
        stream = io.StringIO()
        with Bar(total=20, file=stream, leave=leave, mininterval=0, delay=delay) as bar:
            clock[0] += passed
            bar.start_t -= passed
            bar.update(10)
            bar.update(2)
        assert [line.split("| ")[1].split()[0] for line in stream.getvalue().splitlines()] == ends


def test_on_a_terminal_it_is_redrawn(clock):
    stream = Terminal()
    with Bar(total=10, file=stream, mininterval=0, delay=0) as bar:
        for _ in range(10):
            bar.update()
    assert stream.getvalue().count("\r") >= 10 and stream.getvalue().count("\n") == 1
