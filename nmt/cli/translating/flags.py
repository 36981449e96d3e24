"""The flags of nmt-translate, group by group as --help shows them. Those of the recipe come beside, from the recipe."""

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from nmt.cli.parser import Parser, add_short_flags, add_shorthand
from nmt.cli.translating.journal import Known, OtherInput, Replay, known, open_locked
from nmt.errors import DataError, NmtError
from nmt.processes import place_of
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


# Several processes that share one input.


SHARE = "share"  # the mark of a rank that has answered all its windows


class Share(NamedTuple):
    """The rank of this process, from 0, and how many there are."""

    rank: int = 0
    n_rank: int = 1

    def has(self, number: int) -> bool:
        """Return whether a window, by its number from 0, is for this rank. In turns, as lengths come in stretches."""
        return number % self.n_rank == self.rank

    def n_line(self, n_line: int, window: int) -> int:
        """Count those of n_line lines that are for this rank."""
        return sum(min(window, n_line - start) for start in range(self.rank * window, n_line, self.n_rank * window))

    def journal(self, output: Path, rank: int | None = None) -> Path:
        """The journal of this rank, or another one, beside the output."""
        suffix = "" if self.n_rank == 1 else f"-{self.rank if rank is None else rank}-of-{self.n_rank}"
        return output.with_name(f"{output.name}.journal{suffix}")

    def journals(self, output: Path) -> list[Path]:
        """The journals of all ranks, by rank."""
        return [self.journal(output, rank) for rank in range(self.n_rank)]


def share_of(args: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Share:
    """The share that --rank and --ranks name, or else torchrun, which also says which GPU is ours.

    Raises NmtError if they do not fit together, or there are several ranks and no files to share.
    """
    told = "torchrun" if args.ranks is None else "--ranks"
    if args.ranks == ARRAY:
        share = _share_of_array(args.rank, environment)
    elif args.ranks is not None:
        if args.rank is None and args.ranks > 1:
            raise NmtError(f"--ranks {args.ranks} needs --rank, a number from 0 to {args.ranks - 1}.")
        if (args.rank or 0) >= args.ranks:
            raise NmtError(f"--rank {args.rank}: with --ranks {args.ranks} ranks go from 0 to {args.ranks - 1}.")
        share = Share(args.rank or 0, args.ranks)
    elif args.rank is not None:
        raise NmtError("--rank needs --ranks, the number of all.")
    else:
        share = Share(*place_of(environment)[:2])
    if share.n_rank > 1 and args.ranks is None and args.device in ("auto", "cuda"):
        args.device = _own_gpu(args.device, int(environment.get("LOCAL_RANK", "0")))
    if share.n_rank > 1 and not (args.input and args.output):
        raise NmtError(
            f"rank {share.rank} of {share.n_rank}, as {told} says: ranks share a file, so name it with --input and "
            "--output. To translate all of it here: --ranks 1."
        )
    return share


def _share_of_array(rank: int | None, environment: Mapping[str, str]) -> Share:
    """The share of a job of Slurm's array, whose jobs have numbers at equal distances."""
    if rank is not None:
        raise NmtError(f"--rank {rank}: with --ranks {ARRAY} Slurm says which of the jobs this is.")
    names = [f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "MIN", "MAX", "STEP", "COUNT")]
    if missing := [name for name in names if not environment.get(name, "").isdecimal()]:
        raise NmtError(
            f"--ranks {ARRAY}: this is no job of Slurm's sbatch --array, which would set {missing[0]}. "
            "Say which rank this is: --rank 0 --ranks 4."
        )
    number, first, last, step, n_job = (int(environment[name]) for name in names)
    if last - first != (n_job - 1) * step or (number - first) % step:
        raise NmtError(
            f"--ranks {ARRAY}: the {n_job} jobs from {first} to {last} are not at equal distances of {step}, so "
            f"which of them is {number} cannot be told. Number them from 0 on: sbatch --array=0-{n_job - 1}."
        )
    return Share((number - first) // step, n_job)


def _own_gpu(wanted: str, local_rank: int) -> str:
    import torch

    return f"cuda:{local_rank}" if wanted == "cuda" or torch.cuda.is_available() else wanted


class _Parts:
    def __init__(self, replays: list[Replay]) -> None:
        self._replays, self._number = replays, 0

    def take(self, digest: str) -> list[str] | None:
        replay = self._replays[self._number % len(self._replays)]
        self._number += 1
        try:
            answers = replay.take(digest)
        except OtherInput:
            answers = None
        if answers is None and digest:
            raise DataError(
                f"{replay.path} answers another input than the one that is there now. Delete it, and let its rank "
                "begin anew."
            )
        return answers

    def add(self, digest: str, n_line: int, answers: list[str]) -> None:
        raise AssertionError("everything is there")

    def close(self) -> None:
        for replay in self._replays:
            replay.close()


def together(paths: list[Path], found: list[Known]) -> _Parts:
    """The answers of all ranks, in the order of the windows. Taking them raises DataError if the input is another."""
    return _Parts([Replay(path, one.end) for path, one in zip(paths, found, strict=True)])


def finished_parts(paths: list[Path], fit: dict[str, Any], say: Callable[[str], object]) -> list[Known] | None:
    """Return what the journals of all ranks hold if all have finished; else None, and it is said who has not.

    Raises NmtError if one of them was made with another model or other options.
    """
    found = [known(path) for path in paths]
    missing = [rank for rank, one in enumerate(found) if one is None or SHARE not in one.marks]
    whole = [one for one in found if one is not None]
    for path, one in zip(paths, found, strict=True):
        if one is not None and SHARE in one.marks and one.fit != fit:
            raise NmtError(f"{path} was made with another model or other options. Delete it, and start its rank anew.")
    if missing:
        who = ", ".join(map(str, missing[:9])) + (", …" if len(missing) > 9 else "")
        say(f"this share is done; not yet that of rank {who} of {len(paths)}. The last one joins them")
        return None
    return whole


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """One process at a time is here. Others wait, and take over if it dies."""
    while (file := open_locked(path)) is None:
        time.sleep(0.1)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # whoever waits for it opens the next one
        file.close()
