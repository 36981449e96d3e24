"""Break training in every way we know, and check that nothing is lost: python tools/sweep_faults.py [--short]

For each class of faults: how many were tried, how many survived, and how to repeat what failed. The exit code is 1 if
anything failed. It takes strace; disks that fill up take the right to mount, and folders that may not be written the
right to become another user: what cannot be tried is named. What must hold is in `fault_lab.py`:

    O1 committed checkpoints are whole     O2 none that the log acknowledges is lost
    O3 the same command ends at the same bytes     O4 nothing half-written is left     O5 no other file is touched
    O6 exit code 0 only if it is finished     O7 no process is left     O8 history and log agree
    O9 nmt-translate answers as before
"""

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import fault_damage
import fault_kinds
import fault_order
from fault_kinds import NAMING, Fault, calls_of
from fault_lab import Lab, has_strace, nobody
from tqdm import tqdm

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
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true", help="a few faults of each class, on a run of 20 updates")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only faults whose name begins so, like 'kill rename'"
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each N-th fault")
    parser.add_argument("--folder", type=Path, help="work here and leave what was made; else in a temporary folder")
    args = parser.parse_args()
    # A shell that starts us in the background has SIGINT ignored, and training would obey that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if not has_strace():
        print("sweep_faults: strace is missing, or may not watch other processes", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="nmt-faults-", dir=_memory()) as temporary:
        lab = Lab(args.folder or Path(temporary), 20 if args.short else 60)
        lab.folder.mkdir(exist_ok=True)
        lab.folder.chmod(0o755)  # another user must get in
        print("making a corpus, and the run that nothing goes wrong in", file=sys.stderr)
        lab.build()
        faults = [fault for fault in _faults(lab) if fault.name.startswith(args.only)]
        if args.short and not args.only:
            faults = [fault for fault in faults if fault.name in SHORT]
        return _sweep(lab, faults[:: args.every])


def _memory() -> str | None:
    """Where files cost no disk: what is tested is the order of the calls, not the disk."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _faults(lab: Lab) -> Iterator[Fault]:
    """The order of the system calls is looked at first: all else rests on it."""
    yield from fault_order.faults()
    yield from fault_kinds.faults(Counter(dict.fromkeys((*NAMING, "write"), 40)) if lab.is_short else calls_of(lab))
    yield from fault_damage.faults()


def _sweep(lab: Lab, faults: list[Fault]) -> int:
    """Let every fault happen; Ctrl-C ends it with what is known by then. Returns the exit code."""
    tried, survived = Counter[str](), Counter[str]()
    begin = time.monotonic()
    with tqdm(faults, unit="fault", dynamic_ncols=True, file=sys.stderr) as bar, contextlib.suppress(KeyboardInterrupt):
        for fault in bar:
            bar.set_postfix_str(fault.name)
            wrong = fault.happen(lab)
            tried[fault.kind] += 1
            survived[fault.kind] += not wrong
            for complaint in wrong:
                tqdm.write(f"FAILED {fault.name}: {complaint}")
            if wrong:
                tqdm.write(f"  again: python tools/sweep_faults.py {'--short ' * lab.is_short}--only '{fault.name}'")
    print(f"{'faults':20} {'tried':>6} {'survived':>9}")
    for kind in tried:
        print(f"{kind:20} {tried[kind]:6} {survived[kind]:9}")
    print(f"{'all':20} {tried.total():6} {survived.total():9}   in {time.monotonic() - begin:.0f} s")
    if tried.total() < len(faults):
        print(f"not tried, because it was interrupted: {len(faults) - tried.total()}")
    if not nobody():
        print("not tried, for want of rights: full disks, folders that may not be written")
    return int(tried != survived or tried.total() < len(faults))


if __name__ == "__main__":
    sys.exit(main())
