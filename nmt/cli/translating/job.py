"""Work of nmt-translate: read windows of lines, translate them, write them in order; to stdout, or by way of a journal.

Lines are read in `input.py`, translated in `workers.py`, written in `output.py`; `journal.py` keeps their results.
"""

import argparse
import hashlib
import json
import sys
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from nmt.cli.begin import Stop, write_stdout
from nmt.cli.translating.files import (
    check_outputs,
    check_paths,
    files_of_pipes,
    follow_links,
    name_of,
    read_references,
)
from nmt.cli.translating.input import Reader, Window, checking, open_input, read_windows, request_reader
from nmt.cli.translating.journal import SHARE, Journal, Ranks, Results, exclusive, joined, known, ranks_of
from nmt.cli.translating.output import Alignments, Report, check_attention, output_lines, say
from nmt.cli.translating.workers import (
    LineResult,
    LineTranslator,
    WorkerPool,
    fingerprints,
    n_worker,
    recipe_of,
)
from nmt.data.lines import count_lines
from nmt.decoding.request import Request
from nmt.device import choose_device
from nmt.errors import NmtError
from nmt.extras import version
from nmt.files import remove_leftovers, replacing, sha256_of
from nmt.models.prepacked import half_is_faster
from nmt.progress import Bar
from nmt.recipe.decode_options import DecodeConfig
from nmt.recipe.options import Recipe
from nmt.run import Run

OUTPUT = "output"  # the mark of an output that is written and about to get its name

# Flags on which no result depends. All others are part of what a journal was made with; the runs, their checkpoints
# and the options of decoding are so by their content.
_NO_MATTER = (
    *("run", "checkpoint", "mbr", "input", "output", "overwrite", "ref", "scores", "examples", "show_scores"),
    *("alignments", "attention", "attention_of", "lines"),
    *("threads", "workers", "rank", "ranks", "debug", "pipes"),
)
_OF_ATTENTION = ("layer", "head")  # matter where they are written for each line


def translate(args: argparse.Namespace) -> int:
    """Run the command behind the flags. Returns the exit code; raises NmtError."""
    with files_of_pipes(args):
        follow_links(args)
        ranks = ranks_of(args)
        # Files that an earlier process had found free, and wrote at its end, may be there.
        finishing = bool(args.output) and any(OUTPUT in _marks(path) for path in ranks.journals(Path(args.output)))
        check_paths(args, finishing=finishing)
        references = read_references(args)
        with Stop() as stop, Alignments(args) as alignments:
            report = Report(args, references, alignments)
            if args.output:
                _to_file(args, ranks, stop, report)
            else:
                with _job(args, ranks, stop, report) as job:
                    # As bytes, whatever the locale, and flushed window by window for the reader at the other end.
                    with stop.finishing(), closing(_written(job, _progress(job))) as windows:
                        for lines in windows:
                            write_stdout("".join(line + "\n" for line in lines))
                            stop.ask()
                    report.finish(job.lines)
    return 0


@dataclass(frozen=True)
class _Job:
    """The loaded model, its workers, and what lines pass on the way. ahead: windows in work at once, less one."""

    args: argparse.Namespace
    ranks: Ranks
    stop: Stop
    lines: LineTranslator
    pool: WorkerPool
    ahead: int
    request_of: Reader
    report: Report

    @property
    def config(self) -> DecodeConfig:
        """The options of decoding."""
        return self.lines.translator.config


