"""The work of nmt-translate: lines in, lines out; given translations scored; pictures of attention."""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

import torch

from nmt.api import choose_device
from nmt.cli.arrivals import PATIENCE, windows
from nmt.cli.command import printable
from nmt.cli.stop import Stop
from nmt.cli.translate_alignments import Alignments, wants_alignments
from nmt.cli.translate_attention import check_attention, draw_attention
from nmt.cli.translate_engine import Engine, answer_of, fingerprints, key_of, recipe_of, scored_of
from nmt.cli.translate_evidence import WORDS
from nmt.cli.translate_files import (
    InputFile,
    check_count,
    check_flags,
    check_format,
    check_paths,
    check_references,
    follow_links,
    read_references,
)
from nmt.cli.translate_format import json_line, pair_line, scored_json, scored_line, text_lines, tsv_lines
from nmt.cli.translate_journal import Journal
from nmt.cli.translate_memory import Memory
from nmt.cli.translate_output import check_still_free, fit_of, is_finishing, kept, write_whole
from nmt.cli.translate_parts import SHARE, Share, alone, finished_parts, share_of, together
from nmt.cli.translate_report import (
    input_notes,
    print_examples,
    report_scores,
    retry_note,
    split_note,
    suspicious_note,
    unfinished_notes,
)
from nmt.cli.translate_requests import Reader, checking, request_reader
from nmt.cli.translate_windows import Record, Solved, Window, solve
from nmt.cli.translate_workers import Pool, n_worker
from nmt.data.lines import count_lines, decode_line, read_lines, read_stream
from nmt.decoding.request import Request
from nmt.decoding.retry import Answer
from nmt.decoding.suspicion import CAP
from nmt.decoding.translation import Translation
from nmt.decoding.translator import Translator
from nmt.progress import Bar

N_PICTURE = 3  # lines that are drawn where none are named


@dataclass
class _Job:
    """What does the work, and what is remembered while lines go through."""

    args: argparse.Namespace
    share: Share
    stop: Stop
    references: list[list[str]]
    engine: Engine
    pool: Pool
    request_of: Reader
    alignments: Alignments
    n_read: int = 0
    n_answered: int = 0
    n_cut: int = 0
    n_split: int = 0
    sources: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    drawn: dict[int, tuple[str, Translation]] = field(default_factory=dict)
    suspicious: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)  # of what was translated once more
    notes: Counter[str] = field(default_factory=Counter)  # what is odd but harmless in the input

    @property
    def translator(self) -> Translator:
        return self.engine.translator

    @property
    def source_name(self) -> str:
        return self.args.input or "<stdin>"

    @property
    def ahead(self) -> int:
        """Windows that are handed out before their turn: of a file only, since a stream may wait for an answer."""
        return self.pool.n_worker if self.args.input and self.pool.n_worker > 1 else 0


def translate(args: argparse.Namespace) -> int:
    """The command behind the flags."""
    check_flags(args)
    follow_links(args)
    share = share_of(args)
    check_paths(args, finishing=is_finishing(args, share))
    references = read_references(args)
    with Stop() as stop, Alignments(args) as alignments:
        if args.output:
            _to_file(args, share, stop, references, alignments)
        else:
            with _job(args, share, stop, references, alignments) as job:
                _write_stdout(job)
                _finish(job)
    return 0


@contextmanager
def _job(
    args: argparse.Namespace, share: Share, stop: Stop, references: list[list[str]], alignments: Alignments
) -> Iterator[_Job]:
    """The model is loaded and the workers are there."""
    request_of, loaded = request_reader(args), fingerprints(args)
    n_line = count_lines(args.input) if args.input and args.workers == "auto" else None
    device = choose_device(args.device).type
    workers = n_worker(args.workers, args.threads or 1, torch.get_num_threads(), device, n_line)
    if args.threads or workers > 1:
        torch.set_num_threads(args.threads or 1)
    engine = Engine(args)
    for note in unfinished_notes(engine.unfinished):
        _say(note)
    check_attention(args, engine.recipe.model, attends=engine.translator.attends)
    check_format(args, engine.recipe.decode)
    sources = engine.translator.sources
    if args.input_format == "jsonl":  # where each line may say into which language, and what it asks
        request_of = checking(request_of, args, engine.recipe.decode, sources)
    else:
        sources.codec_of(Request(""))
    with Pool(engine, args, workers, loaded) as pool:
        yield _Job(args, share, stop, references, engine, pool, request_of, alignments)


