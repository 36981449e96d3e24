"""Waiting of threads of processes, and the rank of a process that torchrun started."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from nmt.errors import NmtError


def sleep_while_waiting() -> None:
    """Have threads of OpenMP sleep, not spin, while they wait for each other. Call it before torch is imported.

    What the environment says stays. Spinning is faster only where nothing else runs, and there by little in a search.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


ADDRESS = ("MASTER_ADDR", "MASTER_PORT")


class Place(NamedTuple):
    """A process among those that torchrun started; local_rank: among those of its machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0


def place_of(environment: Mapping[str, str] = os.environ, *, needed: tuple[str, ...] = ()) -> Place:
    """The place that the environment tells of; that of a process alone where it tells of none.

    needed: what there must be beside it where there are several. Raises NmtError for what torchrun would not leave.
    """
    if (n := environment.get("WORLD_SIZE", "1")) == "1":
        return Place()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")  # as `Place` has them
    told = {"LOCAL_RANK": "0", **environment}
    wrong = [name for name in names if not told.get(name, "").isdecimal()]
    if not wrong and not int(told["RANK"]) < int(n):
        wrong = ["RANK"]
    if wrong := [*wrong, *(name for name in needed if name not in environment)]:
        is_wrong = f"is {environment[wrong[0]]!r}" if wrong[0] in environment else "is missing"
        raise NmtError(
            f"WORLD_SIZE is {n!r} in the environment, as where torchrun starts several processes, but {wrong[0]} "
            f"{is_wrong}. Start them by torchrun, or unset WORLD_SIZE."
        )
    return Place(*(int(told[name]) for name in names))
