"""nmt-train: a recipe and its prepared data -> a run folder with a trained model."""

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tqdm import tqdm

from nmt.cli.command import add_override_flags, overrides_of, printable, run
from nmt.recipe.options import Recipe
from nmt.recipe.reader import read_recipe
from nmt.run import Run
from nmt.training.allocator import keep_freed_blocks
from nmt.training.check import check
from nmt.training.launch import launch
from nmt.training.parallel import is_one_of_many
from nmt.training.selftest import selftest
from nmt.training.verify import folders_of, verify_run

_DESCRIPTION = """\
Train the model that RECIPE describes on the data that nmt-preprocess RECIPE prepared. The same command again goes on
where training stopped, bit for bit. Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 save and stop; a second Ctrl-C stops at once.
On several GPUs: torchrun --nproc-per-node 8 -m nmt.cli.train RECIPE. Every option of the recipe can be given here by
its dotted name."""


class StopSignal:
    """Remembers that somebody wants training to stop; the loop asks between two updates."""

    def __init__(self) -> None:
        self.number = 0
        for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP"):
            number = getattr(signal, name, None)  # Windows has not all of them
            if number is not None and signal.getsignal(number) != signal.SIG_IGN:  # as nohup wants it
                signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.number == signal.SIGINT == number:
            raise KeyboardInterrupt
        self.number = number
        text = f"\n{signal.Signals(number).name}: saving after this update, then stopping\n"
        with contextlib.suppress(OSError):
            # Past Python's buffers, which may be in the middle of a write, to a terminal that may be gone.
            os.write(2, text.encode("ascii"))

    def __call__(self) -> bool:
        return self.number != 0

    @property
    def exit_code(self) -> int:
        """What the shell expects of a program that a signal stopped."""
        return 128 + self.number if self.number else 0


def train(args: argparse.Namespace) -> int:
    """The command behind the flags."""
    if args.verify:
        return verify(Run(args.recipe))
    recipe = read_recipe(Path(args.recipe), overrides_of(args))
    keep_freed_blocks()
    if args.check:
        print("\n".join(check(recipe, lambda text: print(text, file=sys.stderr))))
        return 0
    if args.selftest:
        return _selftest(recipe)
    stop = StopSignal()
    outcome = launch(recipe, stop)
    return stop.exit_code if outcome == "stopped" else 0


def verify(folder: Run) -> int:
    """Print what is whole in a run folder and what is not. Returns the exit code."""
    n_damaged = 0
    with tqdm(total=len(folders_of(folder)), unit="folder", leave=False, disable=None, file=sys.stderr) as bar:
        for finding in verify_run(folder):
            bar.update()
            n_damaged += bool(finding.complaint)
            verdict = f"damaged: {printable(finding.complaint)}" if finding.complaint else "whole"
            print(finding.name, "?" if finding.update is None else finding.update, verdict, sep="\t")
    if not bar.total:
        print(f"{folder.folder}: no checkpoint was saved yet", file=sys.stderr)
    return 2 if n_damaged else 0


def _selftest(recipe: Recipe) -> int:
    failed = 0
    for passed, text in selftest(recipe):
        print(f"{'pass' if passed else 'FAIL'}  {text}", flush=True)
        failed += not passed
    return 1 if failed else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="nmt-train", description=_DESCRIPTION)
    parser.add_argument("recipe", metavar="RECIPE", help="the recipe, a YAML file; with --verify a run folder")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--verify",
        action="store_true",
        help="Train nothing: check every checkpoint in the run folder RECIPE, and its model, against the manifests and "
        "the run's recipe. One line each on stdout: name, update, and whole or damaged: why. Exit code 2 if one is "
        "damaged.",
    )
    instead.add_argument(
        "--check",
        action="store_true",
        help="Train nothing: measure what the recipe needs here (memory, time, disk), and say what is likely to go "
        "wrong. Leaves nothing behind.",
    )
    instead.add_argument(
        "--selftest",
        action="store_true",
        help="Train nothing: let the model learn a few pairs by heart and find them again by beam search; exit code 1 "
        "if it cannot. Leaves nothing behind.",
    )
    add_override_flags(parser)
    code = run("nmt-train", train, parser, argv)
    if code and is_one_of_many():
        os._exit(code)  # an ordinary end would wait for ranks that are gone
    return code


if __name__ == "__main__":
    sys.exit(main())
