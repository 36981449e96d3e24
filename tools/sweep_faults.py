"""Break training in every way we know, and check that nothing is lost: python tools/sweep_faults.py [--short]

For each class of faults: how many were tried, how many survived, and how to repeat what failed. The exit code is 1 if
anything failed. It takes strace; disks that fill up take the right to mount, and folders that may not be written the
right to become another user: what cannot be tried is named. What must hold is in `fault_lab.py`:

    O1 committed checkpoints are whole     O2 none that the log acknowledges is lost
    O3 the same command ends at the same bytes     O4 nothing half-written is left     O5 no other file is touched
    O6 exit code 0 only if it is finished     O7 no process is left     O8 history and log agree
    O9 nmt-translate answers as before
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import fault_damage
import fault_kinds
import fault_order
from fault_kinds import calls_of
from fault_lab import Lab
from fault_process import has_strace
from fault_sweep import NAMING, Fault, arguments, chosen, in_memory, sweep

SHORT = (
    "order of calls",
    "kill rename 9",
    "kill fsync 18",
    "kill unlinkat 3",
    "kill resumed caught-up renameat2 1",
    "disk fails EIO fsync 10",
    "disk fails ENOSPC write 14",
    "signal SIGTERM late",
    "folder in use",
    "disk full but for 0.3",
    "damage optimizer.safetensors bit 0",
    "damage manifest leaves out the average",
)


def main() -> int:
    """Entry point. Returns the exit code."""
    args = arguments(__doc__, "a few faults of each class, on a run of 20 updates")
    if not has_strace():
        print("sweep_faults: strace is missing, or may not watch other processes", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="nmt-faults-", dir=in_memory()) as temporary:
        lab = Lab(args.folder or Path(temporary), 20 if args.short else 60)
        lab.folder.mkdir(exist_ok=True)
        lab.folder.chmod(0o755)  # another user must get in
        print("making a corpus, and the run that nothing goes wrong in", file=sys.stderr)
        lab.build()
        again = f"python tools/sweep_faults.py{' --short' * args.short}"
        return sweep(lab, chosen(_faults(lab), args, SHORT), again)


def _faults(lab: Lab) -> Iterator[Fault]:
    """The order of the system calls is looked at first: all else rests on it."""
    yield from fault_order.faults()
    yield from fault_kinds.faults(Counter(dict.fromkeys((*NAMING, "write"), 40)) if lab.is_short else calls_of(lab))
    yield from fault_damage.faults()


if __name__ == "__main__":
    sys.exit(main())
