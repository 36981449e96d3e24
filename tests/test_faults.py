"""Every command is broken on purpose, in a few of the ways of the whole sweeps, and nothing is lost."""

import re
import subprocess
import sys
from pathlib import Path

import fault_order
import pytest
from fault_process import has_strace

TOOLS = Path(__file__).parents[1] / "tools"


# In one process: what the commands import takes as long as many of the faults.
SWEEPS = """
import sys, sweep_faults, sweep_preprocessing, sweep_translation
sys.argv[1:] = ["--short"]
sys.exit(sum(sweep.main() for sweep in (sweep_faults, sweep_preprocessing, sweep_translation)))
"""


@pytest.mark.skipif(not has_strace(), reason="needs strace, and the right to watch other processes")
def test_a_few_faults_of_each_kind_are_survived():
    command = [sys.executable, "-c", SWEEPS]
    done = subprocess.run(command, cwd=TOOLS, capture_output=True, encoding="utf-8", timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall("^all  ", done.stdout, re.MULTILINE)) == 3, done.stdout


RUN = Path("/r")
COMMIT = [
    ("write", "/r/.c.new.tmp/a", ""),
    ("sync", "/r/.c.new.tmp/a", ""),
    ("sync", "/r/.c.new.tmp", ""),
    ("rename", "/r/.c.new.tmp", "/r/c"),
    ("sync", "/r", ""),
    ("delete", "/r/b", ""),
]


def test_the_right_order_of_calls_is_not_complained_about():
    assert fault_order.complaints(6 * COMMIT, RUN) == []


@pytest.mark.parametrize("left_out", [0, 1, 2, 4])
def test_every_call_that_is_left_out_of_a_commit_is_missed(left_out):
    assert fault_order.complaints(6 * (COMMIT[:left_out] + COMMIT[left_out + 1 :]), RUN)


@pytest.mark.parametrize("first", range(5))
def test_two_calls_in_the_wrong_order_are_seen(first):
    swapped = [*COMMIT[:first], COMMIT[first + 1], COMMIT[first], *COMMIT[first + 2 :]]
    assert fault_order.complaints(6 * swapped, RUN)
