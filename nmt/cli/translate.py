"""nmt-translate: its flags and their combinations. The work is in `translate_job.py`.

Imports no torch, so that --help and mistakes in the flags are answered at once.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from nmt.cli.begin import importing
from nmt.cli.parser import Parser, add_override_flags, add_short_flags, add_shorthand, overrides_of, run
from nmt.errors import NmtError
from nmt.files import check_is_run
from nmt.recipe.model_options import ATTENTIONS
from nmt.recipe.section import MOST_THREADS

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
log-probability over the length penalty."""


_EXAMPLES = (
    "nmt-translate runs/mine --input test.de --out test.out --ref test.en",
    "echo 'Guten Tag!' | nmt-translate runs/mine --beam 8 --n-best 3",
)


INPUT_FORMATS = ("text", "wrapped", "tsv", "jsonl")
FORMATS = ("text", "tsv", "jsonl", "pairs", "moses")
_INPUT = (
    "Of the input: text; wrapped: text whose sentences go on over several lines, which are joined up to the end of a "
    "sentence or a blank line, and are one line of the output; tsv: the source, a tab and how its translation begins; "
    "or jsonl: objects with source, and if wanted prefix, required, avoided, trg_lang and tags. [default: text]"
)


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers from 1, like 1,2,5")
    return numbers


def _numbers_or(*words: str) -> Callable[[str], str | list[int]]:
    return lambda text: text if text in words else _numbers(text)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a count")
    return int(text)


def _threads(text: str) -> int:
    if (number := _count(text)) > MOST_THREADS:
        raise argparse.ArgumentTypeError(f"{text} are more than {MOST_THREADS:,}")
    return number


def _add_flags(parser: Parser) -> None:
    add_short_flags(parser, "nmt-translate")
    add = parser.add_argument_group("input").add_argument
    add("--input", "-i", metavar="FILE", help="Read this file, plain or compressed (.gz, .zst, .xz), and not stdin.")
    add("--input-format", choices=INPUT_FORMATS, default="text", help=_INPUT)

    add = parser.add_argument_group("output").add_argument
    add("--output", "--out", "-o", metavar="FILE", help="Write this file, there only when it is whole, and not stdout.")
    add("--overwrite", action="store_true", help="Replace output files that exist.")
    add("--format", choices=FORMATS, default="text", help="Of what is written; see below. [default: text]")
    add("--show-scores", action="store_true", help="Write the score and a tab before each translation.")

    group = parser.add_argument_group("what is asked of a translation")
    add = group.add_argument
    add_shorthand(parser, group, "--trg-lang", "decode.trg_lang", "LANG")
    text = "Two columns: where the source has the phrase in the first, the translation has that in the second."
    add("--terms", metavar="FILE", help=text)
    text = "Phrases that no translation has; with two columns, none of a source that has the phrase in the first."
    add("--avoid", metavar="FILE", help=text)
    add("--keep", metavar="REGEX", help="What this matches in the source is in the translation as it is.")
    add("--mbr", type=_count, metavar="N", help="Short for --decode.samples N --decode.mbr chrf.")
    text = "Translate again what looks wrong, with a wider beam, then by sampling; fewer reasons win."
    add("--retry-suspect", action="store_true", help=text)

    add = parser.add_argument_group("model").add_argument
    text = "A checkpoint of the run, like update-00012000; given several times, an ensemble of them; by default its "
    text += "final model, and its best checkpoint so far while training has not ended."
    add("--checkpoint", metavar="NAME", action="append", help=text)

    add = parser.add_argument_group("scoring").add_argument
    text = "Raw reference: print BLEU, chrF, TER and exact match to stderr; given several times, all of them count."
    add("--ref", metavar="FILE", action="append", help=text)
    add("--scores", metavar="FILE", help="Also write the scores of --ref as JSON.")
    text = "Print N sources, translations and references to stderr."
    add("--examples", type=_count, default=0, metavar="N", help=text)
    add("--score", metavar="FILE", help="Translate nothing: write log-probabilities of the translations in this file.")

    add = parser.add_argument_group("word alignments and attention").add_argument
    text = "Also write which words belong together, for each line of the input a line like 0-0 1-2: word of the "
    text += "source and word of the translation, from 0."
    add("--alignments", metavar="FILE", help=text)
    text = "Draw attention: a .png, .svg or .pdf, or an .html on which all layers, heads and kinds can be looked at."
    add("--attention", metavar="FILE", help=text)
    text = "What is drawn: cross, where the translation looks at the source; encoder, the source at itself; decoder, "
    text += "the translation at what was written before. [default: cross]"
    add("--attention-of", choices=ATTENTIONS, help=text)
    add("--lines", type=_numbers, metavar="N,…", help="Lines to draw. [default: the first three that are not blank]")
    text = "Layers to draw or write. [default: last]"
    add("--layer", type=_numbers_or("all", "last"), metavar="N,…|all|last", help=text)
    text = "Heads to draw or write. [default: mean]"
    add("--head", type=_numbers_or("all", "mean"), metavar="N,…|all|mean", help=text)
    text = "With --format jsonl: also the attention of --layer and --head, as numbers."
    add("--with-attention", action="store_true", help=text)

    add = parser.add_argument_group("hardware").add_argument
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1. [default: auto, the GPU if there is one]")
    add("--threads", type=_threads, default=0, metavar="N", help="CPU threads; 0: one a core.")


