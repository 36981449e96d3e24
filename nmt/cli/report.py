"""nmt-report: one page that compares the logs of several runs."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nmt.cli.begin import end_startup, talk
from nmt.cli.parser import Parser, must_be_free, run
from nmt.errors import NmtError
from nmt.files import check_is_run, runs_of, write_durably

_DESCRIPTION = """\
Write one page with several runs in the same charts: loss, scores, learning rate, gradient norm and speed; and with
their example translations, data and options. nmt-train keeps the page of a single run, RUN/report.html."""
_EXAMPLES = ("nmt-report runs/first runs/second --output both.html",)


def report(args: argparse.Namespace) -> int:
    """Run the command. Returns the exit code; raises NmtError."""
    folders = [folder for path in args.run for folder in runs_of(Path(path))]
    for folder in folders:
        check_is_run(folder)
    output = Path(args.output)
    must_be_free(output, overwrite=args.overwrite)
    from nmt.run import Run
    from nmt.training.run_page import entries_of, page

    end_startup()
    runs = [Run(folder) for folder in folders]
    for nmt_run in runs:
        if not entries_of(nmt_run):
            raise NmtError(f"{nmt_run.log_file}: the log is missing or empty: train this run first.")
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
