"""What a helper answers, what is no answer, and what is told of one that ends."""

import contextlib
import io
import os
import signal

import numpy as np
import pytest

from nmt.errors import DataError, NmtError
from nmt.processes import Helper, HelperLost, read_packed, write_packed


@contextlib.contextmanager
def helper():
    one = Helper("tests.made_helper", {"OMP_NUM_THREADS": "1"})
    try:
        yield one
    finally:
        one.kill()
        one.close()


def test_what_is_printed_in_a_helper_is_no_answer(capfd):
    with helper() as one:
        assert one.ask({"name": "me"}) == {}
        assert one.ask({"x": 5}) == {"echo": {"x": 5}}
        assert one.ask({"n_print": 100_000})["echo"]
    err = capfd.readouterr().err
    assert err.startswith("printed before\nwithout an end of line") and "printed by me\n" in err
    assert err.count("x") >= 100_000


def test_a_helper_is_this_package_wherever_the_user_stands(tmp_path, monkeypatch):
    for package in ("nmt", "tests"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('a folder of the user')")
    monkeypatch.chdir(tmp_path)
    with helper() as one:
        assert one.ask({"name": "me"}) == {}


def test_an_error_is_an_answer_and_the_next_task_is_answered():
    with helper() as one:
        one.ask({"name": "me"})
        with pytest.raises(DataError, match="a reason") as raised:
            one.ask({"own": "a reason"})
        assert type(raised.value) is DataError, "the class that both ends know"
        with pytest.raises(NmtError, match="other code") as raised:
            one.ask({"code": 7})
        assert raised.value.exit_code == 7
        assert one.ask({"x": 1})["echo"] == {"x": 1}
        with pytest.raises(HelperLost, match="ended with exit code 3"):
            one.ask({"exit": 3})


def test_a_helper_that_cannot_begin_says_why_and_ends():
    with helper() as one:
        with pytest.raises(DataError, match="no such data"):
            one.ask({"name": "me", "refuse": "no such data"})
        assert one.process.wait(10) == DataError.exit_code


def test_a_helper_that_is_killed_is_lost():
    with helper() as one:
        one.ask({"name": "me"})
        os.kill(one.process.pid, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(HelperLost, match="was killed"):
                one.ask({})


def test_a_helper_ends_when_nobody_asks_any_more():
    with helper() as one:
        one.ask({"name": "me"})
        one.process.stdin.close()
        assert one.process.wait(10) == 0


def test_what_was_packed_comes_back_and_nothing_else_is_read():
    file = io.BytesIO()
    content = {"n": 1, "text": "\ud800ü", "bytes": b"ab", "array": np.arange(6, dtype=np.uint16).reshape(2, 3)}
    write_packed(file, content)
    file.seek(0)
    found = read_packed(file.read)
    assert {**found, "array": None} == {**content, "array": None} and np.array_equal(found["array"], content["array"])
    assert found["array"].dtype == np.uint16 and read_packed(file.read) is None

    def read(n):
        assert n < 100, "so much memory is not asked for"
        return b"Warning: a library wants to say something"[:n]

    with pytest.raises(ValueError, match="nothing that was packed"):
        read_packed(read)
