"""Measure the time to the first output of nmt-translate for one line, of its --help, and of `import torch`.

    python tools/bench_start.py RUN [--line TEXT] [--rounds 9] [--limit 2.5]

They take turns, each in a new process. Prints seconds to the first byte of output (median and minimum) and to the end
of the process, the ratio to `import torch`, and the share of the limit that the first translation takes.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

# The entry point of the installed command, with this Python.
COMMAND = "import sys; from nmt.cli.begin import translate; sys.exit(translate())"
TRANSLATION, HELP, TORCH = "nmt-translate, a line", "nmt-translate --help", "import torch"


class Timing(NamedTuple):
    """Seconds from the start of a process to the first byte of its output, and to its end."""

    first: float
    end: float


def time_process(argv: Sequence[str], stdin: str) -> Timing:
    """Run a process with a text on stdin. Exits if it fails or prints nothing."""
    begin = time.perf_counter()
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(stdin.encode("utf-8"))
        process.stdin.close()
        first_byte = process.stdout.read(1)
        first = time.perf_counter() - begin
        process.stdout.read()
        errors = process.stderr.read().decode("utf-8", "replace")
        code = process.wait()
    if code or not first_byte:
        sys.exit(f"bench_start: error: a process ended with code {code}: {errors.strip() or 'it printed nothing'}")
    return Timing(first, time.perf_counter() - begin)


def table(timings: Mapping[str, Sequence[Timing]], limit: float) -> Iterator[str]:
    medians = {name: Timing(*map(statistics.median, zip(*turns, strict=True))) for name, turns in timings.items()}
    yield f"{'seconds':24}{'first output':>14}{'least':>8}{'end':>8}{'to torch':>10}"
    for name, turns in timings.items():
        least, ratio = min(timing.first for timing in turns), medians[name].end / medians[TORCH].end
        yield f"{name:24}{medians[name].first:14.2f}{least:8.2f}{medians[name].end:8.2f}{ratio:10.2f}"
    yield f"the first translation takes {medians[TRANSLATION].first / limit:.0%} of the limit, {limit:g} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--line", default="Ein Mann geht .", help="what is translated")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--limit", type=float, default=2.5, help="seconds that the first translation may take")
    args = parser.parse_args()
    python, line = sys.executable, f"{args.line}\n"
    commands = {
        TRANSLATION: ([python, "-c", COMMAND, args.run], line),
        HELP: ([python, "-c", COMMAND, "--help"], ""),
        TORCH: ([python, "-c", "import torch; print(flush=True)"], ""),
    }
    timings: dict[str, list[Timing]] = {name: [] for name in commands}
    for turn in range(args.rounds + 1):  # the first one only loads files into memory
        for name, command in commands.items():
            timing = time_process(*command)
            if turn:
                timings[name].append(timing)
    print("\n".join(table(timings, args.limit)))


if __name__ == "__main__":
    main()
