"""Which rank this process is, and of how many: as flags say it, or whatever started several of them."""

import argparse
import os
from collections.abc import Mapping

from nmt.cli.rank_flag import ARRAY
from nmt.data.sharing.meeting import Ranks
from nmt.errors import NmtError
from nmt.torchrun import place_of

TORCHRUN, SRUN, FLAGS = "torchrun", "srun", "--ranks"


def ranks_of(
    args: argparse.Namespace, environment: Mapping[str, str] = os.environ, *, srun: bool = False
) -> tuple[Ranks, str]:
    """What --rank and --ranks say, or else torchrun, or else srun; and which of these it was.

    srun: whether several tasks of one step of Slurm are ranks of one command. A job of an array is one only where
    --ranks array says so: arrays are mostly of jobs that have nothing to do with one another. Raises NmtError for flags
    that do not fit together, and for --ranks array where there is none.
    """
    if args.ranks == ARRAY:
        return _of_array(args.rank, environment), f"{FLAGS} {ARRAY}"
    if args.ranks is not None:
        if args.rank is None and args.ranks > 1:
            raise NmtError(f"--ranks {args.ranks} needs --rank, a number from 0 to {args.ranks - 1}.")
        if (args.rank or 0) >= args.ranks:
            raise NmtError(f"--rank {args.rank}: with --ranks {args.ranks} ranks go from 0 to {args.ranks - 1}.")
        return Ranks(args.rank or 0, args.ranks), FLAGS
    if args.rank is not None:
        raise NmtError("--rank needs --ranks, the number of all.")
    if "WORLD_SIZE" in environment:
        rank, n_rank, _, n_here = place_of(environment)
        return (Ranks(rank, n_rank, n_here) if n_rank > 1 else Ranks()), TORCHRUN
    # Of a step, which srun makes: what SLURM_NTASKS says is true of a batch script, too, which runs once.
    if srun and (n_rank := int(environment.get("SLURM_STEP_NUM_TASKS", "1"))) > 1:
        return Ranks(int(environment["SLURM_PROCID"]), n_rank), SRUN
    return Ranks(), TORCHRUN


def _of_array(rank: int | None, environment: Mapping[str, str]) -> Ranks:
    """The rank of a job of Slurm's array, whose jobs have numbers at equal distances."""
    if rank is not None:
        raise NmtError(f"--rank {rank}: with {FLAGS} {ARRAY} Slurm says which of the jobs this is.")
    names = [f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "MIN", "MAX", "STEP", "COUNT")]
    if missing := [name for name in names if not environment.get(name, "").isdecimal()]:
        raise NmtError(
            f"{FLAGS} {ARRAY}: this is no job of Slurm's sbatch --array, which would set {missing[0]}. "
            f"Say which rank this is: --rank 0 {FLAGS} 4."
        )
    number, first, last, step, n_job = (int(environment[name]) for name in names)
    if last - first != (n_job - 1) * step or (number - first) % step:
        raise NmtError(
            f"{FLAGS} {ARRAY}: the {n_job} jobs from {first} to {last} are not at equal distances of {step}, so "
            f"which of them is {number} cannot be told. Number them from 0 on: sbatch --array=0-{n_job - 1}."
        )
    return Ranks((number - first) // step, n_job)
