"""nmt-translate: checks of files, translation of windows of lines, and output: stdout or, with a journal, a file."""

import argparse
import hashlib
import itertools
import json
import os
import shutil
import sys
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nmt.cli.begin import Stop, write_stdout
from nmt.cli.parser import files_of_pipes, must_be_free, refuse_corpus
from nmt.cli.translate_input import PATIENCE, open_input, read_input, windows
from nmt.cli.translate_output import LineTranslator, Record, Report, recipe_of, say
from nmt.data.lines import check_line_counts, check_text, count_lines, read_lines, without_ending
from nmt.device import choose_device
from nmt.errors import DataError, NmtError
from nmt.evaluation.attention_page import check_path
from nmt.extras import version
from nmt.files import lock_file, naming, remove_leftovers, replacing, sha256_of, sync_folder
from nmt.progress import Bar
from nmt.run import USUAL_RATIOS, Run

FORMAT = 4  # of the journal
_READ = ("input", "score", "ref", "terms", "avoid")
_WRITTEN = ("output", "scores", "attention", "alignments")
_COMPLETE = "complete"  # key of the last line: SHA-256 of the output, which is written but not renamed yet


def _journal_line(value: dict[str, Any]) -> bytes:
    text = json.dumps(value).encode("ascii")
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _read_journal(path: Path) -> Generator[tuple[int, dict[str, Any]], None, None]:
    """Yield (end in bytes, value) of the lines of a journal, up to the first damaged one."""
    end = 0
    with path.open("rb") as file:
        for line in file:
            text = line[9:-1]
            if line != b"%08x %s\n" % (zlib.crc32(text), text):
                return
            end += len(line)
            yield end, json.loads(text)


def was_written(output: str, journal: str) -> bool:
    """Return whether a process wrote all its files before it was killed, and `output` was not replaced since."""
    last = deque(_read_journal(Path(journal)), maxlen=1) if os.path.isfile(journal) else ()
    hashes = [value[_COMPLETE] for _, value in last if _COMPLETE in value]
    return bool(hashes) and (not os.path.isfile(output) or hashes == [sha256_of(Path(output))])


class Journal:
    """Context manager: journal that this process continues from the records of an earlier process.

    settings: JSON values on which records depend, apart from the lines. say: called with messages.
    """

    def __init__(self, path: Path, settings: dict[str, Any], say: Callable[[str], object]) -> None:
        self.path, self._say, self._is_complete = path, say, False
        self.n_line = self._n_taken = self._end = 0  # lines in the journal; lines taken so far, and their end in bytes
        self._file = path.open("a+b", buffering=0)  # unbuffered: no failed write is repeated
        try:
            try:
                if not lock_file(self._file.fileno()):
                    say(f"{path}: not locked, as its disk has no locks: start no second process with this output")
            except BlockingIOError:
                raise NmtError(
                    f"{path}: in use: another process writes the same output. Wait for it, or name another file."
                ) from None
            head, n_intact, earlier_head = {"format": FORMAT, "settings": settings}, 0, dict[str, Any]()
            for end, value in _read_journal(path):
                n_intact, earlier_head = end, earlier_head or value
                self.n_line += len(value.get("records", ()))
            if earlier_head == head:
                self._file.truncate(n_intact)
            else:
                if path.stat().st_size:
                    earlier = earlier_head.get("settings", {})
                    changed = ", ".join(name for name, value in earlier.items() if value != settings.get(name))
                    reason = f"written with another {changed}" if changed else "not a journal of this version of nmt"
                    self._set_aside(reason)
                self._write(head)
                sync_folder(path.absolute().parent)
        except BaseException:
            self._file.close()
            raise
        self._earlier_lines = _read_journal(path)
        self._end, _ = next(self._earlier_lines)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, _: object, error: BaseException | None, *more: object) -> None:
        self._earlier_lines.close()
        self._file.close()
        # An error of the report leaves nothing to resume, unless it is that of a disk: its files are missing.
        is_reported = error is None or (isinstance(error, Exception) and not isinstance(error, OSError))
        if not self.n_line or (self._is_complete and is_reported):
            self.path.unlink(missing_ok=True)
        elif error is not None:
            kept = f"{self.path.name} keeps the translations of {self.n_line:,} lines"
            self._say(f"{kept}; the same command resumes after them")

    def take(self, digest: str) -> list[Record] | None:
        """Return the records of the next window if an earlier process made them.

        digest: hash of the lines of the window; "" at the end of the input. If the input has changed, the rest of the
        journal is not used.
        """
        end, window = next((line for line in self._earlier_lines if "records" in line[1]), (0, None))
        if window is None:
            return None
        if window["lines"] != digest:
            self._earlier_lines.close()
            n_line = self._n_taken
            self._set_aside(f"the input differs after line {n_line:,}" if n_line else "written for another input")
            return None
        self._end, self._n_taken = end, self._n_taken + len(window["records"])
        return [Record(**fields) for fields in window["records"]]

    def add(self, digest: str, records: Iterable[Record]) -> None:
        """Write the records of the next window."""
        window = {"lines": digest, "records": [asdict(record) for record in records]}
        self._write(window)
        self.n_line += len(window["records"])

    def complete(self, sha256: str) -> None:
        """Record that the output is written and will be renamed next."""
        self._write({_COMPLETE: sha256})
        self._is_complete = True

    def _write(self, value: dict[str, Any]) -> None:
        remaining = memoryview(_journal_line(value))
        with naming(self.path):
            while remaining:
                remaining = remaining[self._file.write(remaining) :]
            os.fsync(self._file.fileno())  # a power failure costs no finished window

    def _set_aside(self, reason: str) -> None:
        """Continue after the lines taken so far, and keep a copy of the journal: it may be the work of hours."""
        names = (f"{self.path.name}.unused{f'-{n}' if n > 1 else ''}" for n in itertools.count(1))
        copy = next(path for name in names if not (path := self.path.with_name(name)).exists())
        shutil.copyfile(self.path, copy)
        self._file.truncate(self._end)
        self.n_line = self._n_taken
        self._say(f"{self.path}: {reason}, so it is not used further; kept as {copy.name}")


