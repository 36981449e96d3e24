"""nmt-translate: what can be asked for. What is done about it is in `translate_job.py`.

Nothing here needs torch, so that --help and mistakes in the flags are answered at once.
"""

if __name__ == "__main__":  # as `python -m`; the commands themselves begin there
    from nmt.cli.begin import begin, ended

    begin()

import argparse
import sys
from collections.abc import Sequence

from nmt.cli.begin import importing
from nmt.cli.command import Parser, add_override_flags, add_shorthand, run
from nmt.cli.rank_flag import n_rank
from nmt.recipe.model_options import ATTENTIONS

_DESCRIPTION = """\
Translate lines with the model of the run folder RUN: nmt-translate RUN < in > out. One line out for each line in, in
order; a blank line stays blank. In a pipe, what has arrived is answered at once. Several runs translate together, as an
ensemble."""
_EPILOG = """\
Output: the translation; with --show-scores SCORE, a tab and the translation; with --decode.n_best above 1
NUMBER ||| TRANSLATION ||| SCORE for each hypothesis, best first, NUMBER being that of the input line, from 1. With
--format tsv NUMBER, RANK, SCORE, LOG-PROBABILITY and TRANSLATION between tabs; with --format jsonl an object a line,
and with --format pairs one of source, output and flags alone, to train on (docs/synthetic.md). SCORE is the
log-probability over the length penalty. With --tune-decoding a table: beam, penalty, alpha, BLEU and chrF of what one
search for the beam holds, ratio of lengths, BLEU* and chrF* of a search of its own, and a mark. With --tune-alignment:
layer and head (- is the mean), when, alignment error rate, precision, recall, and a mark."""
INPUT_FORMATS = ("text", "tsv", "jsonl")
FORMATS = (*INPUT_FORMATS, "pairs")
_INPUT = (
    "Of the input: text; tsv: the source, a tab and how its translation begins; or jsonl: objects with source, and if "
    "wanted prefix, required, avoided, trg_lang and tags. [default: text]"
)
ENGINES = ("nmt", "ctranslate2")


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers from 1, like 1,2,5")
    return numbers


def _layers(text: str) -> str | list[int]:
    return text if text in ("all", "last") else _numbers(text)


def _heads(text: str) -> str | list[int]:
    return text if text in ("all", "mean") else _numbers(text)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a count")
    return int(text)


def _positive(text: str) -> int:
    number = _count(text)
    if not number:
        raise argparse.ArgumentTypeError("0 is too few")
    return number


def _workers(text: str) -> str | int:
    return text if text == "auto" else _positive(text)


