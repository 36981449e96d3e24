"""Work of nmt-translate: read windows of lines, translate them, write them in order, to stdout or through a journal."""

import argparse
import hashlib
import itertools
import json
import os
import shutil
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nmt.cli.begin import Stop, write_stdout
from nmt.cli.parser import files_of_pipes
from nmt.cli.translate_input import (
    READ,
    check_outputs,
    check_paths,
    follow_links,
    open_input,
    read_references,
    read_windows,
)
from nmt.cli.translate_output import LineTranslator, Record, Report, recipe_of, say
from nmt.data.lines import count_lines
from nmt.device import choose_device
from nmt.errors import NmtError
from nmt.extras import version
from nmt.files import lock_file, naming, remove_leftovers, replacing, sha256_of, sync_folder
from nmt.progress import Bar
from nmt.run import Run

# Journal of nmt-translate.


FORMAT = 4
_SYNC_EVERY = 1.0  # seconds: what a loss of power can cost; a killed process loses less
_COMPLETE = "complete"  # key of the last line, where the output is written and about to get its name: its SHA-256


def _line(value: dict[str, Any]) -> bytes:
    text = json.dumps(value).encode("ascii")
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _read(path: Path) -> Generator[tuple[int, dict[str, Any]], None, None]:
    """Read the lines of a journal up to the first that is not intact, each with its end in bytes."""
    end = 0
    with path.open("rb") as file:
        for line in file:
            text = line[9:-1]
            if line != b"%08x %s\n" % (zlib.crc32(text), text):
                return
            end += len(line)
            yield end, json.loads(text)


def was_written(output: Path, path: Path) -> bool:
    """Return True for the journal of a process that had written its files when it was killed, if output is its own."""
    last = deque(_read(path), maxlen=1) if path.is_file() else ()
    return any(
        _COMPLETE in value and (not output.is_file() or value[_COMPLETE] == sha256_of(output)) for _, value in last
    )


class Journal:
    """Journal that this process writes, with what an earlier process had written in it. A context manager.

    settings: what records depend on beside the lines, in values that JSON gives back. say: called with messages.
    fits: whether all that was in it is of these settings and, as far as it was taken, of this input.
    """

    def __init__(self, path: Path, settings: dict[str, Any], say: Callable[[str], object]) -> None:
        self.path, self._say, self.fits = path, say, True
        self._file = path.open("a+b", buffering=0)  # unbuffered: a write that failed is not tried again
        try:
            try:
                lock_file(self._file.fileno())
            except (BlockingIOError, PermissionError):  # the latter is what Windows says
                raise NmtError(
                    f"{path}: in use: another process writes the same output. Wait for it, or name another file."
                ) from None
            head = {"format": FORMAT, "settings": settings}
            self.n_line, self._end, there = 0, 0, dict[str, Any]()
            for self._end, value in _read(path):
                there = there or value
                self.n_line += len(value.get("records", ()))
            if there == head:
                self._file.truncate(self._end)
            else:
                # Nothing is lost where a process was killed in the first line.
                self._file.seek(0)
                if not _line(head).startswith(self._file.read(len(_line(head)) + 1)):
                    before = there.get("settings", {})
                    other = [name for name in {**before, **settings} if before.get(name) != settings.get(name)]
                    is_ours = there.get("format") == FORMAT
                    self._set_aside(
                        0, f"made with another {', '.join(other)}" if is_ours else "no journal that this nmt can read"
                    )
                self._file.truncate(0)
                self.n_line = 0
                self._write(head)
                sync_folder(path.absolute().parent)
        except BaseException:
            self._file.close()
            raise
        self._synced = time.monotonic()
        self._known = _read(path)
        self._end, _ = next(self._known)  # of what was taken
        self._n_taken = 0

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self._known.close()
        self._file.close()
        if not self.n_line:
            self.path.unlink(missing_ok=True)

    def take(self, digest: str) -> list[Record] | None:
        """Return the records of the next window, with this hash of its lines, if an earlier process made them.

        Where the input is another one, the rest is not used; "" stands for the end of the input.
        """
        end, window = next((found for found in self._known if "records" in found[1]), (0, None))
        if window is None:
            return None
        if window["lines"] != digest:
            self._known.close()
            self.n_line = n_line = self._n_taken
            where = f"after line {n_line:,} the input is another one" if n_line else "made of another input"
            self._set_aside(self._end, where)
            return None
        self._end, self._n_taken = end, self._n_taken + len(window["records"])
        return [Record(**one) for one in window["records"]]

    def add(self, digest: str, records: Iterable[Record]) -> None:
        """Keep the records of the next window."""
        window = {"lines": digest, "records": [asdict(one) for one in records]}
        self._write(window)
        self.n_line += len(window["records"])
        if time.monotonic() - self._synced > _SYNC_EVERY:
            self._sync()

    def complete(self, sha256: str) -> None:
        """Keep durably that the output is written and about to get its name."""
        self._write({_COMPLETE: sha256})
        self._sync()

    def _write(self, value: dict[str, Any]) -> None:
        left = memoryview(_line(value))
        with naming(self.path):
            while left:
                left = left[self._file.write(left) :]

    def _sync(self) -> None:
        with naming(self.path):
            os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def _set_aside(self, n_byte: int, why: str) -> None:
        """Continue with the first n_byte; all of it is kept under another name, for it may have cost hours."""
        names = (f"{self.path.name}.unused{f'-{n}' if n > 1 else ''}" for n in itertools.count(1))
        beside = next(one for name in names if not (one := self.path.with_name(name)).exists())
        shutil.copyfile(self.path, beside)
        self.fits = False
        self._file.truncate(n_byte)
        self._say(f"{self.path}: {why}, so it is not used {'further' if n_byte else 'here'}; kept as {beside.name}")


