"""Progress bars: redrawn on a terminal, occasional lines elsewhere, and nothing for short work."""

import io

import pytest

from nmt import progress
from nmt.progress import Bar


class Terminal(io.StringIO):
    """Stream that claims to be a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """Fake clock that tests advance."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("kind", [Terminal, io.StringIO])
def test_short_work_shows_no_bar_even_with_messages(kind):
    stream = kind()
    with Bar(total=10, file=stream) as bar:
        Bar.write("a warning", file=stream)
        bar.update(10)
    assert stream.getvalue() == "a warning\n"


def test_bar_in_a_file_is_an_occasional_line(clock):
    stream = io.StringIO()
    with Bar(desc="reading", total=100, file=stream, mininterval=0, delay=0) as bar:
        for _ in range(100):
            clock[0] += progress.EVERY / 10
            bar.update()
            Bar.write("said", file=stream)
    rows = [line for line in stream.getvalue().split("\n") if line != "said"]
    assert rows.pop() == ""  # whole lines only
    assert [line.split("|")[0].split()[1] for line in rows] == [f"{n}%" for n in range(10, 101, 10)]
    assert not {"\r", "\x1b"} & set(stream.getvalue())


def test_bar_that_was_shown_ends_with_its_final_count(clock):
    cases = [(True, 30, 1, ["10/20", "12/20"]), (False, 30, 1, ["10/20"]), (True, 1, 1, []), (True, 1, 0, ["12/20"])]
    for leave, seconds, delay, counts in cases:
        stream = io.StringIO()
        with Bar(total=20, file=stream, leave=leave, mininterval=0, delay=delay) as bar:
            clock[0] += seconds
            bar.start_t -= seconds
            bar.update(10)
            bar.update(2)
        assert [line.split("| ")[1].split()[0] for line in stream.getvalue().splitlines()] == counts


def test_bar_on_a_terminal_is_redrawn(clock):
    stream = Terminal()
    with Bar(total=10, file=stream, mininterval=0, delay=0) as bar:
        for _ in range(10):
            bar.update()
    assert stream.getvalue().count("\r") >= 10 and stream.getvalue().count("\n") == 1
