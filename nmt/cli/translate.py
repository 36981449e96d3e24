"""nmt-translate: lines in, lines out, with the model of a run folder; scores, n-best lists, pictures of attention."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NoReturn

import torch
from tqdm import tqdm

from nmt.cli.arrivals import windows
from nmt.cli.command import add_override_flags, overrides_of, printable, run
from nmt.cli.translate_files import InputFile, check_count, check_paths, read_references
from nmt.cli.translate_report import print_examples, report_scores
from nmt.data.lines import count_lines, decode_line, read_stream, write_lines
from nmt.decoding.translator import Translation, Translator
from nmt.errors import MachineError, NmtError
from nmt.evaluation.attention import draw
from nmt.evaluation.attention_panels import Alignment, Heads, Layers
from nmt.recipe.options import DecodeConfig
from nmt.recipe.reader import read_recipe
from nmt.run import Run

_DESCRIPTION = """\
Translate lines with the model of the run folder RUN: nmt-translate RUN < in > out. One line out for each line in, in
order; a blank line stays blank. In a pipe, what has arrived is answered at once."""
_EPILOG = """\
Output: the translation; with --show-scores SCORE, a tab and the translation; with --decode.n_best above 1
NUMBER ||| TRANSLATION ||| SCORE for each hypothesis, best first, NUMBER being that of the input line, from 1. SCORE is
the log-probability over the length penalty."""
N_PICTURE = 3  # lines that are drawn where none are named


@dataclass
class _Job:
    """What is remembered while lines go through."""

    translator: Translator
    decode: DecodeConfig
    args: argparse.Namespace
    references: list[str] | None
    source_name: str
    n_read: int = 0
    n_answered: int = 0
    n_cut: int = 0
    sources: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    drawn: dict[int, Translation] = field(default_factory=dict)


def translate(args: argparse.Namespace) -> int:
    """The command behind the flags."""
    check_paths(args)
    references = read_references(args)
    if args.threads:
        torch.set_num_threads(args.threads)
    folder = Run(args.run)
    folder.recipe()  # says so if this is no run folder
    recipe = read_recipe(folder.recipe_file, overrides_of(args))
    model, _ = folder.load_model(_device(args.device), args.checkpoint)
    translator = Translator(model, folder.subwords(), recipe.decode)
    job = _Job(translator, recipe.decode, args, references, args.input or "<stdin>")
    with InputFile(args.input) as file, _progress(args) as bar:
        answers = _answers(job, file, bar)
        if args.output:
            write_lines(args.output, chain.from_iterable(answers))
        else:
            _write_stdout(answers)
    assert job.n_answered == job.n_read, (job.n_answered, job.n_read)
    if job.n_cut:
        _warn(f"{job.n_cut:,} translations were ended at the limit of decode.max_len_a and decode.max_len_b")
    if references is not None:
        check_count(job.n_answered, len(references), args)
        print_examples(job.sources, job.outputs, references, args.examples)
        report_scores(job.outputs, references, recipe.data.trg_lang, args.scores)
    if args.attention:
        _draw(job, recipe.data.src_lang, recipe.data.trg_lang)
    return 0


def _answers(job: _Job, file: BinaryIO, bar: "tqdm[NoReturn]") -> Iterator[list[str]]:
    """The lines to write, as soon as they are known: one list for each window of the input."""
    for window in windows(read_stream(file), job.decode.window):
        lines = [_decoded(raw, job.n_read + number, job.source_name) for number, raw in enumerate(window, start=1)]
        job.n_read += len(lines)
        written = []
        for line, translation in zip(lines, job.translator.translate(lines, bar.update), strict=True):
            job.n_answered += 1
            written.extend(_formatted(translation, job.n_answered, job.args.show_scores, job.decode.n_best))
            _remember(job, line, translation)
        yield written


def _decoded(raw: bytes, number: int, name: str) -> str:
    line, valid = decode_line(raw)
    if not valid:
        _warn(f"{name}:{number}: invalid UTF-8, read with replacement characters")
    return line


def _formatted(translation: Translation, number: int, show_scores: bool, n_best: int) -> list[str]:
    """What is written for one input line: one line, or one for each of the n best."""
    if n_best > 1:
        scores = [one.normalised for one in translation.hypotheses] or [0.0]
        return [f"{number} ||| {text} ||| {score:.6f}" for text, score in zip(translation.texts, scores, strict=True)]
    return [f"{translation.score:.6f}\t{translation.text}" if show_scores else translation.text]


def _remember(job: _Job, line: str, translation: Translation) -> None:
    """Keep what the end of the command needs of a line, and tell what the user should know about it."""
    number = job.n_answered
    if translation.warning:
        _warn(f"{job.source_name}:{number}: {translation.warning}")
    job.n_cut += bool(translation.hypotheses) and not translation.hypotheses[0].finished
    if job.references is not None:
        job.sources.append(line if job.args.examples else "")
        job.outputs.append(translation.text)
    if job.args.attention and translation.hypotheses:
        wanted = job.args.lines
        if number in wanted if wanted else len(job.drawn) < N_PICTURE:
            job.drawn[number] = translation


def _write_stdout(answers: Iterator[list[str]]) -> None:
    """Bytes, whatever the locale, and flushed window by window for whoever waits at the other end."""
    for lines in answers:
        sys.stdout.buffer.write("".join(line + "\n" for line in lines).encode("utf-8"))
        sys.stdout.buffer.flush()


def _draw(job: _Job, src_lang: str, trg_lang: str) -> None:
    args = job.args
    if missing := [str(number) for number in args.lines or () if number not in job.drawn]:
        raise NmtError(
            f"--lines {','.join(missing)}: nothing to draw there: the input has {job.n_read:,} lines, and a blank line "
            "has no attention."
        )
    if not job.drawn:
        raise NmtError(f"{job.source_name}: no line to draw the attention of: all {job.n_read:,} are blank.")
    alignments = []
    for number, translation in sorted(job.drawn.items()):
        weights, src_pieces, trg_pieces = job.translator.attention(translation)
        alignments.append(Alignment(weights, src_pieces, trg_pieces, f"{number}: {translation.text}"))
    draw(alignments, Path(args.attention), layers=args.layer, heads=args.head)
    _say(f"attention, {trg_lang} rows over {src_lang} columns: {args.attention}")


def _progress(args: argparse.Namespace) -> "tqdm[NoReturn]":
    """A bar after two seconds, where it cannot get between the lines that somebody reads."""
    shown = bool(args.output) or (sys.stderr.isatty() and not sys.stdout.isatty())
    total = count_lines(args.input) if args.input and shown else None
    return tqdm(total=total, desc="translating", unit=" lines", delay=2, disable=not shown, file=sys.stderr)


def _device(name: str) -> torch.device:
    """auto: the GPU if there is one. A GPU that was asked for and is not there is an error."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0]
        problem = MachineError(f"--device {name}: cannot be used: {reason}. Use --device cpu.")
        problem.exit_code = 2
        raise problem from None
    return device


