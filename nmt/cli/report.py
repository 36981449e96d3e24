"""nmt-report: one page of several runs, of what their logs say."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nmt.cli.begin import begun, talk
from nmt.cli.parser import Parser, must_be_free, run
from nmt.errors import NmtError
from nmt.files import check_is_run, runs_of, write_durably

_DESCRIPTION = """\
Write one page that shows several runs in the same charts: loss, scores, learning rate, gradient norm and speed; and
their example translations, data, and what each was trained with. nmt-train keeps the page of a single run,
RUN/report.html."""
_EXAMPLES = ("nmt-report runs/first runs/second --output both.html",)


def report(args: argparse.Namespace) -> int:
    """The command behind the flags. Returns the exit code; raises NmtError."""
    folders = [folder for named in args.run for folder in runs_of(Path(named))]
    for folder in folders:
        check_is_run(folder)
    output = Path(args.output)
    must_be_free(output, overwrite=args.overwrite, inputs=folders)
    from nmt.run import Run
    from nmt.training.run_page import entries_of, page

    begun()
    runs = [Run(folder) for folder in folders]
    for one in runs:
        if not entries_of(one):
            raise NmtError(f"{one.log_file}: there is no log to show: nothing was trained here yet.")
    write_durably(output, page(runs).encode())
    talk(f"nmt-report: written: {args.output}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    parser = Parser("nmt-report", description=_DESCRIPTION, examples=_EXAMPLES)
    parser.add_argument("run", metavar="RUN", nargs="+", help="Run folders that nmt-train wrote.")
    parser.add_argument("--output", "-o", metavar="FILE", required=True, help="The page, an .html file.")
    parser.add_argument("--overwrite", action="store_true", help="Replace the page if it exists.")
    return run(report, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
