"""nmt-translate: its flags and their combinations. The work is in `translate_job.py`.

Imports no torch, so --help and usage errors appear at once.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nmt.cli.begin import end_startup
from nmt.cli.parser import Parser, add_override_flags, overrides_of, run, whole_number
from nmt.errors import NmtError
from nmt.files import check_is_run, runs_of
from nmt.processes import sleep_while_waiting
from nmt.recipe.model_options import ATTENTIONS
from nmt.recipe.section import MOST_THREADS

_DESCRIPTION = """\
Translate lines with the model of the run folder RUN: nmt-translate RUN < in > out. Each input line gives
one output line, in order; a blank line stays blank. Lines from a pipe are translated as they arrive. Several runs form
an ensemble."""
_EPILOG = """\
Output: the translation; with --decode.n_best above 1 NUMBER ||| TRANSLATION ||| SCORE, best first. --format tsv:
NUMBER, RANK, SCORE, LOG-PROBABILITY, TRANSLATION. --format moses: NUMBER from 0 ||| TRANSLATION ||| F0= LOG-PROBABILITY
||| SCORE. --format jsonl, pairs: objects (docs/translation.md). SCORE is the log-probability divided by the length
penalty. --score: LOG-PROBABILITY; with --format tsv NUMBER, LOG-PROBABILITY, number of tokens, TRANSLATION."""
_INPUT = (
    "Format of the input: text; wrapped: text with line breaks inside sentences, joined up to the end of a sentence "
    "or a blank line, one line of the output each; tsv: the source, a tab and the start of its translation; or "
    "jsonl: objects with source and, optionally, prefix, required, avoided, trg_lang and tags. [default: text]"
)
_EXAMPLES = (
    "nmt-translate runs/mine --input test.de --out test.out --ref test.en",
    "echo 'Guten Tag!' | nmt-translate runs/mine --beam 8 --n-best 3",
)


def _numbers(text: str, *keywords: str) -> str | list[int]:
    if text in keywords:
        return text
    if not all(part.isascii() and part.isdigit() and int(part) for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers from 1, like 1,2,5")
    return [int(part) for part in text.split(",")]


def translate(args: argparse.Namespace) -> None:
    """Validate flag combinations before loading the model, and run the command."""
    args.run = [str(folder) for path in args.run for folder in runs_of(Path(path))]
    for folder in args.run:
        check_is_run(Path(folder))
    # Other search options are allowed under --score, so the command that made the translations can be repeated with it.
    flags = ("ref", "attention", "mbr", "retry_suspect", "terms", "avoid", "keep")
    useless = [flag.replace("_", "-") for flag in flags if getattr(args, flag)]
    useless += [name for name, _ in overrides_of(args) if name in ("decode.n_best", "decode.qe")]
    useless += [f"input-format {args.input_format}"] * (args.input_format in ("tsv", "wrapped"))
    useless += ["format moses"] * (args.format == "moses")
    required = {**dict.fromkeys(("lines", "attention_of", "layer", "head"), "attention"), "scores": "ref"}
    for flag, other in required.items():
        if getattr(args, flag) and not getattr(args, other):
            raise NmtError(f"--{flag.replace('_', '-')} needs --{other}.")
    if args.score and useless:
        raise NmtError(f"--score does not support --{useless[0]}, as it translates nothing: leave it out.")
    args.layer, args.head, args.attention_of = args.layer or "last", args.head or "mean", args.attention_of or "cross"
    sleep_while_waiting()  # before torch
    from nmt.cli.translate_job import work

    end_startup()
    work(args)


def new_parser() -> Parser:
    """Return the parser of nmt-translate."""
    parser = Parser("nmt-translate", description=_DESCRIPTION, epilog=_EPILOG, examples=_EXAMPLES)
    parser.add_argument("run", metavar="RUN", nargs="+", help="Run folder of nmt-train; several make an ensemble.")
    parser.set_defaults(is_text=False)  # True: the input is text, whatever its name says
    add = parser.add_argument_group("input").add_argument
    add("--input", "-i", metavar="FILE", help="Read this file instead of stdin, plain or compressed (.gz, .zst, .xz).")
    add("--input-format", choices=("text", "wrapped", "tsv", "jsonl"), default="text", help=_INPUT)

    add = parser.add_argument_group("output").add_argument
    add("--output", "--out", "-o", metavar="FILE", help="Write this file instead of stdout, once it is complete.")
    add("--overwrite", action="store_true", help="Replace output files that exist.")
    text = "Format of the output; see below. [default: text]"
    add("--format", choices=("text", "tsv", "jsonl", "pairs", "moses"), default="text", help=text)

    add = parser.add_argument_group("constraints on the translation").add_argument
    add("--terms", metavar="FILE", help="Terminology in two columns: phrases of the source, and their translations.")
    add("--avoid", metavar="FILE", help="Phrases to avoid; with two columns, only if the source has the first one.")
    add("--keep", metavar="REGEX", help="Source text that matches is copied to the translation unchanged.")
    add("--mbr", metavar="N", help="Short for --decode.samples N --decode.mbr chrf.")
    text = "Translate suspicious lines again, with a wider beam, then by sampling; the result with fewer flags wins."
    add("--retry-suspect", action="store_true", help=text)

    add = parser.add_argument_group("scoring").add_argument
    text = "Raw reference: print BLEU, chrF, TER and exact match to stderr; may be given several times for one score."
    add("--ref", metavar="FILE", action="append", help=text)
    add("--scores", metavar="FILE", help="Also write the scores of --ref as JSON.")
    add("--score", metavar="FILE", help="Translate nothing: write log-probabilities of the translations in this file.")

    add = parser.add_argument_group("word alignments and attention").add_argument
    add("--alignments", metavar="FILE", help="Also write word alignments in Pharaoh format, lines like 0-0 1-2.")
    add("--attention", metavar="FILE", help="Draw attention: a .png, .svg or .pdf, or an .html page with all of it.")
    text = "Kind to draw: cross-attention, or self-attention of the encoder or decoder. [default: cross]"
    add("--attention-of", choices=ATTENTIONS, help=text)
    add("--lines", type=_numbers, metavar="N,…", help="Lines to draw. [default: the first three that are not blank]")
    text = "Layers to draw. [default: last]"
    add("--layer", type=lambda text: _numbers(text, "all", "last"), metavar="N,…|all|last", help=text)
    text = "Heads to draw. [default: mean]"
    add("--head", type=lambda text: _numbers(text, "all", "mean"), metavar="N,…|all|mean", help=text)

    add = parser.add_argument_group("model and hardware").add_argument
    text = "A checkpoint, like update-00012000; several form an ensemble. [default: the final model or the best so far]"
    add("--checkpoint", metavar="NAME", action="append", help=text)
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1. [default: auto, the GPU if there is one]")
    n_thread = whole_number(f"a number of threads, 0 to {MOST_THREADS:,}", most=MOST_THREADS)
    add("--threads", type=n_thread, default=0, metavar="N", help="CPU threads; 0: one per core.")
    add_override_flags(parser, ["decode"])
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    return run(translate, new_parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