# Files of the command, checked before any work.


def _check_paths(args: argparse.Namespace) -> None:
    """Raise NmtError or DataError for errors in files that can be found before any work."""
    for stream, flag in (("stdin", "input"), ("stdout", "output")):
        if getattr(sys, stream) is None and not getattr(args, flag):
            raise NmtError(f"{stream} is closed: name a file with --{flag}.")
    # Two flags must not write the same file, or read and write it.
    flag_of_file: dict[str, str] = {}
    for flag in (*_READ, *_WRITTEN):
        names = getattr(args, flag) or ()
        for name in [names] if isinstance(names, str) else names:
            other = flag_of_file.setdefault(os.path.realpath(name), flag)
            if other != flag and flag in _WRITTEN:
                raise NmtError(f"{name}: --{flag} and --{other} are the same file. Name two different files.")
    given = [name for name in (args.score, *(args.ref or ())) if name]
    is_plain = args.input_format in ("text", "wrapped") and not args.is_text
    for name in filter(None, (args.input if is_plain else None, *given)):
        refuse_corpus(name)
    for name in filter(None, (args.input, args.score, args.terms, args.avoid)):
        check_text(name)
    # Lines of stdin and wrapped ones are counted during translation.
    counted = [args.input, *given] if args.input and args.input_format != "wrapped" else given
    n_line = count_lines(counted[0]) if counted[1:] else 0
    for name in counted[1:]:
        check_line_counts(n_line, count_lines(name), name, counted[0])
    if args.attention:
        check_path(Path(args.attention))
    if args.input and args.lines and (n_line := count_lines(args.input)) < max(args.lines):
        raise NmtError(f"--lines {max(args.lines)}: no such line: {args.input} has {n_line:,} lines.")


def _check_outputs(args: argparse.Namespace) -> None:
    """Raise NmtError for an output that cannot be written or exists, unless an earlier process that was killed wrote it
    or it may be overwritten."""
    for name in filter(None, (getattr(args, flag) for flag in _WRITTEN)):
        if (plain := without_ending(name)) != name:
            raise NmtError(f"{name}: output is not compressed: write {plain}, and compress it afterwards.")
        is_own = os.path.exists(name) and bool(args.output) and was_written(args.output, f"{args.output}.journal")
        must_be_free(Path(name), overwrite=args.overwrite or is_own)