def _to_file(
    args: argparse.Namespace, share: Share, stop: Stop, references: list[list[str]], alignments: Alignments
) -> None:
    """The share of this rank, in its journal; and from all journals the output, if no other rank is still at work."""
    fit = fit_of(args, recipe_of(args), choose_device(args.device).type)
    output, paths = Path(args.output), share.journals(Path(args.output))
    with kept(args, share, fit, _say) as journal:
        check_still_free(args, share)
        with _job(args, share, stop, references, alignments) as job:
            if share.n_rank == 1:
                answers = _answers(job, _progress(job, journal.n_line), journal)
                write_whole(args, share, chain.from_iterable(answers), journal, lambda: _finish(job))
                return
            _do_share(job, journal)
            with alone(output.with_name(f"{output.name}.journal-lock")):
                if not journal.path.exists():
                    _say(f"another rank has joined all parts into {output}")
                elif (parts := finished_parts(paths, fit, _say)) is not None:
                    with closing(together(paths, parts)) as record:
                        answers = _answers(job, _progress(job, 0, "joining"), record)
                        write_whole(args, share, chain.from_iterable(answers), journal, lambda: _finish(job))


def _do_share(job: _Job, journal: Journal) -> None:
    """Answer what falls to this rank. What there is to say about its lines is said when all parts are joined."""
    with InputFile(job.args.input) as file, _progress(job, journal.n_line) as bar:
        for _ in _solved(job, _read(job, file, quiet=True), bar, journal, mine=job.share.has):
            pass
    journal.mark(SHARE, job.share.rank)
    job.n_read = 0


def _finish(job: _Job) -> None:
    """What is reported when every line has its answer."""
    args, trg_lang = job.args, job.translator.config.trg_lang or job.engine.recipe.data.trg_lang
    assert job.n_answered == job.n_read, (job.n_answered, job.n_read)
    for note in input_notes(job.notes, job.source_name):
        _say(note)
    if job.n_cut:
        _warn(f"{job.n_cut:,} translations were ended at the limit of decode.max_len_a and decode.max_len_b")
    if job.n_split:
        _say(split_note(job.n_split, job.n_answered, job.translator.limits))
    if note := suspicious_note(job.suspicious, job.n_answered):
        _say(note)
    if note := retry_note(job.outcomes):
        _say(note)
    if wants_alignments(args):
        job.alignments.finish(job.n_answered, _say)
    if job.references:
        check_references(job.n_answered, job.references, args)
        print_examples(job.sources, job.outputs, job.references, args.examples)
        report_scores(job.outputs, job.references, trg_lang, args.scores)
    if args.attention:
        langs = job.engine.recipe.data.src_lang, trg_lang
        draw_attention(args, job.translator, job.drawn, langs, job.source_name, job.n_read)
        _say(f"attention: {args.attention}")


def _read(job: _Job, file: BinaryIO, *, quiet: bool = False) -> Iterator[Window]:
    """The lines of the input as they come, window by window, with the given translations under --score."""
    args = job.args
    given = read_lines(args.score) if args.score else iter(())
    # Where nobody waits for an answer, windows are full: then a restart cuts the same ones.
    patience = None if args.input or args.output else PATIENCE
    arriving = _arriving(file, job.request_of, job.source_name, Counter() if quiet else job.notes)
    coming = windows(arriving, job.translator.config.window, patience)
    while True:
        with job.stop.finishing(bool(job.ahead)):  # an idle command need not wait for a line to end
            window = next(coming, None)
        if window is None:
            break
        for number, (_, valid) in enumerate(window, start=job.n_read + 1):
            if not valid and not quiet:
                _warn(f"{job.source_name}:{number}: invalid UTF-8, read with replacement characters")
        job.n_read += len(window)
        lines = [(request.source, valid) for request, valid in window]
        keys = [key_of(request) for request, _ in window]
        if args.score:
            targets = [line or "" for line in islice(given, len(lines))]
            if len(targets) < len(lines):
                check_count(job.n_read, job.n_read - len(lines) + len(targets), args.score, args)
            keys = [(*key, target) for key, target in zip(keys, targets, strict=True)]
        yield Window(lines, keys)
    if surplus := sum(1 for _ in given):
        check_count(job.n_read, job.n_read + surplus, args.score, args)


