"""The work of nmt-translate: the model and its workers, and the way of the lines through them, to a file or to stdout.

How lines are read is in `reading.py`, how answers are written in `files.py`, and what is said of them all at the end
in `tally.py`.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from nmt.cli.begin import Stop, write_stdout
from nmt.cli.translating.answering import (
    BUDGET,
    Answering,
    Pool,
    Recall,
    answer_of,
    fingerprints,
    n_worker,
    recipe_of,
    scored_of,
)
from nmt.cli.translating.files import (
    Alignments,
    InputFile,
    answer_lines,
    check_outputs,
    check_paths,
    files_of_pipes,
    follow_links,
    name_of,
    read_references,
    scored_json,
    scored_line,
)
from nmt.cli.translating.flags import SHARE, Share, alone, finished_parts, share_of, together
from nmt.cli.translating.journal import Journal, known
from nmt.cli.translating.reading import Reading
from nmt.cli.translating.requests import (
    Record,
    Solved,
    Window,
    check_flags,
    check_format,
    checking,
    fill_in,
    request_reader,
    solve,
)
from nmt.cli.translating.tally import Tally, check_attention, say, small_batches_notes, unfinished_notes
from nmt.data.lines import count_lines
from nmt.decoding.request import Request
from nmt.decoding.translator import Translator
from nmt.device import choose_device
from nmt.extras import version
from nmt.files import remove_leftovers, replacing, sha256_of
from nmt.models.prepacked import half_is_faster
from nmt.progress import Bar
from nmt.recipe.options import Recipe
from nmt.run import Run

# What becomes of --output.


OUTPUT = "output"  # the mark of an output that is written and about to get its name

# Flags on which no answer depends. All others are part of what a journal was made with; the runs, their checkpoints
# and the options of decoding are so by what they lead to.
_NO_MATTER = (
    *("run", "checkpoint", "mbr", "input", "output", "overwrite", "ref", "scores", "examples", "show_scores"),
    *("alignments", "attention", "attention_of", "lines"),
    *("threads", "workers", "rank", "ranks", "debug", "pipes"),
)
_OF_ATTENTION = ("layer", "head")  # matter where they are written for each line


def fit_of(args: argparse.Namespace, recipe: Recipe, device: str) -> dict[str, Any]:
    """All that answers depend on, beside the lines, in values that JSON gives back. device: its kind, cpu or cuda."""
    no_matter = _NO_MATTER if args.with_attention else _NO_MATTER + _OF_ATTENTION
    flags = {f"--{name}": value for name, value in vars(args).items() if ":" not in name and name not in no_matter}
    flags |= {"--device": device, "--score": bool(args.score)}
    flags |= {f"--{name}": name_of(args, path) for name in ("terms", "avoid") if (path := getattr(args, name))}
    flags |= {"word alignments": args.format == "jsonl" or bool(args.alignments)}
    decode = {f"decode.{name}": value for name, value in recipe.decode.model_dump(mode="json").items()}
    if device == "cpu":  # where there are none
        del decode["decode.cuda_graphs"]
    about = {"nmt": version(), "model": fingerprints(args), "memory": BUDGET}
    about |= {"data.trg_lang": recipe.data.trg_lang, "data.max_ratio": recipe.data.max_ratio}
    about |= {"usual ratios": Run(args.run[0]).usual_ratios()}
    found: dict[str, Any] = json.loads(json.dumps({**about, **flags, **decode}))
    return found


def is_finishing(args: argparse.Namespace, share: Share) -> bool:
    """Whether an earlier process came so far that files of its end, which it had found free, may be there."""
    return bool(args.output) and any(OUTPUT in _marks(path) for path in share.journals(Path(args.output)))


@contextmanager
def kept(
    args: argparse.Namespace, share: Share, fit: dict[str, Any], say: Callable[[str], object]
) -> Iterator[Journal]:
    """The journal of this process. It says what was there before, and what is there if it comes to no good end."""
    with Journal(share.journal(Path(args.output)), fit, say) as journal:
        if journal.n_line:
            say(f"{journal.path.name} has the answers to {journal.n_line:,} lines: going on from there")
        try:
            yield journal
        except BaseException:
            if journal.n_line and journal.path.exists():
                say(
                    f"{journal.path.name} keeps the answers to {journal.n_line:,} lines; the same command goes on there"
                )
            raise


def check_still_free(args: argparse.Namespace, share: Share) -> None:
    """Raise NmtError if there is a file in the place of an output that no earlier process of this journal put there.

    One that was killed just before it could delete the journal left an output that is whole; it may be replaced.
    """
    output = Path(args.output)
    told = [marks[OUTPUT] for marks in map(_marks, share.journals(output)) if OUTPUT in marks]
    if not told:
        check_outputs(args, finishing=False, worked=True)
    elif not output.is_file() or [output.stat().st_size, sha256_of(output)] not in told:
        check_outputs(args, finishing=False, only=("output",), worked=True)


def write_whole(
    args: argparse.Namespace, share: Share, lines: Iterable[str], journal: Journal, finish: Callable[[], None]
) -> None:
    """Write the output, and delete all journals, whose answers are in it. journal: that of this process.

    finish: reports on it, before it gets its name: so that a restart reports again. What it could not do is raised when
    the output is there.
    """
    for name in filter(None, (args.output, args.scores, args.alignments)):
        remove_leftovers(Path(name))
    digest = hashlib.sha256()
    wrong: Exception | None = None
    with replacing(Path(args.output)) as file:
        for line in lines:
            assert "\n" not in line, "a line feed inside a line would shift every line after it"
            raw = line.encode("utf-8") + b"\n"
            digest.update(raw)
            file.write(raw)
        check_still_free(args, share)  # hours may have passed
        journal.mark(OUTPUT, [file.tell(), digest.hexdigest()])
        try:
            finish()
        except Exception as error:
            wrong = error
    for path in share.journals(Path(args.output)):
        path.unlink(missing_ok=True)
    if wrong is not None:
        raise wrong


def _marks(path: Path) -> dict[str, Any]:
    found = known(path)
    return found.marks if found else {}


@dataclass(frozen=True)
class _Job:
    """What does the work. ahead: windows that are handed out before their turn."""

    args: argparse.Namespace
    share: Share
    stop: Stop
    answering: Answering
    pool: Pool
    ahead: int
    reading: Reading
    tally: Tally

    @property
    def translator(self) -> Translator:
        return self.answering.translator


def translate(args: argparse.Namespace) -> int:
    """The command behind the flags. Returns the exit code; raises NmtError."""
    check_flags(args)
    fill_in(args)
    with files_of_pipes(args):
        return _translate(args)


def _translate(args: argparse.Namespace) -> int:
    follow_links(args)
    share = share_of(args)
    check_paths(args, finishing=is_finishing(args, share))
    references = read_references(args)
    with Stop() as stop, Alignments(args) as alignments:
        tally = Tally(args, references, alignments)
        if args.output:
            _to_file(args, share, stop, tally)
        else:
            with _job(args, share, stop, tally) as job:
                _write_stdout(job)
                tally.finish(job.answering)
    return 0


@contextmanager
def _job(args: argparse.Namespace, share: Share, stop: Stop, tally: Tally) -> Iterator[_Job]:
    """The model is loaded and the workers are there."""
    request_of, loaded = request_reader(args), fingerprints(args)
    device = choose_device(args.device)
    counts = args.workers == "auto" or device.type == "cuda"
    n_line = count_lines(args.input) if args.input and counts else None
    workers = n_worker(args.workers, args.threads or 1, torch.get_num_threads(), device.type, n_line)
    if args.threads or workers > 1:
        torch.set_num_threads(args.threads or 1)
    answering = Answering(args)
    few = small_batches_notes(answering.recipe.decode, device.type, n_line)
    for note in (*unfinished_notes(answering.unfinished), *few):
        say(note)
    if device.type == "cpu" and answering.recipe.decode.precision == "bf16" and not half_is_faster():
        say("note: decode.precision bf16 is slower than fp32 on this processor: take fp32")
    check_attention(args, answering.recipe.model, attends=answering.translator.attends)
    check_format(args, answering.recipe.decode)
    sources = answering.translator.sources
    if args.input_format == "jsonl":  # where each line may say into which language, and what it asks
        request_of = checking(request_of, args, answering.recipe.decode, sources)
    else:
        sources.codec_of(Request(""))
    with Pool(answering, args, workers, loaded) as pool:
        # Of a file only, since a stream may wait for an answer.
        ahead = pool.n_worker if args.input and pool.n_worker > 1 else 0
        reading = Reading(args, stop, request_of, answering.translator.config.window, ahead > 0)
        yield _Job(args, share, stop, answering, pool, ahead, reading, tally)


def _to_file(args: argparse.Namespace, share: Share, stop: Stop, tally: Tally) -> None:
    """The share of this rank, in its journal; and from all journals the output, if no other rank is still at work."""
    fit = fit_of(args, recipe_of(args), choose_device(args.device).type)
    output, paths = Path(args.output), share.journals(Path(args.output))
    with kept(args, share, fit, say) as journal:
        check_still_free(args, share)
        with _job(args, share, stop, tally) as job:
            if share.n_rank == 1:
                answers = _answers(job, _progress(job, journal.n_line), journal)
                write_whole(args, share, chain.from_iterable(answers), journal, lambda: tally.finish(job.answering))
                return
            _do_share(job, journal)
            with alone(output.with_name(f"{output.name}.journal-lock")):
                if not journal.path.exists():
                    say(f"another rank has joined all parts into {output}")
                elif (parts := finished_parts(paths, fit, say)) is not None:
                    with closing(together(paths, parts)) as record:
                        lines = chain.from_iterable(_answers(job, _progress(job, 0, "joining"), record))
                        write_whole(args, share, lines, journal, lambda: tally.finish(job.answering))


def _do_share(job: _Job, journal: Journal) -> None:
    """Answer what falls to this rank. What there is to say about its lines is said when all parts are joined."""
    with InputFile(job.args.input) as file, _progress(job, journal.n_line) as bar:
        for _ in _solved(job, job.reading.windows(file, None), bar, journal, mine=job.share.has):
            pass
    journal.mark(SHARE, job.share.rank)


def _solved(
    job: _Job,
    coming: Iterator[Window],
    bar: Bar,
    record: Record | None,
    mine: Callable[[int], bool] = lambda number: True,
) -> Iterator[Solved]:
    """Windows with the answers of the model."""
    # What is told of a line beside its translation weighs more than that.
    told = {20: job.args.with_attention, 3: job.args.format == "jsonl", 2: bool(job.args.alignments), 1: True}
    weight = next(times for times, is_told in told.items() if is_told)
    recall = Recall(weight * (1 if job.args.score else job.translator.config.n_best))
    yield from solve(
        coming, job.pool, recall, record, ahead=job.ahead, mine=mine, on_progress=bar.update, on_live=bar.unpause
    )


def _answers(job: _Job, bar: Bar, record: Record | None = None) -> Generator[list[str], None, None]:
    """The lines to write, as soon as they are known: one list for each window of the input."""
    with InputFile(job.args.input) as file, bar:
        for window, answers in _solved(job, job.reading.windows(file, job.tally), bar, record):
            yield _scores(job, window, answers) if job.args.score else _translations(job, window, answers)


def _translations(job: _Job, window: Window, answers: list[str]) -> list[str]:
    """What is written for a window."""
    written, n_best = [], job.translator.config.n_best
    for line, text in zip(window.lines, answers, strict=True):
        told = answer_of(text)
        flags, number = job.tally.add(line.text, line.odd, told), job.tally.n_answered
        written.extend(answer_lines(job.args, line, number, told.answer, told.evidence, flags, n_best=n_best))
    return written


def _scores(job: _Job, window: Window, answers: list[str]) -> list[str]:
    """What is written for a window of lines whose translations were given."""
    written = []
    for line, (*_, target), text in zip(window.lines, window.keys, answers, strict=True):
        told = scored_of(text)
        job.tally.add_score(told)
        number = job.tally.n_answered
        if job.args.format == "jsonl":
            written.append(scored_json(line, target, told.scored, number, told.evidence))
        else:
            written.append(scored_line(target, told.scored, number, job.args.format))
    return written


def _write_stdout(job: _Job) -> None:
    """Bytes, whatever the locale, and flushed window by window for whoever waits at the other end."""
    with job.stop.finishing(), closing(_answers(job, _progress(job))) as answers:
        for lines in answers:
            write_stdout("".join(line + "\n" for line in lines))
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
