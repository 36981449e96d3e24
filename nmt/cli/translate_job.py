"""The work of nmt-translate: lines in, lines out; given translations scored; pictures of attention."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, NoReturn

import torch
from tqdm import tqdm

from nmt.api import load
from nmt.cli.arrivals import windows
from nmt.cli.command import overrides_of, printable
from nmt.cli.translate_files import InputFile, check_count, check_flags, check_paths, read_references
from nmt.cli.translate_format import json_line, scored_line, text_lines, tsv_lines
from nmt.cli.translate_report import print_examples, report_scores, split_note, suspicious_note
from nmt.data.lines import count_lines, decode_line, read_lines, read_stream, write_lines
from nmt.decoding.suspicion import reasons
from nmt.decoding.translator import Translation, Translator
from nmt.errors import NmtError
from nmt.evaluation.attention import draw
from nmt.evaluation.attention_panels import Alignment
from nmt.recipe.reader import read_recipe

N_PICTURE = 3  # lines that are drawn where none are named


@dataclass
class _Job:
    """What is remembered while lines go through."""

    translator: Translator
    args: argparse.Namespace
    references: list[str] | None
    max_ratio: float
    source_name: str
    n_read: int = 0
    n_answered: int = 0
    n_cut: int = 0
    n_split: int = 0
    sources: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    drawn: dict[int, Translation] = field(default_factory=dict)
    suspicious: Counter[str] = field(default_factory=Counter)


def translate(args: argparse.Namespace) -> int:
    """The command behind the flags."""
    check_flags(args)
    check_paths(args)
    references = read_references(args)
    if args.threads:
        torch.set_num_threads(args.threads)
    model = load(args.run, checkpoint=args.checkpoint, device=args.device)
    recipe = read_recipe(model.run.recipe_file, _overrides(args))
    translator = model.translator(recipe.decode)
    job = _Job(translator, args, references, recipe.data.max_ratio, args.input or "<stdin>")
    with InputFile(args.input) as file, _progress(args) as bar:
        answers = _scores(job, file, bar) if args.score else _answers(job, file, bar)
        if args.output:
            write_lines(args.output, chain.from_iterable(answers))
        else:
            _write_stdout(answers)
    assert job.n_answered == job.n_read, (job.n_answered, job.n_read)
    if job.n_cut:
        _warn(f"{job.n_cut:,} translations were ended at the limit of decode.max_len_a and decode.max_len_b")
    if job.n_split:
        _say(split_note(job.n_split, job.n_answered, translator.limits))
    if note := suspicious_note(job.suspicious, job.n_answered):
        _say(note)
    if references is not None:
        check_count(job.n_answered, len(references), args.ref, args)
        print_examples(job.sources, job.outputs, references, args.examples)
        report_scores(job.outputs, references, recipe.data.trg_lang, args.scores)
    if args.attention:
        _draw(job, recipe.data.src_lang, recipe.data.trg_lang)
    return 0


def _overrides(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Options of the recipe that were given, --mbr written out; what is given by its own name goes before that."""
    given = overrides_of(args)
    short = [] if args.mbr is None else [("decode.samples", str(args.mbr)), ("decode.mbr", "chrf")]
    return [one for one in short if one[0] not in dict(given)] + given


def _read(job: _Job, file: BinaryIO) -> Iterator[list[tuple[str, bool]]]:
    """The lines of the input as they come, window by window, each with whether its bytes were text."""
    for window in windows(read_stream(file), job.translator.config.window):
        lines = [decode_line(raw) for raw in window]
        for number, (_, valid) in enumerate(lines, start=job.n_read + 1):
            if not valid:
                _warn(f"{job.source_name}:{number}: invalid UTF-8, read with replacement characters")
        job.n_read += len(lines)
        yield lines


def _answers(job: _Job, file: BinaryIO, bar: "tqdm[NoReturn]") -> Iterator[list[str]]:
    """The lines to write, as soon as they are known: one list for each window of the input."""
    for window in _read(job, file):
        lines = [line for line, _ in window]
        found = list(job.translator.translate(lines, bar.update))
        as_json = job.args.format == "jsonl"
        tokens = job.translator.token_log_probs(found) if as_json else [[] for _ in found]
        written = []
        for (line, valid), translation, told in zip(window, found, tokens, strict=True):
            job.n_answered += 1
            flags = _flags(job, line, valid, translation)
            written.extend(_formatted(job, line, translation, told, flags))
            _remember(job, line, translation)
        yield written


def _scores(job: _Job, file: BinaryIO, bar: "tqdm[NoReturn]") -> Iterator[list[str]]:
    """The same for given translations."""
    args = job.args
    given = read_lines(args.score)
    for window in _read(job, file):
        sources, targets = [line for line, _ in window], [line or "" for line in islice(given, len(window))]
        if len(targets) < len(sources):
            check_count(job.n_read, job.n_read - len(sources) + len(targets), args.score, args)
        written = []
        found = job.translator.score(sources, targets)
        for source, target, scored in zip(sources, targets, found, strict=True):
            job.n_answered += 1
            if scored.warning:
                _warn(f"{job.source_name}:{job.n_answered}: {scored.warning}")
            written.append(scored_line(source, target, scored, job.n_answered, args.format))
        bar.update(len(sources))
        yield written
    if surplus := sum(1 for _ in given):
        check_count(job.n_read, job.n_read + surplus, args.score, args)


def _flags(job: _Job, line: str, valid: bool, translation: Translation) -> list[str]:
    """What is odd about a line and its translation, by name."""
    if not translation.hypotheses:
        return ["blank"]
    known = {
        "invalid_utf8": not valid,
        "split": translation.split is not None,
        "cap": not translation.hypotheses[0].finished,
    }
    why = reasons(line, translation.text, job.max_ratio)
    job.suspicious.update(why)
    return [name for name, found in known.items() if found] + why


def _formatted(
    job: _Job, line: str, translation: Translation, token_log_probs: list[float], flags: list[str]
) -> list[str]:
    """What is written for one input line."""
    args, number = job.args, job.n_answered
    if args.format == "text":
        n_best = job.translator.config.n_best
        return text_lines(translation, number, show_scores=args.show_scores, n_best=n_best)
    if args.format == "tsv":
        return tsv_lines(translation, number)
    pieces = job.translator.subwords.trg.pieces
    return [json_line(line, translation, number, token_log_probs=token_log_probs, pieces=pieces, flags=flags)]


def _remember(job: _Job, line: str, translation: Translation) -> None:
    """Keep what the end of the command needs of a line, and tell what the user should know about it."""
    number = job.n_answered
    job.n_split += translation.split is not None
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
    doing = "scoring" if args.score else "translating"
    return tqdm(total=total, desc=doing, unit=" lines", delay=2, disable=not shown, file=sys.stderr)


def _warn(text: str) -> None:
    _say(f"warning: {text}")


def _say(text: str) -> None:
    tqdm.write(f"nmt-translate: {printable(text)}", file=sys.stderr)
