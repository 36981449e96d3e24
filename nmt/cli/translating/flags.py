"""The flags of nmt-translate, group by group as --help shows them. Those of the recipe come beside, from the recipe."""

import argparse

from nmt.cli.parser import Parser, add_short_flags, add_shorthand
from nmt.recipe.model_options import ATTENTIONS
from nmt.recipe.section import MOST_THREADS

INPUT_FORMATS = ("text", "wrapped", "tsv", "jsonl")
FORMATS = ("text", "tsv", "jsonl", "pairs", "moses")
_INPUT = (
    "Of the input: text; wrapped: text whose sentences go on over several lines, which are joined up to the end of a "
    "sentence or a blank line, and are one line of the output; tsv: the source, a tab and how its translation begins; "
    "or jsonl: objects with source, and if wanted prefix, required, avoided, trg_lang and tags. [default: text]"
)
ARRAY = "array"


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


def _threads(text: str) -> int:
    number = _count(text)
    if number > MOST_THREADS:
        raise argparse.ArgumentTypeError(f"{text} are more than {MOST_THREADS:,}")
    return number


def _positive(text: str) -> int:
    number = _count(text)
    if not number:
        raise argparse.ArgumentTypeError("0 is too few")
    return number


def _workers(text: str) -> str | int:
    return text if text == "auto" else _positive(text)


def add_flags(parser: Parser) -> None:
    """Add all of them to the parser."""
    add_short_flags(parser, "nmt-translate")
    _add_input(parser.add_argument_group("input"))
    _add_output(parser.add_argument_group("output"))
    _add_asked(parser, parser.add_argument_group("what is asked of a translation"))
    _add_model(parser.add_argument_group("model"))
    _add_scoring(parser.add_argument_group("scoring"))
    _add_attention(parser.add_argument_group("word alignments and attention"))
    _add_tuning(parser.add_argument_group("tuning on a validation set"))
    _add_hardware(parser.add_argument_group("hardware"))
    _add_ranks(parser.add_argument_group("several machines"))


def _add_input(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--input", "-i", metavar="FILE", help="Read this file, plain or compressed (.gz, .zst, .xz), and not stdin.")
    add("--input-format", choices=INPUT_FORMATS, default="text", help=_INPUT)


def _add_output(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--output", "--out", "-o", metavar="FILE", help="Write this file, there only when it is whole, and not stdout.")
    add("--overwrite", action="store_true", help="Replace output files that exist.")
    add("--format", choices=FORMATS, default="text", help="Of what is written; see below. [default: text]")
    add("--show-scores", action="store_true", help="Write the score and a tab before each translation.")


def _add_asked(parser: Parser, group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add_shorthand(parser, group, "--trg-lang", "decode.trg_lang", "LANG")
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
    add("--mbr", type=_count, metavar="N", help="Short for --decode.samples N --decode.mbr chrf.")
    add(
        "--retry-suspect",
        action="store_true",
        help="Translate again what looks wrong, with a wider beam, then by sampling; fewer reasons win.",
    )


def _add_model(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--checkpoint",
        metavar="NAME",
        action="append",
        help="A checkpoint of the run, like update-00012000; given several times, an ensemble of them; by default its "
        "final model, and its best checkpoint so far while training has not ended.",
    )


def _add_scoring(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--ref",
        metavar="FILE",
        action="append",
        help="Raw reference: print BLEU, chrF, TER and exact match to stderr; given several times, all of them count.",
    )
    add("--scores", metavar="FILE", help="Also write the scores of --ref as JSON.")
    add(
        "--examples",
        type=_count,
        default=0,
        metavar="N",
        help="Print N sources, translations and references to stderr.",
    )
    add("--score", metavar="FILE", help="Translate nothing: write log-probabilities of the translations in this file.")


def _add_attention(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--alignments",
        metavar="FILE",
        help="Also write which words belong together, for each line of the input a line like 0-0 1-2: word of the "
        "source and word of the translation, from 0.",
    )
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
    add("--lines", type=_numbers, metavar="N,…", help="Lines to draw. [default: the first three that are not blank]")
    add(
        "--layer",
        type=_layers,
        metavar="N,…|all|last",
        help="Layers to draw or write. [default: last]",
    )
    add("--head", type=_heads, metavar="N,…|all|mean", help="Heads to draw or write. [default: mean]")
    add(
        "--with-attention",
        action="store_true",
        help="With --format jsonl: also the attention of --layer and --head, as numbers.",
    )


def _add_tuning(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--tune-decoding",
        nargs=2,
        metavar=("SRC", "REF"),
        help="Translate nothing: find the best beam and length penalty on a validation set, and print them all.",
    )
    add("--tune-metric", choices=("bleu", "chrf"), help="What is best by; the other decides between equals. [bleu]")
    add("--tune-beams", type=_numbers, metavar="N,…", help="Beams to try beside the present one. [1,2,4,5,8,12]")
    add("--store", action="store_true", help="Make the winner what RUN translates with, in its recipe.yaml.")


def _add_hardware(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1. [default: auto, the GPU if there is one]")
    add("--threads", type=_threads, default=0, metavar="N", help="CPU threads; 0: one a core.")
    add(
        "--workers",
        type=_workers,
        default=1,
        metavar="N|auto",
        help="Translate with N processes on the CPU, each with its own copy of the model, and one thread unless "
        "--threads says otherwise; auto: one a core, where the input is a file that is worth it. [default: 1]",
    )


def _n_rank(text: str) -> int | str:
    if text == ARRAY or (text.isascii() and text.isdigit() and int(text)):
        return text if text == ARRAY else int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not 1, 2, ... and not {ARRAY}")


def _add_ranks(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--rank", type=_count, metavar="I", help="With --ranks: which of them this is, from 0.")
    add(
        "--ranks",
        type=_n_rank,
        metavar="N|array",
        help="This many commands, on any machines, share --input and one folder for --output: each answers its "
        "windows, and the last one joins the parts. Under torchrun both are known; array: the jobs of sbatch --array "
        "are the ranks.",
    )
