"""Break nmt-preprocess in every way we know, and check what it leaves: python tools/sweep_preprocessing.py [--short]

For each class of faults: how many were tried, how many survived, and how to repeat what failed. The exit code is 1 if
anything failed. It takes strace; disks that fill up take the right to mount, and folders that may not be written the
right to become another user: what cannot be tried is named. What must hold is in `preparing_lab.py`:

    P1 the folder is there whole, as before or as new, or not at all     P2 exit code 0 only if the new one is there
    P3 an error has a message and no traceback     P4 nothing is left beside it, but by SIGKILL, and then until the next
    P5 the same command ends at the same bytes     P6 no process is left
"""

import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial

from fault_process import nobody
from fault_sweep import NAMING, Fault, kills, main_of, spread
from preparing_faults import (
    CHANGES,
    SIGNALS,
    all_removed,
    building_removed,
    calls_of,
    failing_at,
    filled_meanwhile,
    full_disk,
    helper_killed,
    helper_starved,
    input_changed,
    killed_at,
    killed_at_random,
    read_only_before,
    read_only_meanwhile,
    signalled,
    signalled_for_real,
    signalled_while_starved,
    two_at_once,
    two_in_a_race,
    unreadable,
)
from preparing_lab import Lab

SHORT = (
    "kill old renameat2 1",
    "kill write of two 30",
    "disk fails EDQUOT write 40",
    "signal SIGTERM 1",
    "helper killed 0",
    "folder in use",
    "input changed longer",
)


def main() -> int:
    """Entry point. Returns the exit code."""
    return main_of(
        "sweep_preprocessing", __doc__, "making a corpus, and what is prepared from it", Lab, calls_of, faults, SHORT
    )


def faults(counts: dict[bool, Counter[str]]) -> Iterator[Fault]:
    """All faults. counts: of the calls, where there is nothing before and where there is."""
    yield from kills(counts, killed_at)
    for n in (1, 2, 3, 5, 10, 20, 30, 40):
        yield Fault("kill", f"kill write of two {n}", partial(killed_at, call="write", n=n, old=True, n_worker=2))
    for n in range(20):
        yield Fault("kill at random", f"kill at random {n}", partial(killed_at_random, seed=n))
    for call in (*NAMING, "write"):
        for error in ("EIO", "ENOSPC", "EDQUOT"):
            for n in spread(counts[True][call], 10):
                happen = partial(failing_at, call=call, error=error, n=n)
                yield Fault("disk fails", f"disk fails {error} {call} {n}", happen)
    for n in (1, 2, 3, 5, 8):
        happen = partial(failing_at, call="write", error="ENOSPC", n=n, n_worker=2)
        yield Fault("disk fails", f"disk fails for two ENOSPC write {n}", happen)
    for n in (1, 2, 3, 4):
        yield Fault("disk fails", f"disk fails EIO read {n}", partial(unreadable, n=n))
    for name in SIGNALS:
        for n in range(8):
            yield Fault("signal", f"signal {name} {n}", partial(signalled, name=name, seed=n))
        yield Fault("signal", f"signal {name} to all", partial(signalled_for_real, name=name))
    for n in range(6):
        yield Fault("helper", f"helper killed {n}", partial(helper_killed, seed=n))
        yield Fault("helper", f"helper starved {n}", partial(helper_starved, seed=n))
    yield Fault("helper", "helper starved at a signal", signalled_while_starved)
    yield Fault("folder", "folder in use", two_at_once)
    yield Fault("folder", "folder in use replaced", partial(two_at_once, old=True))
    for n in range(5):
        yield Fault("folder", f"folder raced for {n}", partial(two_in_a_race, seed=n))
    yield Fault("folder", "folder removed", building_removed)
    yield Fault("folder", "folder above removed", all_removed)
    yield Fault("folder", "folder filled by others", filled_meanwhile)
    for how in CHANGES:
        yield Fault("input changed", f"input changed {how}", partial(input_changed, how=how))
    if nobody():
        yield Fault("folder", "folder read-only before", read_only_before)
        yield Fault("folder", "folder read-only meanwhile", read_only_meanwhile)
        for share in (0.02, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97):
            for old in (False, True):
                name = f"disk full at {share}{' old' * old}"
                yield Fault("disk full", name, partial(full_disk, share=share, old=old))


if __name__ == "__main__":
    sys.exit(main())
