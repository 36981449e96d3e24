"""nmt-translate is broken on purpose, in a few of the ways of the whole sweep, and nothing is lost."""

import subprocess
import sys
from pathlib import Path

import pytest
from fault_process import has_strace

SWEEP = Path(__file__).parents[1] / "tools" / "sweep_faults.py"


@pytest.mark.skipif(not has_strace(), reason="needs strace, and the right to watch other processes")
def test_a_few_faults_of_each_kind_are_survived():
    command = [sys.executable, str(SWEEP), "translate", "--short"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=1500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("nmt-translate")
