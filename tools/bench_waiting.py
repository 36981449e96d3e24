"""How fast training is beside other work, by how its threads wait for each other: nmt-train --check, time and again.

    python tools/bench_waiting.py RECIPE [--beside 0 1 2] [--rounds 3] [--OPTION VALUE ...]

RECIPE is prepared already; what follows goes to nmt-train as it is. Three ways take turns: as the command does it,
awake throughout (GOMP_SPINCOUNT as OpenMP has it), and asleep throughout (OMP_WAIT_POLICY=passive). Beside them so many
processes are always busy. Prints target tokens/s, medians, and how much faster the first way is than either.
"""

import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

from nmt.threads.waiting import SAY_HOW

WAYS: Mapping[str, Mapping[str, str]] = {
    "as it is": {},
    "awake": {"GOMP_SPINCOUNT": "300000"},
    "asleep": {"OMP_WAIT_POLICY": "passive"},
}
_SPEED = re.compile(r"^speed +([\d,]+) target tokens/s$", re.MULTILINE)


@contextlib.contextmanager
def busy(n: int) -> Iterator[None]:
    """Meanwhile, n processes take all they get."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def speed(recipe: str, options: Sequence[str], way: str) -> float:
    """Target tokens a second that --check measures."""
    usual = {name: value for name, value in os.environ.items() if name not in SAY_HOW}
    command = [sys.executable, "-m", "nmt.cli.train", recipe, "--check", *options]
    done = subprocess.run(command, env={**usual, **WAYS[way]}, stdout=subprocess.PIPE, text=True, check=False)
    found = _SPEED.search(done.stdout)
    if found is None:
        sys.exit(f"{' '.join(command)}: ended with {done.returncode} and no speed")
    return float(found[1].replace(",", ""))


def row(beside: int, found: Mapping[str, Sequence[float]]) -> str:
    """What was found beside so many busy processes, as a line of the table."""
    middle = {way: statistics.median(speeds) for way, speeds in found.items()}
    mine, others = middle["as it is"], [way for way in WAYS if way != "as it is"]
    numbers = [f"{middle[way]:,.0f}" for way in WAYS] + [f"{mine / middle[way]:.2f}" for way in others]
    return f"| {beside} | {' | '.join(numbers)} |"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", metavar="RECIPE")
    parser.add_argument("--beside", type=int, nargs="+", default=[0, 1, 2], metavar="N", help="busy processes")
    parser.add_argument("--rounds", type=int, default=3)
    args, options = parser.parse_known_args()
    print("| busy processes | as it is | awake | asleep | to awake | to asleep |\n|---|---|---|---|---|---|")
    for beside in args.beside:
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        with busy(beside):
            for _ in range(args.rounds):
                for way in WAYS:
                    found[way].append(speed(args.recipe, options, way))
        print(row(beside, found), flush=True)


if __name__ == "__main__":
    main()
