"""The work of nmt-preprocess: prepare the corpora of a recipe, check them, show prepared pairs."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from nmt.cli.begin import Stop, printable, write_stdout
from nmt.data.corpus import show_pairs
from nmt.data.manifest import RECIPE
from nmt.data.prepare import page_beside
from nmt.data.prepare import prepare as prepare_corpora
from nmt.data.report import DataReport, refuse_foreign_page
from nmt.errors import AlarmError
from nmt.recipe.exports import exports_note
from nmt.recipe.options import Recipe

Given = Sequence[tuple[str, str]]  # what the command line says otherwise than the recipe


def prepare(recipe: Recipe, args: argparse.Namespace, given: Given) -> int:
    """Prepare what the recipe names, or only check it. Returns the exit code."""
    page = _page_of_check(recipe, args.report) if args.check else None
    # Whatever ends it, what is half made goes away first.
    with Stop(("SIGINT", "SIGTERM", "SIGHUP")):
        if page:
            return _check(recipe, page)
        prepare_corpora(recipe, recipe.data_folder, overwrite=args.overwrite, talk=_talk)
    # The recipe that was written beside the data holds the options; one that was named does not.
    again = (
        [word for name, value in given if name != "data.alarms" for word in (f"--{name}", value)] if args.recipe else []
    )
    command = ["nmt-train", str(args.recipe or recipe.data_folder / RECIPE), *again]
    _talk(f"the model can be used by {exports_note(recipe)}")
    _talk(f"train with: {shlex.join(command)}")
    return 0


def show(folder: Path, n: int) -> int:
    """Print n pairs of prepared data. Returns the exit code."""
    for line in show_pairs(folder, n):
        write_stdout(f"{printable(line)}\n")
    return 0


def _page_of_check(recipe: Recipe, named: str | None) -> Path:
    page = Path(named) if named else page_beside(recipe.data_folder)
    refuse_foreign_page(page)
    return page


def _check(recipe: Recipe, page: Path) -> int:
    """Write the report, and nothing else. Returns the exit code, which is that of alarms if it has any."""
    report = DataReport()
    prepare_corpora(recipe, recipe.data_folder, talk=_talk, report=report, only_report=page)
    found = report.as_dict()
    if found["alarms"]:
        _talk("check: something is seriously wrong, see ALARM above")
        return AlarmError.exit_code
    _talk(f"check: no alarm{', but see the warnings above' if found['warnings'] else ''}")
    return 0


def _talk(line: str) -> None:
    print(printable(line), file=sys.stderr)
