"""Which rank a process is: what flags say goes before what torchrun says, and that before srun."""

import argparse

import pytest

from nmt.cli.preprocess import main
from nmt.cli.ranks import ranks_of
from nmt.data.meeting import Ranks
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


@pytest.mark.parametrize(
    ("flags", "message"), [((1, None), "needs --ranks"), ((None, 2), "needs --rank"), ((2, 2), "from 0 to 1")]
)
def test_ranks_that_make_no_sense_are_refused(flags, message):
    with pytest.raises(NmtError, match=message):
        ranks_of(argparse.Namespace(rank=flags[0], ranks=flags[1]), {})


def test_what_is_shown_is_shown_by_rank_0_alone(tmp_path, capsys):
    assert main([str(tmp_path), "--show", "2", "--rank", "1", "--ranks", "2"]) == 0
    assert capsys.readouterr().out == ""
