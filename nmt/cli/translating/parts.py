"""Several processes that share one input: who answers which windows, and who joins the parts at the end.

All they share is a folder. Each rank writes a journal of its own; whoever ends and finds all of them finished joins
them, under a lock that the system frees when its holder dies. So there is no rank that the others depend on.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from nmt.cli.translating.flags import ARRAY
from nmt.cli.translating.journal import Known, OtherInput, Replay, known, open_locked
from nmt.errors import DataError, NmtError
from nmt.torchrun import place_of

SHARE = "share"  # the mark of a rank that has answered all its windows


class Share(NamedTuple):
    """The rank of this process, from 0, and how many there are."""

    rank: int = 0
    n_rank: int = 1

    def has(self, number: int) -> bool:
        """Return whether a window, by its number from 0, is for this rank. In turns, as lengths come in stretches."""
        return number % self.n_rank == self.rank

    def n_line(self, n_line: int, window: int) -> int:
        """Count those of n_line lines that are for this rank."""
        return sum(min(window, n_line - start) for start in range(self.rank * window, n_line, self.n_rank * window))

    def journal(self, output: Path, rank: int | None = None) -> Path:
        """The journal of this rank, or another one, beside the output."""
        suffix = "" if self.n_rank == 1 else f"-{self.rank if rank is None else rank}-of-{self.n_rank}"
        return output.with_name(f"{output.name}.journal{suffix}")

    def journals(self, output: Path) -> list[Path]:
        """The journals of all ranks, by rank."""
        return [self.journal(output, rank) for rank in range(self.n_rank)]


def share_of(args: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Share:
    """The share that --rank and --ranks name, or else torchrun, which also says which GPU is ours.

    Raises NmtError if they do not fit together, or there are several ranks and no files to share.
    """
    told = "torchrun" if args.ranks is None else "--ranks"
    if args.ranks == ARRAY:
        share = _share_of_array(args.rank, environment)
    elif args.ranks is not None:
        if args.rank is None and args.ranks > 1:
            raise NmtError(f"--ranks {args.ranks} needs --rank, a number from 0 to {args.ranks - 1}.")
        if (args.rank or 0) >= args.ranks:
            raise NmtError(f"--rank {args.rank}: with --ranks {args.ranks} ranks go from 0 to {args.ranks - 1}.")
        share = Share(args.rank or 0, args.ranks)
    elif args.rank is not None:
        raise NmtError("--rank needs --ranks, the number of all.")
    else:
        share = Share(*place_of(environment)[:2])
    if share.n_rank > 1 and args.ranks is None and args.device in ("auto", "cuda"):
        args.device = _own_gpu(args.device, int(environment.get("LOCAL_RANK", "0")))
    if share.n_rank > 1 and not (args.input and args.output):
        raise NmtError(
            f"rank {share.rank} of {share.n_rank}, as {told} says: ranks share a file, so name it with --input and "
            "--output. To translate all of it here: --ranks 1."
        )
    return share


def _share_of_array(rank: int | None, environment: Mapping[str, str]) -> Share:
    """The share of a job of Slurm's array, whose jobs have numbers at equal distances."""
    if rank is not None:
        raise NmtError(f"--rank {rank}: with --ranks {ARRAY} Slurm says which of the jobs this is.")
    names = [f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "MIN", "MAX", "STEP", "COUNT")]
    if missing := [name for name in names if not environment.get(name, "").isdecimal()]:
        raise NmtError(
            f"--ranks {ARRAY}: this is no job of Slurm's sbatch --array, which would set {missing[0]}. "
            "Say which rank this is: --rank 0 --ranks 4."
        )
    number, first, last, step, n_job = (int(environment[name]) for name in names)
    if last - first != (n_job - 1) * step or (number - first) % step:
        raise NmtError(
            f"--ranks {ARRAY}: the {n_job} jobs from {first} to {last} are not at equal distances of {step}, so "
            f"which of them is {number} cannot be told. Number them from 0 on: sbatch --array=0-{n_job - 1}."
        )
    return Share((number - first) // step, n_job)


def _own_gpu(wanted: str, local_rank: int) -> str:
    import torch

    return f"cuda:{local_rank}" if wanted == "cuda" or torch.cuda.is_available() else wanted


class _Parts:
    def __init__(self, replays: list[Replay]) -> None:
        self._replays, self._number = replays, 0

    def take(self, digest: str) -> list[str] | None:
        replay = self._replays[self._number % len(self._replays)]
        self._number += 1
        try:
            answers = replay.take(digest)
        except OtherInput:
            answers = None
        if answers is None and digest:
            raise DataError(
                f"{replay.path} answers another input than the one that is there now. Delete it, and let its rank "
                "begin anew."
            )
        return answers

    def add(self, digest: str, n_line: int, answers: list[str]) -> None:
        raise AssertionError("everything is there")

    def close(self) -> None:
        for replay in self._replays:
            replay.close()


def together(paths: list[Path], found: list[Known]) -> _Parts:
    """The answers of all ranks, in the order of the windows. Taking them raises DataError if the input is another."""
    return _Parts([Replay(path, one.end) for path, one in zip(paths, found, strict=True)])


def finished_parts(paths: list[Path], fit: dict[str, Any], say: Callable[[str], object]) -> list[Known] | None:
    """Return what the journals of all ranks hold if all have finished; else None, and it is said who has not.

    Raises NmtError if one of them was made with another model or other options.
    """
    found = [known(path) for path in paths]
    missing = [rank for rank, one in enumerate(found) if one is None or SHARE not in one.marks]
    whole = [one for one in found if one is not None]
    for path, one in zip(paths, found, strict=True):
        if one is not None and SHARE in one.marks and one.fit != fit:
            raise NmtError(f"{path} was made with another model or other options. Delete it, and start its rank anew.")
    if missing:
        who = ", ".join(map(str, missing[:9])) + (", …" if len(missing) > 9 else "")
        say(f"this share is done; not yet that of rank {who} of {len(paths)}. The last one joins them")
        return None
    return whole


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """One process at a time is here. Others wait, and take over if it dies."""
    while (file := open_locked(path)) is None:
        time.sleep(0.1)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # whoever waits for it opens the next one
        file.close()
