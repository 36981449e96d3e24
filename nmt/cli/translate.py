"""nmt-translate: what can be asked for, its flags in `translating/flags.py`. What is done is in `translating/job.py`.

Nothing here needs torch, so that --help and mistakes in the flags are answered at once.
"""

if __name__ == "__main__":  # as `python -m`; the commands themselves begin there
    from nmt.cli.begin import begin, ended

    begin()

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nmt.cli.begin import importing
from nmt.cli.parser import Parser, add_override_flags, run
from nmt.cli.translating.flags import add_flags
from nmt.files import check_is_run

_DESCRIPTION = """\
Translate lines with the model of the run folder RUN: nmt-translate RUN < in > out. One line out for each line in, in
order; a blank line stays blank. In a pipe, what has arrived is answered at once. Several runs translate together, as an
ensemble."""
_EPILOG = """\
Output: the translation; with --show-scores SCORE, a tab and the translation; with --decode.n_best above 1
NUMBER ||| TRANSLATION ||| SCORE for each hypothesis, best first, NUMBER being that of the input line, from 1. With
--format tsv NUMBER, RANK, SCORE, LOG-PROBABILITY and TRANSLATION between tabs; with --format jsonl an object a line,
with --format moses NUMBER ||| TRANSLATION ||| F0= LOG-PROBABILITY ||| SCORE, NUMBER from 0 as Moses and Marian have it;
and with --format pairs one of source, output and flags alone, to train on (docs/data.md). SCORE is the
log-probability over the length penalty. With --tune-decoding a table: beam, penalty, alpha, BLEU and chrF of what one
search for the beam holds, ratio of lengths, BLEU* and chrF* of a search of its own, and a mark."""


_EXAMPLES = (
    "nmt-translate runs/mine --input test.de --out test.out --ref test.en",
    "echo 'Guten Tag!' | nmt-translate runs/mine --beam 8 --n-best 3",
)


def _parser() -> Parser:
    parser = Parser("nmt-translate", description=_DESCRIPTION, epilog=_EPILOG, examples=_EXAMPLES)
    parser.add_argument(
        "run", metavar="RUN", nargs="+", help="The run folder that nmt-train wrote; several make an ensemble."
    )
    add_flags(parser)
    add_override_flags(parser, ["decode"])
    return parser


def _translate(args: argparse.Namespace) -> int:
    for folder in args.run:
        check_is_run(Path(folder))
    with importing():  # before torch
        from nmt.processes import sleep_while_waiting

        sleep_while_waiting()
    if args.tune_decoding:
        with importing():
            from nmt.cli.translating.tune_decoding import tune

        return tune(args, vars(_parser().parse_args(["RUN"])))
    with importing():
        from nmt.cli.translating.job import translate

    return translate(args)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    return run("nmt-translate", _translate, _parser(), argv)


if __name__ == "__main__":
    sys.exit(ended(main()))
