"""What nmt-train does: train until told to stop, or one of the checks that train nothing."""

import os
import sys
from pathlib import Path

from nmt.cli.begin import StopSignal, printable, write_stdout
from nmt.errors import NmtError
from nmt.progress import Bar
from nmt.recipe.options import Recipe
from nmt.recipe.reader import read_recipe
from nmt.run import Run
from nmt.training.check import check as check_recipe
from nmt.training.feed import Feed
from nmt.training.launch import launch
from nmt.training.materials import open_data
from nmt.training.parallel import Ranks
from nmt.training.selftest import folders_of, verify_run
from nmt.training.selftest import selftest as test_model


def prepare_libraries() -> None:
    """Enlarge oneDNN's cache of primitives, products made ready for one shape; call before the first product.

    By itself it holds 1,024, those of some twenty shapes of batches, and nearly all of an update is prepared anew. A
    batch of a new shape needs up to fifty, which take some 50 kB and up to 2 ms each. A value set by the user is kept.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16384")


def train(recipe: Recipe) -> int:
    """Train, or go on. Returns the exit code."""
    prepare_libraries()
    stop = StopSignal()
    outcome = launch(recipe, stop)
    return stop.exit_code if outcome == "stopped" else 0


def updates_of_epoch(path: Path) -> int | None:
    """Return how many updates an epoch of a recipe's prepared data has; None where that cannot be told."""
    try:
        recipe = read_recipe(path)
        if recipe.batch.max_tokens == "auto":
            return None
        return Feed(recipe, open_data(recipe), Ranks()).plan.n_update(0)
    except NmtError:
        return None


def check(recipe: Recipe) -> int:
    """Print what the recipe needs here, and what is likely to go wrong. Returns the exit code."""
    prepare_libraries()
    found = check_recipe(recipe, lambda text: print(text, file=sys.stderr))
    write_stdout("".join(f"{line}\n" for line in found))
    return 0


def selftest(recipe: Recipe) -> int:
    """Print whether the model of the recipe can learn. Returns the exit code."""
    prepare_libraries()
    failed = 0
    for passed, text in test_model(recipe):
        write_stdout(f"{'pass' if passed else 'FAIL'}  {text}\n")
        failed += not passed
    return 1 if failed else 0


def verify(folder: Path) -> int:
    """Print what is whole in a run folder and what is not. Returns the exit code."""
    run = Run(folder)
    n_damaged = 0
    with Bar(total=len(folders_of(run)), unit="folder", leave=False) as bar:
        for finding in verify_run(run):
            bar.update()
            n_damaged += bool(finding.complaint)
            verdict = f"damaged: {printable(finding.complaint)}" if finding.complaint else "whole"
            write_stdout(f"{finding.name}\t{'?' if finding.update is None else finding.update}\t{verdict}\n")
    if not bar.total:
        print(f"{folder}: no checkpoint was saved yet", file=sys.stderr)
    return 2 if n_damaged else 0
