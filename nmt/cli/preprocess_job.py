"""What nmt-preprocess does: prepare the corpora of a recipe, alone or with others; check them; show what there is."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from nmt.cli.printable import printable
from nmt.cli.stdout import write_stdout
from nmt.cli.stop import Stop
from nmt.data.blockwise.crew import Crew, must_be_same, work_for_rank_0
from nmt.data.prepare import page_beside
from nmt.data.prepare import prepare as prepare_corpora
from nmt.data.reading.sources import find_sources
from nmt.data.reporting.report import DataReport
from nmt.data.reporting.report_page import refuse_foreign_page
from nmt.data.sharing.meeting import Meeting, Ranks
from nmt.data.stored.folder import beside
from nmt.data.stored.manifest import RECIPE
from nmt.data.stored.show import show_pairs
from nmt.errors import AlarmError, RecipeError
from nmt.recipe.exports import exports_note
from nmt.recipe.options import Recipe

Given = Sequence[tuple[str, str]]  # what the command line says otherwise than the recipe


def prepare(recipe: Recipe, args: argparse.Namespace, given: Given, ranks: Ranks, told: str) -> int:
    """Prepare what the recipe names, or only check it. told: where the ranks are from. Returns the exit code."""
    page = _page_of_check(recipe, args.report) if args.check else None
    # Whatever ends it, what is half made goes away first.
    with Stop(("SIGINT", "SIGTERM", "SIGHUP")):
        if ranks.n_rank > 1:
            return _share(recipe, args, given, ranks, told, page)
        return _prepare(recipe, args, given, page, None)


def show(folder: Path, n: int) -> int:
    """Print n pairs of prepared data. Returns the exit code."""
    for line in show_pairs(folder, n):
        write_stdout(f"{printable(line)}\n")
    return 0


def _share(recipe: Recipe, args: argparse.Namespace, given: Given, ranks: Ranks, told: str, page: Path | None) -> int:
    """One of several ranks that prepare together."""
    sources = find_sources(recipe)
    if any(text.is_stdin for source in sources for text in (source.src, source.trg)):
        raise RecipeError(
            f"{ranks}, as {told} says: a training corpus is stdin, which only one process can read. Write it to a file "
            "first, or prepare it without others: --ranks 1."
        )
    if recipe.data.valid_size and not recipe.data.valid:
        raise RecipeError(
            f"{ranks}, as {told} says, and data.valid_size: only one process can draw validation pairs. Name "
            "validation files, or prepare without others: --ranks 1."
        )
    same = must_be_same(recipe, overwrite=args.overwrite, check=args.check)
    meeting = Meeting(recipe.data_folder, ranks, same, args.rank_timeout)
    if ranks.rank:
        with meeting:
            meeting.join()
            _talk(f"{ranks} works for rank 0")
            n_block = work_for_rank_0(meeting, sources, recipe.data)
        _talk(f"{ranks} is done, blocks of pairs: {n_block:,}; rank 0 has the account")
        return 0
    # The parts go last: the others may still read them when they are told why all is over.
    with beside(page or recipe.data_folder) as parts, meeting:
        meeting.gather()
        return _prepare(recipe, args, given, page, Crew(meeting, parts))


def _prepare(recipe: Recipe, args: argparse.Namespace, given: Given, page: Path | None, crew: Crew | None) -> int:
    if page:
        return _check(recipe, page, crew)
    prepare_corpora(recipe, recipe.data_folder, overwrite=args.overwrite, talk=_talk, crew=crew)
    # The recipe that was written beside the data holds the options; one that was named does not.
    again = (
        [word for name, value in given if name != "data.alarms" for word in (f"--{name}", value)] if args.recipe else []
    )
    command = ["nmt-train", str(args.recipe or recipe.data_folder / RECIPE), *again]
    _talk(f"the model can be used by {exports_note(recipe)}")
    _talk(f"train with: {shlex.join(command)}")
    return 0


def _page_of_check(recipe: Recipe, named: str | None) -> Path:
    page = Path(named) if named else page_beside(recipe.data_folder)
    refuse_foreign_page(page)
    return page


def _check(recipe: Recipe, page: Path, crew: Crew | None) -> int:
    """Write the report, and nothing else. Returns the exit code, which is that of alarms if it has any."""
    report = DataReport()
    prepare_corpora(recipe, recipe.data_folder, talk=_talk, report=report, only_report=page, crew=crew)
    found = report.as_dict()
    if found["alarms"]:
        _talk("check: something is seriously wrong, see ALARM above")
        return AlarmError.exit_code
    _talk(f"check: no alarm{', but see the warnings above' if found['warnings'] else ''}")
    return 0


def _talk(line: str) -> None:
    print(printable(line), file=sys.stderr)