def work(args: argparse.Namespace) -> None:
    """Run the command. Raises NmtError."""
    with files_of_pipes(args, *_READ), Stop() as stop:
        for flag in _WRITTEN:  # a link stays, and its target is written
            name = getattr(args, flag)
            if name and os.path.islink(name) and (os.path.isfile(name) or not os.path.exists(name)):
                setattr(args, flag, os.path.realpath(name))
        _check_paths(args)
        _check_outputs(args)
        references = [list(read_lines(name)) for name in args.ref or ()]
        for name, lines in zip(args.ref or (), references, strict=True):
            if not any(map(str.strip, lines)):
                raise DataError(f"{name}: all {len(lines):,} lines are blank, so there is nothing to score.")
        report = Report(args, references)
        if args.output:
            _to_file(args, stop, report)
        else:
            model = LineTranslator(args)
            with stop.finishing():
                _translate(model, stop, report, write_stdout)
            report.finish(model)


def _translate(
    model: LineTranslator, stop: Stop, report: Report, write: Callable[[str], object], journal: Journal | None = None
) -> None:
    """Read windows, and write their output in order. The results come from the journal or the model."""
    args = model.args
    has_bar = bool(args.output) or (sys.stderr.isatty() and not sys.stdout.isatty())  # no bar among output lines
    desc, n_done = "scoring" if args.score else "translating", journal.n_line if journal else 0
    n_line = count_lines(args.input) if args.input and has_bar and args.input_format != "wrapped" else None
    bar = Bar(desc=desc, total=n_line, initial=n_done, unit=" lines", disable=not has_bar)
    # A pipe gets its answers at once. Otherwise windows are full, so that a restart cuts the same windows.
    patience = None if args.input or args.output else PATIENCE
    with open_input(args.input) as file, bar:
        lines_of_input = read_input(file, args, model.request_of, report.notes)
        input_windows = windows(lines_of_input, model.translator.config.window, patience)
        while True:
            with stop.finishing(False):  # a signal ends the command here, between two windows
                lines = next(input_windows, None)
            if lines is None:
                break
            digest = hashlib.sha256(repr(lines).encode()).hexdigest() if journal else ""
            records = journal.take(digest) if journal else None
            if records is None:
                records = model.records(lines, bar.update)
                if journal:
                    journal.add(digest, records)
            for line, record in zip(lines, records, strict=True):
                report.add(line, record)
            write("".join(f"{text}\n" for record in records for text in record.lines))


def _to_file(args: argparse.Namespace, stop: Stop, report: Report) -> None:
    """Translate all lines into the journal, write the output and print the report; then delete the journal.

    A process that is killed before it has deleted the journal reports again when it is restarted.
    """
    with Journal(Path(f"{args.output}.journal"), settings_of(args), say) as journal:
        _check_outputs(args)  # again: a journal of other settings, which is set aside now, owns no output
        if journal.n_line:
            say(f"{journal.path.name} has the translations of {journal.n_line:,} lines: resuming after them")
        model = LineTranslator(args)
        for name in filter(None, (getattr(args, flag) for flag in _WRITTEN)):
            remove_leftovers(Path(name))
        with replacing(Path(args.output)) as file:
            _translate(model, stop, report, lambda text: file.write(text.encode()), journal)
            journal.take("")  # further records belong to another input
            try:
                _check_outputs(args)  # again: hours may have passed
            except NmtError as error:
                raise NmtError(f"{error} Once it can be written, the same command resumes from the journal.") from None
            file.flush()
            journal.complete(sha256_of(Path(file.name)))
        report.finish(model)


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings on which records depend, apart from the lines, as JSON values.

    Runs, checkpoints and decoding options are represented by their content, and phrases by the requests of the lines.
    """
    recipe, device = recipe_of(args), choose_device(args.device).type
    flags: dict[str, Any] = {"--format": args.format, "--retry_suspect": args.retry_suspect, "--device": device}
    flags |= {"--score": bool(args.score), "word alignments": args.format == "jsonl" or bool(args.alignments)}
    decode = {f"decode.{name}": value for name, value in recipe.decode.model_dump(mode="json").items()}
    if device == "cpu":  # has no effect on a CPU
        del decode["decode.cuda_graphs"]
    model = [Run(run).fingerprint(name) for run in args.run for name in args.checkpoint or [None]]
    about = {"nmt": version(), "model": model, "usual ratios": Run(args.run[0]).numbers(USUAL_RATIOS)}
    data = {"data.trg_lang": recipe.data.trg_lang, "data.max_ratio": recipe.data.max_ratio}
    settings: dict[str, Any] = json.loads(json.dumps({**about, **data, **flags, **decode}))
    return settings
