"""Workers that fail; that their number makes no difference to the data is tested with the blocks."""

import shutil
import sys
from types import SimpleNamespace

import pytest

from nmt.data import worker_pool
from nmt.data.worker_pool import WorkerPool
from nmt.errors import MachineError


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
            with pytest.raises(KeyError, match="a mistake of ours"):
                asked.result(10)


def test_a_helper_that_ends_is_told_with_what_to_do(monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with WorkerPool(2) as helpers:
        helpers.begin({}, None)
        with pytest.raises(
            MachineError, match=r"part of the data ended: it ended with exit code 1\. .*--data\.workers 1"
        ):
            helpers.submit("count", {}).result(10)
