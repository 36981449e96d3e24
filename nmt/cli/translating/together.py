"""Which flags of nmt-translate go together: one that needs or excludes others is told by name, before any work."""

import argparse
from collections.abc import Iterator

from nmt.cli.parser import overrides_of
from nmt.errors import NmtError
from nmt.recipe.decode_options import DecodeConfig

_USUAL = {"layer": "last", "head": "mean"}
_NEEDS = {"lines": "attention", "attention_of": "attention", "examples": "ref", "scores": "ref"}
_NEEDS |= dict.fromkeys(("tune_metric", "tune_beams", "store"), "tune_decoding")
_NOT_OF_SCORE = ("ref", "attention", "show_scores", "mbr", "retry_suspect", "terms", "avoid", "keep")
# What would change the lines that are written, or the work, if anything was translated. Other options of a search may
# be given with --score, as those that the translations were found with.
_OPTIONS_NOT_OF_SCORE = ("decode.n_best",)


def check_flags(args: argparse.Namespace) -> None:
    """Raise NmtError for the first flag that needs another, or has no place beside one."""
    for of_some in (_of_what_needs_others, _of_score, _of_format):
        for complaint in of_some(args):
            raise NmtError(complaint)


def fill_in(args: argparse.Namespace) -> None:
    """Have --layer and --head say what is usual where they were not given."""
    for flag, usual in _USUAL.items():
        if getattr(args, flag) is None:
            setattr(args, flag, usual)


def check_format(args: argparse.Namespace, decode: DecodeConfig) -> None:
    """Raise NmtError if --format cannot hold what was asked for, or the search cannot be asked for it."""
    if args.format == "pairs" and decode.n_best > 1:
        raise NmtError(
            f"--format pairs has the best translation of each line, but decode.n_best is {decode.n_best}: set it to 1. "
            "For several translations of a line draw samples, in a file for each of several --decode.seed."
        )
    for flag in ("terms", "keep"):
        if decode.samples and getattr(args, flag):
            raise NmtError(f"--{flag}: phrases can be required of beam search only: set decode.samples to 0.")


def _of_what_needs_others(args: argparse.Namespace) -> Iterator[str]:
    for flag in _USUAL:
        if getattr(args, flag) is not None and not (args.attention or args.with_attention):
            yield f"--{flag} needs --attention or --with-attention."
    for flag, needed in _NEEDS.items():
        if getattr(args, flag) and not getattr(args, needed):
            yield f"--{flag} needs --{needed}.".replace("_", "-")


def _of_score(args: argparse.Namespace) -> Iterator[str]:
    if not args.score:
        return
    given = [flag.replace("_", "-") for flag in _NOT_OF_SCORE if getattr(args, flag)]
    given += [name for name, _ in overrides_of(args) if name in _OPTIONS_NOT_OF_SCORE]
    for name in given:
        yield f"--score translates nothing, so --{name} has nothing to do: leave it out."
    if args.format in ("pairs", "moses"):
        yield f"--score translates nothing, and --format {args.format} is for what was translated: name another."
    if args.input_format in ("tsv", "wrapped"):
        yield f"--score translates nothing, so --input-format {args.input_format} has nothing to do: leave it out."


def _of_format(args: argparse.Namespace) -> Iterator[str]:
    if args.show_scores and args.format != "text":
        has = "has no place for scores" if args.format == "pairs" else "has the scores anyway"
        yield f"--show-scores: --format {args.format} {has}: leave it out."
    if args.with_attention and args.format != "jsonl":
        yield f"--with-attention: --format {args.format} has no place for it: add --format jsonl."
