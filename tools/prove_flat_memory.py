"""Does the memory of nmt-train stay where it is? python tools/prove_flat_memory.py [--recipe RECIPE] [OPTIONS]

Trains 2,000 updates of a recipe, a tiny one on made-up pairs where none is named, into a temporary folder, logging
every 100 and validating every 200, and prints the memory of the process by its log: at update 500, when everything has
happened that happens in a run, at the end, and at its highest between. Options of the recipe, such as
--train.tensorboard true, go to nmt-train as they are. Exits 1 if memory grows by more than 20 MiB from update 500 on, 2
if training failed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fault_corpus import RECIPE, write_corpus

_BEGIN = 500  # the update from which on memory has to stay
_MOST_GROWTH = 20.0  # MiB


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--recipe", metavar="RECIPE", help="what to train; its data is prepared already")
    parser.add_argument("--updates", type=int, default=2000, metavar="N", help="how long, more than 500")
    args, options = parser.parse_known_args(argv)
    if args.updates <= _BEGIN:
        parser.error(f"--updates {args.updates}: expected more than {_BEGIN}, from where on memory has to stay")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = Path(args.recipe).absolute() if args.recipe else _made(folder)
        run = folder / "run"
        given = {"train.updates": args.updates, "train.log_every": 100, "valid.every": 200, "train.out": run}
        flags = [text for option, value in given.items() for text in (f"--{option}", str(value))]
        if code := subprocess.call([sys.executable, "-m", "nmt.cli.train", str(recipe), *flags, *options], cwd=folder):
            print(f"prove_flat_memory: error: training ended with exit code {code}", file=sys.stderr)
            return 2
        found = memory_of((run / "log.jsonl").read_text(encoding="utf-8"))
    if not found:
        print("prove_flat_memory: error: on this system the log does not tell memory: no rss_mb in it", file=sys.stderr)
        return 2
    text, is_flat = verdict(found)
    print(text)
    return int(not is_flat)


def _made(folder: Path) -> Path:
    """The recipe of a tiny run, its data prepared. Long sentences to validate on make pictures that count."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE, encoding="utf-8")
    (folder / "corpus").mkdir()
    write_corpus(folder / "corpus", 300)
    for path in (folder / "corpus").glob("valid.*"):
        words = path.read_text(encoding="utf-8").split()  # of both sides the n-th mean the same
        lines = (" ".join(words[n:] + words[:n]) + "\n" for n in range(6))
        path.write_text("".join(lines), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "nmt.cli.preprocess", str(recipe)], cwd=folder, check=True)
    return recipe


def memory_of(log: str) -> dict[int, float]:
    """{update: memory of the process, MiB} of a run's log."""
    lines = (json.loads(line) for line in log.splitlines())
    return {line["update"]: line["rss_mb"] for line in lines if "rss_mb" in line}


def verdict(memory: dict[int, float]) -> tuple[str, bool]:
    """What to print, and whether memory has stayed where it was."""
    last = max(memory)
    begin, end = memory[_BEGIN], memory[last]
    highest = max(mib for update, mib in memory.items() if update >= _BEGIN)
    return (
        f"memory at update {_BEGIN:,}: {begin:,.1f} MiB, at update {last:,}: {end:,.1f} ({end - begin:+,.1f}), at its "
        f"highest between: {highest:,.1f} ({highest - begin:+,.1f}, at most {_MOST_GROWTH:+,.0f})",
        highest - begin <= _MOST_GROWTH,
    )


if __name__ == "__main__":
    raise SystemExit(main())
