"""What all sweeps over faults share: what a fault is, and letting them happen, counted and told.

Which faults there are is in `sweep_faults.py` for training, in `sweep_preprocessing.py` for preparing data and in
`sweep_translation.py` for translation.
"""

import argparse
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fault_process import Ended, has_strace, last_words, nobody
from tqdm import tqdm

# Every call that gives, takes or makes sure a name or a length; Python and Rust use different ones for the same.
NAMING = ("rename", "renameat", "renameat2", "fsync", "unlink", "unlinkat", "rmdir", "ftruncate", "mkdir")


@dataclass(frozen=True)
class Fault:
    """One thing to try. kind: the class it is counted in. name: begins with the kind, and repeats it alone.

    happen: lets it happen in the lab of the sweep, and returns what then did not hold; [] is a fault survived.
    """

    kind: str
    name: str
    happen: Callable[[Any], list[str]]


def arguments(about: str, short: str) -> argparse.Namespace:
    """The flags of a sweep. about: its docstring; short: what the short form is."""
    parser = argparse.ArgumentParser(description=about.split("\n")[0])
    parser.add_argument("--short", action="store_true", help=short)
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only faults whose name begins so, like 'kill rename'"
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each N-th fault")
    parser.add_argument("--folder", type=Path, help="work here and leave what was made; else in a temporary folder")
    args = parser.parse_args()
    # A shell that starts us in the background has SIGINT ignored, and what we break would obey that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    return args


def in_memory() -> str | None:
    """Where files cost no disk: what is tested is the order of the calls, not the disk."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def calls_in(trace: Path) -> Counter[str]:
    """How often each call is in what strace wrote."""
    lines = trace.read_text(encoding="utf-8").split("\n")
    return Counter(line.split()[1].partition("(")[0] for line in lines if "(" in line)


def main_of(
    script: str,
    about: str,
    making: str,
    lab_of: Callable[[Path], Any],
    calls_of: Callable[..., Counter[str]],
    faults: Callable[[dict[bool, Counter[str]]], Iterator[Fault]],
    short: Sequence[str],
) -> int:
    """A sweep over a command that makes files where there are none, or in place of old ones. Returns the exit code.

    script: its name; about: its docstring; making: what is made before. calls_of: from a lab and `old` to how often the
    command makes each call; faults: from those to all faults; short: the names of those of the short form.
    """
    args = arguments(about, "a few faults of each class")
    if not has_strace():
        print(f"{script}: strace is missing, or may not watch other processes", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="nmt-faults-", dir=in_memory()) as temporary:
        lab = lab_of(args.folder or Path(temporary))
        lab.folder.mkdir(exist_ok=True)
        lab.folder.chmod(0o755)  # another user must get in
        print(making, file=sys.stderr)
        lab.build()
        is_short = args.short and not args.only
        counts = {
            old: Counter(dict.fromkeys((*NAMING, "write"), 40)) if is_short else calls_of(lab, old=old)
            for old in (False, True)
        }
        return sweep(lab, chosen(faults(counts), args, short), f"python tools/{script}.py")


def kills(counts: dict[bool, Counter[str]], killed_at: Callable[..., list[str]]) -> Iterator[Fault]:
    """SIGKILL at every call that names something, and at some writes. counts: of the calls, by whether it replaces."""
    for old in (False, True):
        for call in NAMING:
            for n in range(1, counts[old][call] + 1):
                name = f"kill {'old' if old else 'new'} {call} {n}"
                yield Fault("kill", name, partial(killed_at, call=call, n=n, old=old))
    for n in spread(counts[True]["write"], 20):
        yield Fault("kill", f"kill write {n}", partial(killed_at, call="write", n=n, old=True))


def chosen(faults: Iterator[Fault], args: argparse.Namespace, short: Sequence[str]) -> list[Fault]:
    """The faults that the flags ask for; ends the process where there are none. short: the names of the short form."""
    found = [fault for fault in faults if fault.name.startswith(args.only)]
    if not found:
        sys.exit(f"error: --only {args.only!r}: the name of no fault begins so")
    if args.short and not args.only:
        found = [fault for fault in found if fault.name in short]
        assert {fault.name for fault in found} == set(short), set(short) - {fault.name for fault in found}
    return found[:: args.every]


def sweep(lab: Any, faults: Sequence[Fault], again: str) -> int:
    """Let every fault happen; Ctrl-C ends it with what is known by then. Returns the exit code.

    again: the command that repeats a fault, but for `--only`.
    """
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
                tqdm.write(f"  again: {again} --only '{fault.name}'")
    print(f"{'faults':20} {'tried':>6} {'survived':>9}")
    for kind in tried:
        print(f"{kind:20} {tried[kind]:6} {survived[kind]:9}")
    print(f"{'all':20} {tried.total():6} {survived.total():9}   in {time.monotonic() - begin:.0f} s")
    if tried.total() < len(faults):
        print(f"not tried, because it was interrupted: {len(faults) - tried.total()}")
    if not nobody():
        print("not tried, for want of rights: full disks, folders that may not be written")
    return int(tried != survived or tried.total() < len(faults))


def spread(n: int, most: int) -> list[int]:
    """1 to n, or `most` of them, evenly spread and with both ends."""
    return sorted({1 + round(i * (n - 1) / max(1, most - 1)) for i in range(min(n, most))}) if n else []


def expect(ended: Ended, *codes: int, said: str = "") -> list[str]:
    """What is wrong with how a command ended, where it was to end with one of these codes and to say something."""
    wrong = []
    if ended.code not in codes:
        wrong.append(f"exit code {ended.code}, expected {' or '.join(map(str, codes))}: {last_words(ended.said)}")
    if said not in ended.said:
        wrong.append(f"{said!r} was not said: {last_words(ended.said)}")
    return wrong


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Callable[[int], None]]:
    """A disk of its own, of so many bytes, at an empty folder. Gives what makes it larger."""

    def mount(*options: str) -> None:
        subprocess.run(["mount", *options, folder], check=True)

    mount("-t", "tmpfs", "-o", f"size={size}", "nmt-faults")
    try:
        yield lambda larger: mount("-o", f"remount,size={larger}")
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
