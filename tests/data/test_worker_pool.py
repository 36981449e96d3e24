"""Who among the helpers does what; that it makes no difference to what is written is tested with the blocks."""

import shutil
import sys
import threading
from types import SimpleNamespace

import pytest

from nmt.data import worker_pool
from nmt.data.worker_pool import WorkerPool
from nmt.errors import MachineError


def test_what_is_left_in_a_file_goes_back_to_who_left_it(monkeypatch):
    """And the rest to whoever is free."""
    both, all_there, done = threading.Barrier(2), threading.Event(), []
    started = iter(range(2))

    def helper():
        number = next(started)

        def ask(task):
            if task.get("task") == "look":
                both.wait(10)  # each of them has one
                return {"file": f"blocks.{number}"}
            if task.get("task") == "hold":
                assert all_there.wait(10)
            elif task.get("task") == "count":
                both.wait(10)
                done.append((task["file"], number))
            return {}

        return SimpleNamespace(ask=ask, kill=lambda: None, close=lambda: None)

    monkeypatch.setattr(worker_pool, "_start", helper)
    with WorkerPool(2) as helpers:
        helpers.begin({}, None)
        files = [answer["file"] for answer in helpers.each("look", [{}, {}])]
        assert sorted(files) == ["blocks.0", "blocks.1"]
        held = [helpers.submit("hold", {}) for _ in range(2)]
        mine = [f"blocks.{number}" for number in (1, 1, 0, 1, 0, 0)]
        counted = [helpers.submit("count", {"file": file}) for file in [*mine, "blocks.1", "blocks.1"]]
        all_there.set()
        for each in [*held, *counted]:
            each.result(10)
    assert sorted(done[:6]) == sorted((file, int(file[-1])) for file in mine)
    assert sorted(done[6:]) == [("blocks.1", 0), ("blocks.1", 1)], "who has none of its own left takes another's"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("when", ["setup", "count"])
def test_whatever_goes_wrong_with_a_helper_nobody_waits_for_it(monkeypatch, when):
    def ask(task):
        if task.get("task", "setup") == when:
            raise KeyError("a mistake of ours")
        return {}

    helper = SimpleNamespace(ask=ask, kill=lambda: None, close=lambda: None)
    monkeypatch.setattr(worker_pool, "_start", lambda: helper)
    with WorkerPool(2) as helpers:
        helpers.begin({}, None)
        for asked in [helpers.submit("count", {}) for _ in range(5)]:
            with pytest.raises(MachineError, match="cannot be asked"):
                asked.result(10)


def test_a_helper_that_ends_is_told_with_what_to_do(monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with WorkerPool(2) as helpers:
        helpers.begin({}, None)
        with pytest.raises(
            MachineError, match=r"part of the data ended: it ended with exit code 1\. .*--data\.workers 1"
        ):
            helpers.submit("count", {}).result(10)
