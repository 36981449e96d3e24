"""nmt-train: a recipe and its prepared data -> a run folder with a trained model."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from nmt.cli.command import add_override_flags, overrides_of, run
from nmt.recipe.reader import read_recipe
from nmt.training.launch import launch
from nmt.training.parallel import is_one_of_many

_DESCRIPTION = """\
Train the model that RECIPE describes on the data that nmt-preprocess RECIPE prepared. The same command again goes on
where training stopped, bit for bit. Ctrl-C and SIGTERM save and stop; a second Ctrl-C stops at once. On several GPUs:
torchrun --nproc-per-node 8 -m nmt.cli.train RECIPE. Every option of the recipe can be given here by its dotted name."""


class StopSignal:
    """Remembers that somebody wants training to stop; the loop asks between two updates."""

    def __init__(self) -> None:
        self.number = 0
        for name in ("SIGINT", "SIGTERM", "SIGUSR1"):
            if hasattr(signal, name):  # Windows has no SIGUSR1
                signal.signal(getattr(signal, name), self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.number == signal.SIGINT == number:
            raise KeyboardInterrupt
        self.number = number
        print(f"\n{signal.Signals(number).name}: saving after this update, then stopping", file=sys.stderr)

    def __call__(self) -> bool:
        return self.number != 0

    @property
    def exit_code(self) -> int:
        """What the shell expects of a program that a signal stopped."""
        return 128 + self.number if self.number else 0


def train(args: argparse.Namespace) -> int:
    """The command behind the flags."""
    recipe = read_recipe(Path(args.recipe), overrides_of(args))
    stop = StopSignal()
    outcome = launch(recipe, stop)
    return stop.exit_code if outcome == "stopped" else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="nmt-train", description=_DESCRIPTION)
    parser.add_argument("recipe", metavar="RECIPE", help="the recipe, a YAML file")
    add_override_flags(parser)
    code = run("nmt-train", train, parser, argv)
    if code and is_one_of_many():
        os._exit(code)  # an ordinary end would wait for ranks that are gone
    return code


if __name__ == "__main__":
    sys.exit(main())
