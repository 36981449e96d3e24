"""Failing workers and their errors. `test_blocks.py` tests that the number of workers does not affect the data."""

import os
import signal

import pytest

from nmt.data.worker_pool import WorkerPool
from nmt.errors import DataError, MachineError, NmtError
from tests.data import test_worker_pool as this_module


class Tasks:
    def __init__(self, reason):
        if reason:
            raise DataError(reason)

    def add(self, a, b):
        return a + b

    def refuse(self, reason, code):
        error = DataError(reason)
        error.exit_code = code
        raise error

    def read(self, path):
        return open(path).read()

    def kill(self, signal_number):
        os.kill(os.getpid(), signal_number)

    def end(self):
        raise EOFError

    def leave(self):
        os._exit(5)


def test_results_come_in_order_and_errors_reach_the_caller(tmp_path, monkeypatch):
    """A folder called nmt in the working directory is not imported."""
    (tmp_path / "nmt").mkdir()
    (tmp_path / "nmt" / "__init__.py").write_text("raise SystemExit('a folder of the user')")
    monkeypatch.chdir(tmp_path)
    with WorkerPool(2) as workers:
        workers.begin(this_module.Tasks, "")
        assert list(workers.each("add", ((n, 1) for n in range(30)))) == list(range(1, 31))
        with pytest.raises(DataError, match="a reason") as raised:
            workers.submit("refuse", "a reason", 7).result(60)
        assert raised.value.exit_code == 7
        with pytest.raises(NmtError, match="none: No such file or directory"):
            workers.submit("read", "none").result(60)
        assert workers.submit("add", "a", "b").result(60) == "ab"
        processes = [worker.process for worker in workers._workers]
    assert all(process.poll() is not None for process in processes)


def test_setup_error_is_raised_by_the_first_task():
    with WorkerPool(2) as workers:
        workers.begin(this_module.Tasks, "no such data")
        with pytest.raises(DataError, match="no such data"):
            workers.submit("add", 1, 2).result(60)


@pytest.mark.parametrize(
    ("task", "cause"),
    [
        (("kill", signal.SIGKILL), "ended with code -9"),
        (("leave",), "ended with code 5"),
        (("end",), "ended with code 1"),
        (("add", 1, "a"), "ended with code 1"),  # an internal error: its traceback is on stderr
    ],
)
def test_dead_worker_raises_an_error_with_advice_instead_of_hanging(task, cause):
    with WorkerPool(2) as workers:
        workers.begin(this_module.Tasks, "")
        for future in [workers.submit(*task) for _ in range(5)]:
            with pytest.raises(MachineError, match=rf"a worker process {cause}.*--data\.workers 1"):
                future.result(60)


def test_worker_exits_when_its_connection_is_closed():
    with WorkerPool(2) as workers:
        workers.begin(this_module.Tasks, "")
        workers.submit("add", 1, 1).result(60)
        for worker in workers._workers:
            worker.connection.close()
            assert worker.process.wait(60) == 0