def _warn(text: str) -> None:
    _say(f"warning: {text}")


def _say(text: str) -> None:
    tqdm.write(f"nmt-translate: {printable(text)}", file=sys.stderr)


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers from 1, like 1,2,5")
    return numbers


def _layers(text: str) -> Layers:
    words: dict[str, Layers] = {"all": "all", "last": "last"}
    return words.get(text) or _numbers(text)


def _heads(text: str) -> Heads:
    words: dict[str, Heads] = {"all": "all", "mean": "mean"}
    return words.get(text) or _numbers(text)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a count")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("nmt-translate", description=_DESCRIPTION, epilog=_EPILOG)
    add = parser.add_argument
    add("run", metavar="RUN", help="The run folder that nmt-train wrote.")
    add("--input", "-i", metavar="FILE", help="Read this file, plain or .gz, and not stdin.")
    add("--output", "-o", metavar="FILE", help="Write this file, there only when it is whole, and not stdout.")
    add("--overwrite", action="store_true", help="Replace output files that exist.")
    add("--ref", metavar="FILE", help="Raw reference: print BLEU, chrF, TER and exact match to stderr.")
    add("--scores", metavar="FILE", help="Also write the scores of --ref as JSON.")
    add(
        "--examples",
        type=_count,
        default=0,
        metavar="N",
        help="Print N sources, translations and references to stderr.",
    )
    add("--show-scores", action="store_true", help="Write the score and a tab before each translation.")
    add("--attention", metavar="FILE", help="Draw attention over source and target: a .png or an .html.")
    add(
        "--lines", type=_numbers, default=None, metavar="N,…", help="Lines to draw; the first three that are not blank."
    )
    add("--layer", type=_layers, default="last", metavar="N,…|all|last", help="Decoder layers to draw. [default: last]")
    add("--head", type=_heads, default="mean", metavar="N,…|all|mean", help="Heads to draw. [default: mean]")
    add(
        "--checkpoint",
        metavar="NAME",
        help="A checkpoint of the run, like update-00012000; by default its final model.",
    )
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1. [default: auto, the GPU if there is one]")
    add("--threads", type=_count, default=0, metavar="N", help="CPU threads; 0: one a core.")
    add_override_flags(parser, ["decode"])
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    return run("nmt-translate", translate, _parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