@contextmanager
def _job(args: argparse.Namespace, ranks: Ranks, stop: Stop, report: Report) -> Iterator[_Job]:
    """Load the model and start the workers."""
    request_of, loaded = request_reader(args), fingerprints(args)
    device = choose_device(args.device)
    counts = args.workers == "auto" or device.type == "cuda"
    n_line = count_lines(args.input) if args.input and counts else None
    workers = n_worker(args.workers, args.threads or 1, torch.get_num_threads(), device.type, n_line)
    if args.threads or workers > 1:
        torch.set_num_threads(args.threads or 1)
    lines = LineTranslator(args)
    decode, sources = lines.recipe.decode, lines.translator.sources
    for run, name in lines.unfinished.items():
        goes_on = "training goes on since its model was chosen; translating with that, and with others by --checkpoint"
        say(f"note: {run}: {f'training has not ended; translating with {name}' if name else goes_on}")
    for note in small_batches_notes(decode, device.type, n_line):
        say(note)
    if device.type == "cpu" and decode.precision == "bf16" and not half_is_faster():
        say("note: decode.precision bf16 is slower than fp32 on this processor: take fp32")
    check_attention(args, lines.recipe.model, attends=lines.translator.attends)
    if args.format == "pairs" and decode.n_best > 1:
        raise NmtError(
            f"--format pairs has the best translation of each line, but decode.n_best is {decode.n_best}: set it to 1. "
            "For several translations of a line draw samples, in a file for each of several --decode.seed."
        )
    for flag in ("terms", "keep"):
        if decode.samples and getattr(args, flag):
            raise NmtError(f"--{flag}: phrases can be required of beam search only: set decode.samples to 0.")
    if args.input_format == "jsonl":  # where each line may have a language and constraints of its own
        request_of = checking(request_of, args, decode, sources)
    else:
        sources.codec_of(Request(""))
    with WorkerPool(lines, args, workers, loaded) as pool:
        # Of a file only, since a stream may wait for an answer.
        ahead = pool.n_worker if args.input and pool.n_worker > 1 else 0
        yield _Job(args, ranks, stop, lines, pool, ahead, request_of, report)


def small_batches_notes(config: DecodeConfig, device: str, n_line: int | None) -> list[str]:
    """Advise larger batches where many lines are translated on a GPU with those of a CPU. n_line: None if unknown."""
    usual = DecodeConfig()
    if device != "cuda" or (n_line or 0) <= usual.window:
        return []
    more = {"max_tokens": 1_048_576, "window": 10_000}
    flags = [f"--decode.{name} {n}" for name, n in more.items() if getattr(config, name) == getattr(usual, name)]
    return [f"note: a GPU is faster with more lines at once: {' '.join(flags)}"] if flags else []


# The way of the lines.


def _results(
    job: _Job, bar: Bar, known: Results | None, notes: Counter[str], *, only_own: bool = False
) -> Iterator[tuple[Window, list[LineResult]]]:
    """Read windows and give them with their results, in order: those of a journal, or of the model.

    only_own: leave out the windows of other ranks.
    """
    waiting: deque[tuple[Window, Any]] = deque()
    is_live = False

    def first() -> tuple[Window, list[LineResult]]:
        window, work = waiting.popleft()
        if isinstance(work, list):
            return window, work
        results = job.pool.finish(work, bar.update)
        if known:
            known.add(window.digest, results)
        return window, results

    args, stop, ahead = job.args, job.stop, job.ahead
    with open_input(args.input) as file, bar:
        windows = read_windows(file, args, job.request_of, job.config.window, stop=stop, ahead=ahead > 0, notes=notes)
        for number, window in enumerate(windows):
            if only_own and not job.ranks.has(number):
                continue
            work: Any = known.take(window.digest) if known else None
            if work is None:
                if not is_live:
                    is_live = True
                    bar.unpause()
                work = job.pool.submit(window.items)
            waiting.append((window, work))
            while len(waiting) > ahead:
                yield first()
        while waiting:
            yield first()
    if known:
        known.take("")  # if there is more, it was of another input


def _written(job: _Job, bar: Bar, known: Results | None = None) -> Generator[list[str], None, None]:
    """Give the lines to write, a list for each window of the input."""
    report = job.report
    for window, results in _results(job, bar, known, report.notes):
        written = []
        for line, result in zip(window.lines, results, strict=True):
            flags = report.add(line, result)
            written += output_lines(job.args, line, report.n_line, result, flags, n_best=job.config.n_best)
        yield written


def _progress(job: _Job, n_known: int = 0, doing: str = "") -> Bar:
    """Make a bar where it cannot get between the lines. n_known: lines before; doing: what, if not the own share."""
    args = job.args
    shown = bool(args.output) or (sys.stderr.isatty() and not sys.stdout.isatty())
    total = count_lines(args.input) if args.input and shown else None
    if total is not None and not doing:
        total = job.ranks.n_line(total, job.config.window)
    doing = doing or ("scoring" if args.score else "translating")
    return Bar(desc=doing, total=total, initial=n_known, unit=" lines", disable=not shown)


# --output.


