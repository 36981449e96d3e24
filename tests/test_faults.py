"""Fault injection into nmt-translate: a short version of tools/sweep_faults.py."""

import subprocess
import sys
from pathlib import Path

import pytest
from fault_process import has_strace

SWEEP = Path(__file__).parents[1] / "tools" / "sweep_faults.py"


@pytest.mark.skipif(not has_strace(), reason="needs strace, and the right to watch other processes")
def test_nmt_translate_survives_a_few_faults_of_each_kind():
    command = [sys.executable, str(SWEEP), "translate", "--short"]
    result = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=1500, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("nmt-translate")
