"""The work of nmt-translate: lines in, lines out; given translations scored; pictures of attention."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import torch
from tqdm import tqdm

from nmt.api import Model, choose_device, load
from nmt.cli.arrivals import windows
from nmt.cli.command import overrides_of, printable
from nmt.cli.translate_evidence import Witness
from nmt.cli.translate_files import (
    InputFile,
    check_count,
    check_flags,
    check_paths,
    check_references,
    read_references,
)
from nmt.cli.translate_format import json_line, scored_json, scored_line, text_lines, tsv_lines
from nmt.cli.translate_report import print_examples, report_scores, retry_note, split_note, suspicious_note
from nmt.cli.translate_requests import Reader, request_reader
from nmt.data.lines import count_lines, decode_line, read_lines, read_stream, write_lines
from nmt.decoding.request import Request
from nmt.decoding.retry import Answer, mend, tries
from nmt.decoding.suspicion import CAP, complaints
from nmt.decoding.translator import Translation, Translator
from nmt.errors import NmtError, RunError
from nmt.evaluation.attention import draw
from nmt.evaluation.attention_panels import Alignment, panels
from nmt.export.ctranslate2_engine import Loaded, is_exported
from nmt.recipe.reader import read_recipe

N_PICTURE = 3  # lines that are drawn where none are named


@dataclass
class _Job:
    """What is remembered while lines go through."""

    translator: Translator
    args: argparse.Namespace
    references: list[list[str]]
    max_ratio: float
    source_name: str
    request_of: Reader
    again: dict[str, Translator]  # what translates once more what looks wrong
    n_read: int = 0
    n_answered: int = 0
    n_cut: int = 0
    n_split: int = 0
    sources: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    drawn: dict[int, Translation] = field(default_factory=dict)
    suspicious: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)  # of what was translated once more

    def why(self, line: str, translation: Translation) -> list[str]:
        """What speaks against a translation."""
        return complaints(line, translation, self.max_ratio, self.translator.config.low_score)

    def witness(self) -> Witness | None:
        """Who sees how a window of translations comes about, where that is written."""
        if self.args.format != "jsonl":
            return None
        wanted = (self.args.layer, self.args.head) if self.args.with_attention else None
        return Witness(self.translator.subwords, wanted, attends=self.translator.attends)


def translate(args: argparse.Namespace) -> int:
    """The command behind the flags."""
    check_flags(args)
    check_paths(args)
    references = read_references(args)
    request_of = request_reader(args)
    if args.threads:
        torch.set_num_threads(args.threads)
    model = _load(args)
    recipe = read_recipe(model.run.recipe_file, _overrides(args))
    translator = model.translator(recipe.decode)
    if args.attention or args.with_attention:  # a layer that is not there is named before the work
        shape = (recipe.model.n_dec_layer, recipe.model.n_head, 0, 0)
        panels(Alignment(torch.empty(shape), [], []), args.layer, args.head)
    again = tries(recipe.decode) if args.retry_suspect else {}
    translators = {name: model.translator(decode) for name, decode in again.items()}
    name = args.input or "<stdin>"
    job = _Job(translator, args, references, recipe.data.max_ratio, name, request_of, translators)
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
    if note := retry_note(job.outcomes):
        _say(note)
    if references:
        check_references(job.n_answered, references, args)
        print_examples(job.sources, job.outputs, references, args.examples)
        report_scores(job.outputs, references, recipe.data.trg_lang, args.scores)
    if args.attention:
        _draw(job, recipe.data.src_lang, recipe.data.trg_lang)
    return 0


def _load(args: argparse.Namespace) -> Model | Loaded:
    """What is to translate."""
    if args.engine == "ctranslate2":
        return Loaded(args.run[0], choose_device(args.device))
    for folder in args.run:
        if is_exported(Path(folder)):
            raise RunError(f"{folder} is a model of CTranslate2: translate with --engine ctranslate2.")
    return load(args.run, checkpoint=args.checkpoint, device=args.device)


def _overrides(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Options of the recipe that were given, --mbr written out; what is given by its own name goes before that."""
    given = overrides_of(args)
    short = [] if args.mbr is None else [("decode.samples", str(args.mbr)), ("decode.mbr", "chrf")]
    return [one for one in short if one[0] not in dict(given)] + given