def _to_file(args: argparse.Namespace, ranks: Ranks, stop: Stop, report: Report) -> None:
    """Answer the share of this rank into its journal; make the output of all journals once every rank is done."""
    fit = _fit_of(args, recipe_of(args), choose_device(args.device).type)
    output = Path(args.output)
    paths = ranks.journals(output)
    with Journal(paths[ranks.rank], fit, say) as journal:
        if journal.n_line:
            say(f"{journal.path.name} has the answers to {journal.n_line:,} lines: going on from there")
        try:
            _check_still_free(args, paths)
            with _job(args, ranks, stop, report) as job:
                if ranks.n_rank == 1:
                    _write(job, _written(job, _progress(job, journal.n_line), journal), journal, paths)
                    return
                # The report on these lines comes when all parts are joined.
                for _ in _results(job, _progress(job, journal.n_line), journal, Counter(), only_own=True):
                    pass
                journal.mark(SHARE, ranks.rank)
                with exclusive(output.with_name(f"{output.name}.journal-lock")):
                    if not journal.path.exists():
                        say(f"another rank has joined all parts into {output}")
                    elif (parts := joined(paths, fit, say)) is not None:
                        with closing(parts):
                            _write(job, _written(job, _progress(job, doing="joining"), parts), journal, paths)
        except BaseException:
            if journal.n_line and journal.path.exists():
                say(
                    f"{journal.path.name} keeps the answers to {journal.n_line:,} lines; the same command goes on there"
                )
            raise


def _fit_of(args: argparse.Namespace, recipe: Recipe, device: str) -> dict[str, Any]:
    """Collect the settings that results depend on, beside the lines, in values of JSON. device: cpu or cuda."""
    no_matter = _NO_MATTER if args.with_attention else _NO_MATTER + _OF_ATTENTION
    flags = {f"--{name}": value for name, value in vars(args).items() if ":" not in name and name not in no_matter}
    flags |= {"--device": device, "--score": bool(args.score)}
    flags |= {f"--{name}": name_of(args, path) for name in ("terms", "avoid") if (path := getattr(args, name))}
    flags |= {"word alignments": args.format == "jsonl" or bool(args.alignments)}
    decode = {f"decode.{name}": value for name, value in recipe.decode.model_dump(mode="json").items()}
    if device == "cpu":  # where there are none
        del decode["decode.cuda_graphs"]
    about: dict[str, Any] = {
        "nmt": version(),
        "model": fingerprints(args),
        "usual ratios": Run(args.run[0]).usual_ratios(),
    }
    about |= {"data.trg_lang": recipe.data.trg_lang, "data.max_ratio": recipe.data.max_ratio}
    found: dict[str, Any] = json.loads(json.dumps({**about, **flags, **decode}))
    return found


def _marks(path: Path) -> dict[str, Any]:
    found = known(path)
    return found.marks if found else {}


def _check_still_free(args: argparse.Namespace, journals: Iterable[Path]) -> None:
    """Raise NmtError if there is a file in the place of an output that no earlier process of these journals put there.

    One that was killed just before it could delete the journals left an output that is whole; it may be replaced.
    """
    output = Path(args.output)
    told = [marks[OUTPUT] for marks in map(_marks, journals) if OUTPUT in marks]
    if not told:
        check_outputs(args, finishing=False, worked=True)
    elif not output.is_file() or [output.stat().st_size, sha256_of(output)] not in told:
        check_outputs(args, finishing=False, only=("output",), worked=True)


def _write(job: _Job, windows: Iterable[list[str]], journal: Journal, journals: Iterable[Path]) -> None:
    """Write the output and report on it; then delete the journals of all ranks, whose results are in it.

    The report comes before the output gets its name, so that a restart reports again. Errors of it are raised when the
    output is there.
    """
    args, digest = job.args, hashlib.sha256()
    for name in filter(None, (args.output, args.scores, args.alignments)):
        remove_leftovers(Path(name))
    wrong: Exception | None = None
    with replacing(Path(args.output)) as file:
        for line in chain.from_iterable(windows):
            assert "\n" not in line, "a line feed inside a line would shift every line after it"
            raw = line.encode("utf-8") + b"\n"
            digest.update(raw)
            file.write(raw)
        _check_still_free(args, journals)  # hours may have passed
        journal.mark(OUTPUT, [file.tell(), digest.hexdigest()])
        try:
            job.report.finish(job.lines)
        except Exception as error:
            wrong = error
    for path in journals:
        path.unlink(missing_ok=True)
    if wrong is not None:
        raise wrong