def _parser() -> Parser:
    parser = Parser("nmt-translate", description=_DESCRIPTION, epilog=_EPILOG)
    add = parser.add_argument
    add("run", metavar="RUN", nargs="+", help="The run folder that nmt-train wrote; several make an ensemble.")
    add("--input", "-i", metavar="FILE", help="Read this file, plain or compressed (.gz, .zst, .xz), and not stdin.")
    add("--output", "-o", metavar="FILE", help="Write this file, there only when it is whole, and not stdout.")
    add("--input-format", choices=INPUT_FORMATS, default="text", help=_INPUT)
    add(
        "--terms",
        metavar="FILE",
        help="Two columns: where the source has the phrase in the first, the translation has that in the second.",
    )
    add(
        "--avoid",
        metavar="FILE",
        help="Phrases that no translation has; with two columns, none of a source that has the phrase in the first.",
    )
    add("--keep", metavar="REGEX", help="What this matches in the source is in the translation as it is.")
    add("--overwrite", action="store_true", help="Replace output files that exist.")
    add(
        "--ref",
        metavar="FILE",
        action="append",
        help="Raw reference: print BLEU, chrF, TER and exact match to stderr; given several times, all of them count.",
    )
    add_shorthand(parser, "--trg-lang", "decode.trg_lang", "LANG")
    add("--scores", metavar="FILE", help="Also write the scores of --ref, or of --gold-alignments, as JSON.")
    add(
        "--examples",
        type=_count,
        default=0,
        metavar="N",
        help="Print N sources, translations and references to stderr.",
    )
    add("--format", choices=FORMATS, default="text", help="Of what is written; see below. [default: text]")
    add("--show-scores", action="store_true", help="Write the score and a tab before each translation.")
    add(
        "--with-attention",
        action="store_true",
        help="With --format jsonl: also the attention of --layer and --head, as numbers.",
    )
    add(
        "--retry-suspect",
        action="store_true",
        help="Translate again what looks wrong, with a wider beam, then by sampling; fewer reasons win.",
    )
    add(
        "--alignments",
        metavar="FILE",
        help="Also write which words belong together, for each line of the input a line like 0-0 1-2: word of the "
        "source and word of the translation, from 0.",
    )
    add(
        "--gold-alignments",
        metavar="FILE",
        help="Links of the words of --input and --score by people, 1-2 sure and 1?2 possible: print the alignment "
        "error rate to stderr. With --tune-alignment: what decides.",
    )
    add("--score", metavar="FILE", help="Translate nothing: write log-probabilities of the translations in this file.")
    add("--mbr", type=_count, metavar="N", help="Short for --decode.samples N --decode.mbr chrf.")
    add(
        "--tune-decoding",
        nargs=2,
        metavar=("SRC", "REF"),
        help="Translate nothing: find the best beam and length penalty on a validation set, and print them all.",
    )
    add("--tune-metric", choices=("bleu", "chrf"), help="What is best by; the other decides between equals. [bleu]")
    add("--tune-beams", type=_numbers, metavar="N,…", help="Beams to try beside the present one. [1,2,4,5,8,12]")
    add(
        "--tune-alignment",
        nargs=2,
        metavar=("SRC", "REF"),
        help="Translate nothing: find which layer and head align words best, by --gold-alignments or else by how words "
        "occur together, and print them all.",
    )
    add("--store", action="store_true", help="Make the winner what RUN translates or aligns with, in its recipe.yaml.")
    add(
        "--attention",
        metavar="FILE",
        help="Draw attention: a .png, .svg or .pdf, or an .html on which all layers, heads and kinds can be looked at.",
    )
    add(
        "--attention-of",
        choices=ATTENTIONS,
        help="What is drawn: cross, where the translation looks at the source; encoder, the source at itself; decoder, "
        "the translation at what was written before. [default: cross]",
    )
    add(
        "--lines", type=_numbers, default=None, metavar="N,…", help="Lines to draw; the first three that are not blank."
    )
    add(
        "--layer",
        type=_layers,
        default="last",
        metavar="N,…|all|last",
        help="Layers to draw or write. [default: last]",
    )
    add("--head", type=_heads, default="mean", metavar="N,…|all|mean", help="Heads to draw or write. [default: mean]")
    add(
        "--checkpoint",
        metavar="NAME",
        action="append",
        help="A checkpoint of the run, like update-00012000; given several times, an ensemble of them; by default its "
        "final model, and its best checkpoint so far while training has not ended.",
    )
    add(
        "--engine",
        choices=ENGINES,
        default="nmt",
        help="What translates; ctranslate2: RUN is a folder that nmt-export wrote for it. [default: nmt]",
    )
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1. [default: auto, the GPU if there is one]")
    add("--threads", type=_count, default=0, metavar="N", help="CPU threads; 0: one a core.")
    add(
        "--workers",
        type=_workers,
        default=1,
        metavar="N|auto",
        help="Translate with N processes on the CPU, each with its own copy of the model, and one thread unless "
        "--threads says otherwise; auto: one a core, where the input is a file that is worth it. [default: 1]",
    )
    add("--rank", type=_count, metavar="I", help="With --ranks: which of them this is, from 0.")
    add(
        "--ranks",
        type=n_rank,
        metavar="N|array",
        help="So many commands, on any machines, share --input and one folder for --output: each answers its windows, "
        "and the last one joins the parts. Under torchrun both are known; array: the jobs of sbatch --array are "
        "the ranks.",
    )
    add_override_flags(parser, ["decode"])
    return parser


def _translate(args: argparse.Namespace) -> int:
    if args.tune_decoding:
        with importing():
            from nmt.cli.tune_decoding import tune

        return tune(args, vars(_parser().parse_args(["RUN"])))
    if args.tune_alignment:
        with importing():
            from nmt.cli import tune_alignment

        return tune_alignment.tune(args, vars(_parser().parse_args(["RUN"])))
    with importing():
        from nmt.cli.translate_job import translate

    return translate(args)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    return run("nmt-translate", _translate, _parser(), argv)


if __name__ == "__main__":
    sys.exit(ended(main()))