_USUAL = {"layer": "last", "head": "mean"}
_NEEDS = {"lines": "attention", "attention_of": "attention", "examples": "ref", "scores": "ref"}
# Flags that would change the lines that are written, or the work, if anything was translated. Other options of a search
# may be given with --score, as those that the translations were found with.
_NOT_OF_SCORE = ("ref", "attention", "show_scores", "mbr", "retry_suspect", "terms", "avoid", "keep")


def check_flags(args: argparse.Namespace) -> None:
    """Validate flag combinations before loading the model, and fill in --layer and --head. Raises NmtError."""
    for flag, usual in _USUAL.items():
        if getattr(args, flag) is None:
            setattr(args, flag, usual)
        elif not (args.attention or args.with_attention):
            raise NmtError(f"--{flag} needs --attention or --with-attention.")
    for flag, needed in _NEEDS.items():
        if getattr(args, flag) and not getattr(args, needed):
            raise NmtError(f"--{flag} needs --{needed}.".replace("_", "-"))
    if args.score:
        given = [flag.replace("_", "-") for flag in _NOT_OF_SCORE if getattr(args, flag)]
        given += [name for name, _ in overrides_of(args) if name == "decode.n_best"]
        given += [f"input-format {args.input_format}"] * (args.input_format in ("tsv", "wrapped"))
        if given:
            raise NmtError(f"--score translates nothing, so --{given[0]} has nothing to do: leave it out.")
        if args.format in ("pairs", "moses"):
            raise NmtError(
                f"--score translates nothing, and --format {args.format} is for what was translated: name another."
            )
    if args.show_scores and args.format != "text":
        has = "has no place for scores" if args.format == "pairs" else "has the scores anyway"
        raise NmtError(f"--show-scores: --format {args.format} {has}: leave it out.")
    if args.with_attention and args.format != "jsonl":
        raise NmtError(f"--with-attention: --format {args.format} has no place for it: add --format jsonl.")


def _parser() -> Parser:
    parser = Parser("nmt-translate", description=_DESCRIPTION, epilog=_EPILOG, examples=_EXAMPLES)
    parser.add_argument(
        "run", metavar="RUN", nargs="+", help="The run folder that nmt-train wrote; several make an ensemble."
    )
    _add_flags(parser)
    add_override_flags(parser, ["decode"])
    return parser


def _translate(args: argparse.Namespace) -> int:
    for folder in args.run:
        check_is_run(Path(folder))
    with importing():  # before torch
        from nmt.processes import sleep_while_waiting

        sleep_while_waiting()
    check_flags(args)
    with importing():
        from nmt.cli.translate_job import translate

    return translate(args)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    return run("nmt-translate", _translate, _parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