def _read(job: _Job, file: BinaryIO) -> Iterator[list[tuple[Request, bool]]]:
    """What the input asks for as it comes, window by window, and whether the bytes of each line were text."""

    def arriving() -> Iterator[tuple[Request, bool]]:
        for number, raw in enumerate(read_stream(file), start=1):
            line, valid = decode_line(raw)
            yield job.request_of(line, f"{job.source_name}:{number}"), valid

    for window in windows(arriving(), job.translator.config.window):
        for number, (_, valid) in enumerate(window, start=job.n_read + 1):
            if not valid:
                _warn(f"{job.source_name}:{number}: invalid UTF-8, read with replacement characters")
        job.n_read += len(window)
        yield window


def _answers(job: _Job, file: BinaryIO, bar: "tqdm[NoReturn]") -> Iterator[list[str]]:
    """The lines to write, as soon as they are known: one list for each window of the input."""
    for window in _read(job, file):
        requests = [request for request, _ in window]
        found = mend(requests, list(job.translator.translate(requests, bar.update)), job.again, job.why)
        told = _told(job, [one.translation for one in found])
        written = []
        for (request, valid), answer, evidence in zip(window, found, told, strict=True):
            job.n_answered += 1
            flags = _flags(job, valid, answer)
            written.extend(_formatted(job, request.source, answer, evidence, flags))
            _remember(job, request.source, answer.translation)
        yield written


def _told(job: _Job, translations: list[Translation]) -> list[dict[str, Any]]:
    """How each translation came about, where that is written."""
    if (witness := job.witness()) is None:
        return [{} for _ in translations]
    told = job.translator.token_log_probs(translations, witness.eye)
    return [
        witness.fields(number, one.src_ids, one.hypotheses[0].ids if one.hypotheses else [], told[number])
        for number, one in enumerate(translations)
    ]


def _scores(job: _Job, file: BinaryIO, bar: "tqdm[NoReturn]") -> Iterator[list[str]]:
    """The same for given translations."""
    args = job.args
    given = read_lines(args.score)
    for window in _read(job, file):
        sources, targets = (
            [request.source for request, _ in window],
            [line or "" for line in islice(given, len(window))],
        )
        if len(targets) < len(sources):
            check_count(job.n_read, job.n_read - len(sources) + len(targets), args.score, args)
        written = []
        witness = job.witness()
        found = job.translator.score(sources, targets, witness.eye if witness else None)
        for number, (source, target, scored) in enumerate(zip(sources, targets, found, strict=True)):
            job.n_answered += 1
            if scored.warning:
                _warn(f"{job.source_name}:{job.n_answered}: {scored.warning}")
            if witness:
                evidence = witness.fields(number, scored.src_ids, scored.trg_ids, scored.token_log_probs)
                written.append(scored_json(source, target, scored, job.n_answered, evidence))
            else:
                written.append(scored_line(target, scored, job.n_answered, args.format))
        bar.update(len(sources))
        yield written
    if surplus := sum(1 for _ in given):
        check_count(job.n_read, job.n_read + surplus, args.score, args)


def _flags(job: _Job, valid: bool, answer: Answer) -> list[str]:
    """What is odd about a line and its translation, by name."""
    if not answer.translation.hypotheses:
        return ["blank"]
    known = {"invalid_utf8": not valid, "split": answer.translation.split is not None}
    job.suspicious.update(name for name in answer.reasons if name != CAP)  # of that one there is a warning
    if answer.outcome:
        job.outcomes[answer.outcome] += 1
    return [name for name, found in known.items() if found] + answer.reasons


def _formatted(job: _Job, line: str, answer: Answer, evidence: dict[str, Any], flags: list[str]) -> list[str]:
    """What is written for one input line."""
    args, number, translation = job.args, job.n_answered, answer.translation
    if args.format == "text":
        n_best = job.translator.config.n_best
        return text_lines(translation, number, show_scores=args.show_scores, n_best=n_best)
    if args.format == "tsv":
        return tsv_lines(translation, number)
    beside = {"flags": flags, **({"retry": answer.retry} if args.retry_suspect else {})}
    return [json_line(line, translation, number, evidence=evidence, beside=beside)]


def _remember(job: _Job, line: str, translation: Translation) -> None:
    """Keep what the end of the command needs of a line, and tell what the user should know about it."""
    number = job.n_answered
    job.n_split += translation.split is not None
    job.n_cut += bool(translation.hypotheses) and not translation.hypotheses[0].finished
    if job.references:
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
