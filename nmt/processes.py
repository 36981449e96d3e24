"""Waiting of threads, and the rank of a process that torchrun started."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from nmt.errors import NmtError


def sleep_while_waiting() -> None:
    """Let OpenMP threads sleep instead of spin while they wait for each other. Call it before importing torch.

    A value in the environment takes precedence. Spinning is faster only on an idle machine, and only slightly in a
    search.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


ADDRESS = ("MASTER_ADDR", "MASTER_PORT")


class ProcessRank(NamedTuple):
    """Rank of a process among those that torchrun started. local_rank: among those of its machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0


def process_rank(environment: Mapping[str, str] = os.environ, *, needed: tuple[str, ...] = ()) -> ProcessRank:
    """The rank that the environment describes; without WORLD_SIZE, that of a single process.

    needed: other variables that several processes must have. Raises NmtError for an environment that torchrun would not
    set.
    """
    if (world_size := environment.get("WORLD_SIZE", "1")) == "1":
        return ProcessRank()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")  # in the order of the fields of `ProcessRank`
    value_of = {"LOCAL_RANK": "0", **environment}
    wrong = [name for name in names if not value_of.get(name, "").isdecimal()]
    if not wrong and not int(value_of["RANK"]) < int(world_size):
        wrong = ["RANK"]
    if wrong := [*wrong, *(name for name in needed if name not in environment)]:
        problem = f"is {environment[wrong[0]]!r}" if wrong[0] in environment else "is missing"
        raise NmtError(
            f"WORLD_SIZE is {world_size!r} in the environment, as if torchrun had started several processes, but "
            f"{wrong[0]} {problem}. Start them by torchrun, or unset WORLD_SIZE."
        )
    return ProcessRank(*(int(value_of[name]) for name in names))
