"""Time to the first word: nmt-translate of one line, its --help, and what of that torch alone takes.

    python tools/bench_start.py RUN [--line TEXT] [--rounds 9] [--limit 2.5]

They take turns, each a process of its own. Prints seconds, medians and the least, to the first byte of output and to
the end of the process, beside those of `import torch`; and the share of the limit that the first translation takes.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

# As the installed command does it, but surely with this Python.
COMMAND = "import sys; from nmt.cli.begin import translate; sys.exit(translate())"
TRANSLATION, HELP, TORCH = "nmt-translate, a line", "nmt-translate --help", "import torch"


class Waited(NamedTuple):
    """Seconds from the start of a process to the first byte of its output, and to its end."""

    first: float
    end: float


def wait_for(argv: Sequence[str], given: str) -> Waited:
    """Start a process, give it a text, and wait for it. Ends this one where it fails or says nothing."""
    begin = time.perf_counter()
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(given.encode("utf-8"))
        process.stdin.close()
        said = process.stdout.read(1)
        first = time.perf_counter() - begin
        process.stdout.read()
        complaint = process.stderr.read().decode("utf-8", "replace")
        code = process.wait()
    if code or not said:
        sys.exit(f"bench_start: error: a process ended with code {code}: {complaint.strip() or 'it said nothing'}")
    return Waited(first, time.perf_counter() - begin)


def table(found: Mapping[str, Sequence[Waited]], limit: float) -> Iterator[str]:
    """The lines to print."""
    usual = {name: Waited(*map(statistics.median, zip(*turns, strict=True))) for name, turns in found.items()}
    yield f"{'seconds':24}{'first output':>14}{'least':>8}{'end':>8}{'to torch':>10}"
    for name, turns in found.items():
        least, ratio = min(one.first for one in turns), usual[name].end / usual[TORCH].end
        yield f"{name:24}{usual[name].first:14.2f}{least:8.2f}{usual[name].end:8.2f}{ratio:10.2f}"
    yield f"the first translation takes {usual[TRANSLATION].first / limit:.0%} of the limit, {limit:g} s"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--line", default="Ein Mann geht .", help="what is translated")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--limit", type=float, default=2.5, help="seconds that the first translation may take")
    args = parser.parse_args()
    python, line = sys.executable, f"{args.line}\n"
    ways = {
        TRANSLATION: ([python, "-c", COMMAND, args.run], line),
        HELP: ([python, "-c", COMMAND, "--help"], ""),
        TORCH: ([python, "-c", "import torch; print(flush=True)"], ""),
    }
    found: dict[str, list[Waited]] = {name: [] for name in ways}
    for turn in range(args.rounds + 1):  # in the first one files come into memory
        for name, way in ways.items():
            waited = wait_for(*way)
            if turn:
                found[name].append(waited)
    print("\n".join(table(found, args.limit)))


if __name__ == "__main__":
    main()
