"""Workers that fail, and their errors; that their number makes no difference to the data is tested with the blocks."""

import os
import signal

import pytest

from nmt.data.worker_pool import WorkerPool
from nmt.errors import DataError, MachineError
from tests.data import test_worker_pool as here


class Tasks:
    def __init__(self, reason, number):
        if reason:
            raise DataError(reason)
        self.number = number

    def add(self, a, b):
        return a + b

    def refuse(self, reason, code):
        error = DataError(reason)
        error.exit_code = code
        raise error

    def read(self, path):
        return open(path).read()

    def kill(self, how):
        os.kill(os.getpid(), how)

    def end(self):
        raise EOFError

    def leave(self):
        os._exit(5)


def test_answers_come_in_order_and_an_error_is_an_answer(tmp_path, monkeypatch):
    """A folder of the user is not taken for this package."""
    (tmp_path / "nmt").mkdir()
    (tmp_path / "nmt" / "__init__.py").write_text("raise SystemExit('a folder of the user')")
    monkeypatch.chdir(tmp_path)
    with WorkerPool(2) as workers:
        workers.begin(here.Tasks, "")
        assert list(workers.each("add", ((n, 1) for n in range(30)))) == list(range(1, 31))
        with pytest.raises(DataError, match="a reason") as raised:
            workers.submit("refuse", "a reason", 7).result(60)
        assert raised.value.exit_code == 7
        with pytest.raises(MachineError, match="none: No such file or directory, in a worker process"):
            workers.submit("read", "none").result(60)
        assert workers.submit("add", "a", "b").result(60) == "ab"
        processes = [worker.process for worker in workers._workers]
    assert all(process.poll() is not None for process in processes)


def test_what_is_wrong_with_the_setup_is_said_at_the_first_task():
    with WorkerPool(2) as workers:
        workers.begin(here.Tasks, "no such data")
        with pytest.raises(DataError, match="no such data"):
            workers.submit("add", 1, 2).result(60)


@pytest.mark.parametrize(
    ("task", "how"),
    [
        (("kill", signal.SIGKILL), r"was killed by signal 9 \(perhaps by the system"),
        (("kill", signal.SIGTERM), r"was killed by signal 15\."),
        (("leave",), "ended with exit code 5"),
        (("end",), "ended with exit code 1"),
        (("add", 1, "a"), "ended with exit code 1"),  # a mistake of ours, whose traceback is on stderr
    ],
)
def test_a_worker_that_ends_is_told_with_what_to_do_and_nobody_waits_for_it(task, how):
    with WorkerPool(2) as workers:
        workers.begin(here.Tasks, "")
        for asked in [workers.submit(*task) for _ in range(5)]:
            with pytest.raises(MachineError, match=rf"a worker process {how}.*--data\.workers 1"):
                asked.result(60)


def test_a_worker_ends_when_nobody_asks_any_more():
    with WorkerPool(2) as workers:
        workers.begin(here.Tasks, "")
        workers.submit("add", 1, 1).result(60)
        for worker in workers._workers:
            worker.connection.close()
            assert worker.process.wait(60) == 0
