"""Which rank a process is: what flags say goes before what torchrun says, and that before srun."""

import argparse
import os
import subprocess
import sys

import pytest

from nmt.cli.preprocess import main as preprocess
from nmt.cli.ranks import ranks_of
from nmt.cli.translate import main as translate
from nmt.data.sharing.meeting import Ranks
from nmt.errors import NmtError

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
SRUN = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3", "SLURM_NTASKS": "3"}
# Runs once, whatever it says of its tasks; and one job of many that may have nothing to do with one another.
BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "3"}
ARRAY = {**BATCH, "SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_COUNT": "4"}


@pytest.mark.parametrize(
    ("flags", "environment", "found"),
    [
        ((None, None), {}, Ranks()),
        ((None, None), TORCHRUN, Ranks(1, 4, 2)),
        ((None, None), SRUN, Ranks(2, 3)),
        ((None, None), BATCH, Ranks()),
        ((None, None), ARRAY, Ranks()),
        ((1, 4), ARRAY, Ranks(1, 4)),
        ((None, None), {**SRUN, **TORCHRUN}, Ranks(1, 4, 2)),
        ((None, None), {**SRUN, "RANK": "0", "WORLD_SIZE": "1"}, Ranks()),
        ((0, 2), {**SRUN, **TORCHRUN}, Ranks(0, 2)),
        ((None, 1), SRUN, Ranks()),
    ],
)
def test_the_rank_is_given_or_known(flags, environment, found):
    args = argparse.Namespace(rank=flags[0], ranks=flags[1])
    assert ranks_of(args, environment, srun=True)[0] == found


def test_tasks_of_slurm_are_ranks_only_where_that_is_meant():
    assert ranks_of(argparse.Namespace(rank=None, ranks=None), SRUN)[0] == Ranks()


def array(number, first, last, step, n_job):
    names = ("ID", "MIN", "MAX", "STEP", "COUNT")
    numbers = zip(names, (number, first, last, step, n_job), strict=True)
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in numbers}


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ((0, 0, 3, 1, 4), Ranks(0, 4)),
        ((4, 1, 4, 1, 4), Ranks(3, 4)),
        ((15, 5, 25, 5, 5), Ranks(2, 5)),
        ((7, 7, 7, 1, 1), Ranks()),
    ],
)
def test_a_job_of_an_array_is_a_rank_where_that_is_said(numbers, found):
    args = argparse.Namespace(rank=None, ranks="array")
    assert ranks_of(args, {**SRUN, **array(*numbers)}) == (found, "--ranks array")


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        ((1, None), {}, "needs --ranks"),
        ((None, 2), {}, "needs --rank"),
        ((2, 2), {}, "from 0 to 1"),
        ((None, "array"), BATCH, "set SLURM_ARRAY_TASK_ID"),
        ((1, "array"), array(1, 0, 3, 1, 4), "--rank 1: .* Slurm says"),
        ((None, "array"), array(7, 1, 7, 1, 3), "not at equal distances.*--array=0-2"),
    ],
)
def test_ranks_that_make_no_sense_are_refused(flags, environment, message):
    with pytest.raises(NmtError, match=message):
        ranks_of(argparse.Namespace(rank=flags[0], ranks=flags[1]), environment)


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "²"])
@pytest.mark.parametrize("command", [preprocess, translate])
def test_a_number_of_ranks_that_is_none_is_refused(command, text, capsys):
    assert command(["x", "--rank", "0", f"--ranks={text}"]) == 2
    assert "is not 1, 2, ... and not array" in capsys.readouterr().err


def test_the_jobs_of_an_array_prepare_what_one_process_does(tmp_path):
    for side in ("src", "trg"):
        (tmp_path / side).write_text("".join(f"the {side} line {n} of some\n" for n in range(300)), encoding="utf-8")
    command = [sys.executable, "-m", "nmt.cli.preprocess", "--train", "src", "trg", "--valid", "src", "trg"]
    command += ["--langs", "de", "en", "--subwords.vocab_size=300", "--data.drop_duplicates=false", "--accept-alarms"]
    jobs = [
        subprocess.Popen(
            [*command, "--out", "shared", "--ranks", "array"], cwd=tmp_path, env=os.environ | array(*numbers)
        )
        for numbers in ((1, 1, 3, 2, 2), (3, 1, 3, 2, 2))
    ]
    assert [job.wait(120) for job in jobs] == [0, 0]
    assert subprocess.run([*command, "--out", "alone"], cwd=tmp_path, check=False).returncode == 0
    for name in ("train.arrow", "subwords.json"):
        assert (tmp_path / "shared" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


def test_what_is_shown_is_shown_by_rank_0_alone(tmp_path, capsys):
    assert preprocess([str(tmp_path), "--show", "2", "--rank", "1", "--ranks", "2"]) == 0
    assert capsys.readouterr().out == ""