# Flags on which no record depends, beside its line. All others are part of what a journal was made with; the runs,
# their checkpoints and the options of decoding are so by their content, and phrases are part of the lines.
_NO_MATTER = (
    *("run", "checkpoint", "mbr", "input", "input_format", "output", "overwrite", "ref", "scores", "alignments"),
    *("attention", "attention_of", "lines", "layer", "head", "threads", "debug", "score", "terms", "avoid", "keep"),
)


def work(args: argparse.Namespace) -> int:
    """Run the command behind the flags. Returns the exit code; raises NmtError."""
    with files_of_pipes(args, *READ), Stop() as stop:
        follow_links(args)
        finishing = bool(args.output) and was_written(Path(args.output), Path(f"{args.output}.journal"))
        check_paths(args, finishing=finishing)
        report = Report(args, read_references(args))
        if args.output:
            _to_file(args, stop, report, finishing=finishing)
            return 0
        model = LineTranslator(args)
        # As bytes, whatever the locale, and flushed window by window for the reader at the other end.
        with stop.finishing(), closing(_records(model, stop, report)) as windows:
            for records in windows:
                write_stdout(_text(records))
                stop.ask()
        report.finish(model)
    return 0


def _records(
    model: LineTranslator, stop: Stop, report: Report, journal: Journal | None = None
) -> Generator[list[Record], None, None]:
    """Read windows and give their records, in order: those of a journal, or of the model."""
    args = model.args
    shown = bool(args.output) or (sys.stderr.isatty() and not sys.stdout.isatty())  # a bar between lines is in the way
    bar = Bar(
        desc="scoring" if args.score else "translating",
        total=count_lines(args.input) if args.input and shown else None,
        initial=journal.n_line if journal else 0,
        unit=" lines",
        disable=not shown,
    )
    size = model.translator.config.window
    with open_input(args.input) as file, bar:
        for lines in read_windows(file, args, model.request_of, size, stop, report.notes):
            digest = hashlib.sha256(repr(lines).encode()).hexdigest() if journal else ""
            records = journal.take(digest) if journal else None
            if records is None:
                records = model.records(lines, bar.update)
                if journal:
                    journal.add(digest, records)
            for line, record in zip(lines, records, strict=True):
                report.add(line, record)
            yield records
    if journal:
        journal.take("")  # if there is more, it was of another input


def _text(records: Iterable[Record]) -> str:
    return "".join(f"{line}\n" for record in records for line in record.lines)


# --output.


def _to_file(args: argparse.Namespace, stop: Stop, report: Report, *, finishing: bool) -> None:
    """Answer all lines into the journal, write the output and report on it; then delete the journal.

    The report comes before the output gets its name, so that a restart reports again. Errors of it are raised when the
    output is there.
    """
    output = Path(args.output)
    with Journal(Path(f"{args.output}.journal"), settings_of(args), say) as journal:
        if not journal.fits:
            check_outputs(args, finishing=False)
        if journal.n_line:
            say(f"{journal.path.name} has the answers to {journal.n_line:,} lines: going on from there")
        wrong: Exception | None = None
        try:
            model = LineTranslator(args)
            for name in filter(None, (args.output, args.scores, args.alignments)):
                remove_leftovers(Path(name))
            written = hashlib.sha256()
            with replacing(output) as file:
                for records in _records(model, stop, report, journal):
                    text = _text(records).encode()
                    written.update(text)
                    file.write(text)
                # Hours may have passed. What was killed just before it could delete the journal left an output.
                check_outputs(args, finishing=finishing and journal.fits, worked=True)
                journal.complete(written.hexdigest())
                try:
                    report.finish(model)
                except Exception as error:
                    wrong = error
        except BaseException:
            if journal.n_line:
                say(
                    f"{journal.path.name} keeps the answers to {journal.n_line:,} lines; the same command goes on there"
                )
            raise
        journal.path.unlink()
    if wrong is not None:
        raise wrong


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """Collect the settings that records depend on, beside the lines, in values of JSON."""
    recipe, device = recipe_of(args), choose_device(args.device).type
    flags = {f"--{name}": value for name, value in vars(args).items() if ":" not in name and name not in _NO_MATTER}
    flags |= {"--device": device, "--score": bool(args.score)}
    flags |= {"word alignments": args.format == "jsonl" or bool(args.alignments)}
    decode = {f"decode.{name}": value for name, value in recipe.decode.model_dump(mode="json").items()}
    if device == "cpu":  # where there are none
        del decode["decode.cuda_graphs"]
    model = [Run(run).fingerprint(name) for run in args.run for name in args.checkpoint or [None]]
    about = {"nmt": version(), "model": model, "usual ratios": Run(args.run[0]).usual_ratios()}
    data = {"data.trg_lang": recipe.data.trg_lang, "data.max_ratio": recipe.data.max_ratio}
    found: dict[str, Any] = json.loads(json.dumps({**about, **data, **flags, **decode}))
    return found