def _arriving(file: BinaryIO, request_of: Reader, name: str, notes: Counter[str]) -> Iterator[tuple[Request, bool]]:
    """Requests, and whether their lines were valid UTF-8. A thread reads them that may outlive the job, and then must
    not be the last to know the model: to let go of tensors while Python ends would abort the process.
    """
    for number, raw in enumerate(read_stream(file, name, notes), start=1):
        line, valid = decode_line(raw)
        yield request_of(line, f"{name}:{number}"), valid


def _solved(
    job: _Job,
    coming: Iterator[Window],
    bar: Bar,
    record: Record | None,
    mine: Callable[[int], bool] = lambda number: True,
) -> Iterator[Solved]:
    """Windows with the answers of the model."""
    # What is told of a line beside its translation weighs more than that.
    told = {20: job.args.with_attention, 3: job.args.format == "jsonl", 2: wants_alignments(job.args), 1: True}
    weight = next(times for times, is_told in told.items() if is_told)
    memory = Memory(weight * (1 if job.args.score else job.translator.config.n_best))
    yield from solve(
        coming, job.pool, memory, record, ahead=job.ahead, mine=mine, on_progress=bar.update, on_live=bar.unpause
    )


def _answers(job: _Job, bar: Bar, record: Record | None = None) -> Generator[list[str], None, None]:
    """The lines to write, as soon as they are known: one list for each window of the input."""
    with InputFile(job.args.input) as file, bar:
        for window, answers in _solved(job, _read(job, file), bar, record):
            yield _scores(job, window, answers) if job.args.score else _translations(job, window, answers)


def _translations(job: _Job, window: Window, answers: list[str]) -> list[str]:
    """What is written for a window."""
    written = []
    for (line, valid), text in zip(window.lines, answers, strict=True):
        told = answer_of(text)
        job.n_answered += 1
        flags = _flags(job, valid, told.answer)
        written.extend(_formatted(job, line, told.answer, told.evidence, flags))
        _remember(job, line, told.answer.translation)
        job.alignments.add(job.n_answered, line, told.answer.translation.text, told.evidence.get(WORDS, ""))
    return written


def _scores(job: _Job, window: Window, answers: list[str]) -> list[str]:
    """The same for given translations."""
    written = []
    for (source, *_, target), text in zip(window.keys, answers, strict=True):
        told = scored_of(text)
        job.n_answered += 1
        if told.scored.warning:
            _warn(f"{job.source_name}:{job.n_answered}: {told.scored.warning}")
        job.alignments.add(job.n_answered, source, target, told.evidence.get(WORDS, ""))
        if job.args.format == "jsonl":
            written.append(scored_json(source, target, told.scored, job.n_answered, told.evidence))
        else:
            written.append(scored_line(target, told.scored, job.n_answered, job.args.format))
    return written


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
    if args.format == "pairs":
        return [pair_line(line, translation, flags)]
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
            job.drawn[number] = line, translation


def _write_stdout(job: _Job) -> None:
    """Bytes, whatever the locale, and flushed window by window for whoever waits at the other end."""
    with job.stop.finishing(), closing(_answers(job, _progress(job))) as answers:
        for lines in answers:
            sys.stdout.buffer.write("".join(line + "\n" for line in lines).encode("utf-8"))
            sys.stdout.buffer.flush()
            job.stop.ask()


def _progress(job: _Job, n_known: int = 0, doing: str | None = None) -> Bar:
    """A bar where it cannot get between the lines that somebody reads. n_known: lines before; doing: not the share."""
    args = job.args
    shown = bool(args.output) or (sys.stderr.isatty() and not sys.stdout.isatty())
    total = count_lines(args.input) if args.input and shown else None
    if total is not None and doing is None:
        total = job.share.n_line(total, job.translator.config.window)
    doing = doing or ("scoring" if args.score else "translating")
    return Bar(desc=doing, total=total, initial=n_known, unit=" lines", disable=not shown)


def _warn(text: str) -> None:
    _say(f"warning: {text}")


def _say(text: str) -> None:
    Bar.write(f"nmt-translate: {printable(text)}", file=sys.stderr)
