"""Break nmt-translate in every way we know, and check what it leaves: python tools/sweep_translation.py [--short]

For each class of faults: how many were tried, how many survived, and how to repeat what failed. The exit code is 1 if
anything failed. It takes strace; disks that fill up take the right to mount, and folders that may not be written the
right to become another user: what cannot be tried is named. What must hold is in `translating_lab.py`:

    T1 output, alignments and scores are there whole, as before or as new, or not at all; a stream ends between lines
    T2 exit code 0 only if all is there                          T3 an error has a message and no traceback
    T4 nothing is left beside but the journal, until the end     T5 the same command ends at the same bytes
    T6 what the journal has the answers to is not asked again    T7 no process is left
"""

import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial

from fault_process import nobody
from fault_sweep import NAMING, Fault, kills, main_of, spread
from translating_faults import (
    CHANGES,
    DAMAGE,
    SIGNALS,
    calls_of,
    failing_at,
    folder_moved,
    full_disk,
    helper_lost,
    helper_starved,
    input_changed,
    journal_damaged,
    journal_removed,
    killed_at,
    killed_at_random,
    output_appears,
    read_only_before,
    signalled,
    stream_ends_early,
    stream_killed,
    stream_signalled,
    stream_to,
    two_at_once,
    unreadable,
)
from translating_lab import Lab

SHORT = (
    "kill new fsync 2",
    "kill write 19",
    "disk fails ENOSPC write 10",
    "signal SIGINT 1",
    "journal cut",
    "file in use",
    "input changed other words",
    "stream signal SIGTERM 1",
)


def main() -> int:
    """Entry point. Returns the exit code."""
    return main_of(
        "sweep_translation", __doc__, "training a model, and translating with it", Lab, calls_of, faults, SHORT
    )


def faults(counts: dict[bool, Counter[str]]) -> Iterator[Fault]:
    """All faults. counts: of the calls, where there is nothing before and where there is."""
    yield from kills(counts, killed_at)
    for n in range(20):
        yield Fault("kill at random", f"kill at random {n}", partial(killed_at_random, seed=n))
    for call in (*NAMING, "write"):
        for error in ("EIO", "ENOSPC", "EDQUOT"):
            for n in range(1, counts[True][call] + 1) if call == "write" else spread(counts[True][call], 10):
                yield Fault(
                    "disk fails", f"disk fails {error} {call} {n}", partial(failing_at, call=call, error=error, n=n)
                )
    for n in (1, 2, 3, 4):
        yield Fault("disk fails", f"disk fails EIO read {n}", partial(unreadable, n=n))
    for name in SIGNALS:
        for n in range(8):
            yield Fault("signal", f"signal {name} {n}", partial(signalled, name=name, seed=n))
    for n in range(4):
        yield Fault("helper", f"helper lost {n}", partial(helper_lost, seed=n))
        yield Fault("helper", f"helper starved {n}", partial(helper_starved, seed=n))
    for how in DAMAGE:
        yield Fault("journal", f"journal {how}", partial(journal_damaged, how=how))
    yield Fault("journal", "journal removed", journal_removed)
    yield Fault("file", "file in use", two_at_once)
    yield Fault("file", "file in a folder moved away", folder_moved)
    yield Fault("file", "file of somebody else", output_appears)
    for how in CHANGES:
        yield Fault("input changed", f"input changed {how}", partial(input_changed, how=how))
    for n in range(6):
        yield Fault("stream", f"stream killed {n}", partial(stream_killed, seed=n))
        for name in SIGNALS:
            yield Fault("stream", f"stream signal {name} {n}", partial(stream_signalled, name=name, seed=n))
    yield Fault("stream", "stream to a closed pipe", partial(stream_to, name="a closed pipe", code=141, said=""))
    full = partial(stream_to, name="/dev/full", code=1, said="No space left")
    yield Fault("stream", "stream to a full disk", full)
    for share in (0.0, 0.3, 0.6, 1.0):
        yield Fault("stream", f"stream ends at {share}", partial(stream_ends_early, share=share))
    if nobody():
        yield Fault("file", "file in a read-only folder", read_only_before)
        for share in (0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95):
            for old in (False, True):
                name = f"disk full at {share}{' old' * old}"
                yield Fault("disk full", name, partial(full_disk, share=share, old=old))


if __name__ == "__main__":
    sys.exit(main())
