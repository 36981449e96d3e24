"""Several workers write what one writes, and one that dies is named."""

import argparse
import json
import os
import shutil
import signal
import sys

import pytest

from nmt.cli.translating import workers as translate_workers
from nmt.cli.translating.workers import WorkerPool, n_worker
from nmt.errors import NmtError
from nmt.processes import Helper

LINES = [f"the {'old ' * (n % 5)}ship {'in May' * (n % 3)}{n}" for n in range(16)]
SOURCE = "".join(line + "\n" for line in LINES).encode()


@pytest.mark.parametrize(
    ("wanted", "n_thread", "n_core", "device", "n_line", "found"),
    [
        (3, 1, 2, "cpu", None, 3),
        (1, 1, 8, "cuda", 10_000, 1),
        ("auto", 1, 8, "cpu", 100_000, 8),
        ("auto", 2, 8, "cpu", 100_000, 4),
        ("auto", 16, 8, "cpu", 100_000, 1),
        ("auto", 1, 8, "cpu", 700, 3),
        ("auto", 1, 8, "cpu", 100, 1),
        ("auto", 1, 8, "cpu", None, 1),  # a stream
        ("auto", 1, 8, "cuda", 100_000, 1),
    ],
)
def test_so_many_workers(wanted, n_thread, n_core, device, n_line, found):
    assert n_worker(wanted, n_thread, n_core, device, n_line) == found


def test_a_gpu_has_one_worker():
    with pytest.raises(NmtError, match="--device cpu"):
        n_worker(2, 1, 8, "cuda", None)


def args_of(folder):
    known = {"run": [folder], "checkpoint": None, "device": "cpu", "threads": 1}
    known |= {"score": None, "format": "text", "mbr": None, "retry_suspect": False, "with_attention": False}
    return argparse.Namespace(
        **known | {"alignments": None, "layer": "last", "head": "mean", "override:decode.max_tokens": "100"}
    )


@pytest.fixture
def only_helpers(monkeypatch):
    """This process lends no hand, so that what the helpers do is seen."""

    class Idle:
        def __init__(self, tasks):
            self.put, self.get = tasks.put, tasks.get

        def get_nowait(self):
            raise translate_workers.queue.Empty

    real = WorkerPool.__init__

    def init(pool, model, args, n_worker, loaded):
        real(pool, model, args, n_worker, loaded)
        if n_worker > 1:
            pool._tasks = Idle(pool._tasks)

    monkeypatch.setattr(WorkerPool, "__init__", init)


def test_two_workers_write_the_bytes_of_one(translate, tmp_path, only_helpers):
    """Whatever is asked, and told, of each line."""
    (tmp_path / "avoid").write_bytes(b"ship\n")
    columns = (line.encode() + b"\tthe" * (n % 3 == 0) + b"\n" for n, line in enumerate(LINES))
    (tmp_path / "in").write_bytes(b"".join(columns))
    flags = ("-i", tmp_path / "in", "--input-format", "tsv", "--avoid", tmp_path / "avoid", "--format", "jsonl")
    flags += ("--with-attention", "--retry-suspect")
    how = ("--decode.window", 6, "--decode.max_tokens", 150, "--decode.max_src_len", 16)
    wanted = translate(*flags, *how)
    assert translate(*flags, *how, "--workers", 2) == wanted
    assert json.loads(wanted[0][0])["output"].startswith("the")


def test_a_worker_that_dies_is_named_and_what_was_answered_is_kept(translate, tmp_path, only_helpers, monkeypatch):
    (tmp_path / "in").write_bytes(SOURCE)
    real, pids = Helper.ask, []

    def ask(helper, task):
        if len(pids) == 4:
            os.kill(helper.process.pid, signal.SIGKILL)
        pids.append(helper.process.pid)
        return real(helper, task)

    monkeypatch.setattr(Helper, "ask", ask)
    flags = ("-i", tmp_path / "in", "--decode.window", 3)
    _, err = translate(*flags, "-o", tmp_path / "out", "--workers", 2, code=1)
    assert f"worker 2 (process {pids[0]}) was killed (signal 9" in err and "Traceback" not in err
    assert "out.journal keeps the answers to " in err
    assert not (tmp_path / "out").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_a_worker_that_never_comes_is_named_and_nobody_waits_for_it(translate, monkeypatch, only_helpers):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    _, err = translate("--workers", 2, code=1)
    assert "worker 2 (process" in err and "ended with exit code 1" in err


def test_a_worker_answers_with_the_model_of_the_others_or_not_at_all(folder):
    with pytest.raises(NmtError, match="changed while it was loaded"):
        translate_workers._helper({"args": vars(args_of(folder)), "loaded": ["another model"]})
