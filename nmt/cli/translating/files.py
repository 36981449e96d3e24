"""The files of nmt-translate: what is wrong with them is said before any work, and input is read as bytes."""

import argparse
import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from nmt.cli.parser import must_be_free
from nmt.cli.translating.requests import Line
from nmt.data.lines import DAMAGE, complaint_about, count_lines, damaged, opened, read_lines
from nmt.decoding.beam import Hypothesis
from nmt.decoding.evidence import Fields, log_prob_of
from nmt.decoding.retry import Answer
from nmt.decoding.translation import Scored, Translation
from nmt.errors import DataError, NmtError
from nmt.evaluation.attention.drawing import check_path
from nmt.files import replacing

_READ = ("input", "score", "ref", "terms", "avoid", "tune_decoding")
_WRITTEN = ("output", "scores", "attention", "alignments")


def source_name(args: argparse.Namespace) -> str:
    """Name of the input in messages."""
    return name_of(args, args.input) if args.input else "<stdin>"


def name_of(args: argparse.Namespace, path: str) -> str:
    """Name that the user gave a file: a pipe is read from a copy."""
    given: str = getattr(args, "pipes", {}).get(path, path)
    return given


def follow_links(args: argparse.Namespace) -> None:
    """Have what is written under the name of a symbolic link take the place of the file that it leads to.

    Raises NmtError for a device or a pipe, whose place a file would take.
    """
    for flag in _WRITTEN:
        name = getattr(args, flag)
        if name and os.path.exists(name) and not (os.path.isfile(name) or os.path.isdir(name)):
            instead = "Leave --output out for stdout, or name" if flag == "output" else "Name"
            raise NmtError(f"--{flag} {name}: is no file, but a device or a pipe. {instead} a file.")
        if name and os.path.islink(name):
            setattr(args, flag, os.path.realpath(name))


@contextmanager
def files_of_pipes(args: argparse.Namespace) -> Iterator[None]:
    """Have files in place of the pipes that flags name, as they are read more than once. Errors name the pipes."""
    args.pipes = {}  # the name of each, by its file
    with TemporaryDirectory(prefix="nmt-pipes-") as folder:

        def copied(name: str) -> str:
            if not Path(name).is_fifo():  # other streams, such as devices, may never end
                return name
            path = Path(folder) / str(len(args.pipes))
            with open(name, "rb") as pipe, open(path, "xb") as file:
                shutil.copyfileobj(pipe, file)
            args.pipes[str(path)] = name
            return str(path)

        for flag in _READ:
            if isinstance(given := getattr(args, flag), list):
                setattr(args, flag, [copied(name) for name in given])
            elif given:
                setattr(args, flag, copied(given))
        try:
            yield
        except NmtError as error:
            for path, name in args.pipes.items():
                error.args = (str(error).replace(path, name),)
            raise


def check_paths(args: argparse.Namespace, *, finishing: bool = False) -> None:
    """Raise NmtError or DataError for all that is wrong with files and can be known before any work.

    finishing: see `check_outputs`.
    """
    if not args.input and sys.stdin is None:
        raise NmtError("stdin is closed, so there is nothing to read: name a file with --input.")
    if not args.output and sys.stdout is None:
        raise NmtError("stdout is closed, so there is nowhere to write to: name a file with --output.")
    _check_apart(args)
    for name in (args.input, args.score, args.terms, args.avoid):
        if name and (complaint := complaint_about(name)):
            raise DataError(complaint)
    if args.input and args.score:
        check_count(count_lines(args.input), count_lines(args.score), args.score, args)
    if args.attention:
        check_path(Path(args.attention))
    if args.input and args.lines and (n_line := count_lines(args.input)) < max(args.lines):
        raise NmtError(f"--lines {max(args.lines)}: nothing to draw there: {args.input} has {n_line:,} lines.")
    check_outputs(args, finishing=finishing)


def _check_apart(args: argparse.Namespace) -> None:
    """Raise NmtError if a file is written twice, or written and read: only what came last would be left."""
    taken: dict[str, str] = {}
    for flag in (*_READ, *_WRITTEN):
        given = getattr(args, flag) or ()
        for name in [given] if isinstance(given, str) else given:
            other = taken.setdefault(os.path.realpath(name), flag)
            if flag in _WRITTEN and other != flag:
                raise NmtError(f"{name}: --{flag} and --{other.replace('_', '-')} are the same file. Name two.")


def check_outputs(
    args: argparse.Namespace, *, finishing: bool, only: tuple[str, ...] | None = None, worked: bool = False
) -> None:
    """Raise NmtError if a file that is written is neither free nor may be replaced.

    finishing: an earlier process had found them free; only: flags whose files are looked at; worked: whether all is
    translated, and in the journal.
    """
    advice = "Move it away and start again, which goes on from the journal" if worked else "Choose another name"
    for flag in only or _WRITTEN:
        if not (name := getattr(args, flag)):
            continue
        path = Path(name)
        must_be_free(path, overwrite=args.overwrite or finishing, advice=advice)
        if path.is_dir():
            raise NmtError(f"{path}: cannot be written: it is a folder. Name a file.")


def read_references(args: argparse.Namespace) -> list[list[str]]:
    """The lines of each raw reference, read before the work so that a wrong file costs no time.

    Raises DataError unless each has a line for each of the input.
    """
    references = [[line for line in read_lines(name) if line is not None] for name in args.ref or ()]
    if args.input and references and args.input_format != "wrapped":
        check_references(count_lines(args.input), references, args)
    for name, lines in zip(args.ref or (), references, strict=True):
        if len(lines) != len(references[0]):
            raise DataError(
                f"{args.ref[0]} has {len(references[0]):,} lines but {name} has {len(lines):,}: line n of every "
                "reference must be a translation of line n of the input."
            )
        if lines and not any(map(str.strip, lines)):
            raise DataError(f"{name}: all {len(lines):,} lines are blank, so there is nothing to score.")
    return references


def check_references(n_line: int, references: Sequence[Sequence[str]], args: argparse.Namespace) -> None:
    """Raise DataError for references that have not one line for each of the input, by name."""
    for name, lines in zip(args.ref or (), references, strict=True):
        check_count(n_line, len(lines), name, args)


def check_count(n_line: int, n_given: int, given: str, args: argparse.Namespace) -> None:
    """Raise DataError if input and the file `given` have different numbers of lines, or no line at all."""
    if n_line != n_given:
        raise DataError(
            f"{args.input or 'the input'} has {n_line:,} lines but {given} has {n_given:,}: line n of one must be the "
            "translation of line n of the other."
        )
    if not n_line:
        raise DataError(f"{given}: no lines, so nothing to score.")


class InputFile:
    """The input as a binary file: a path, plain or compressed, or stdin. Refused at its end if it was written to
    meanwhile, for then it may have been read half as it was and half as it is.
    """

    def __init__(self, path: str | None) -> None:
        self.path = path

    def __enter__(self) -> BinaryIO:
        if self.path is None:
            # Our own file object over the same descriptor: Python locks sys.stdin when it exits, and would abort if
            # the reading thread still waited in it.
            try:
                self.file: BinaryIO = open(sys.stdin.fileno(), "rb", closefd=False)
            except (OSError, ValueError):  # a stdin that a program made of memory has no descriptor
                self.file = sys.stdin.buffer
            return self.file
        self.file = opened(self.path)
        try:
            self._watched = open(self.path, "rb")  # that file, whatever gets its name
            self._was = self._stamp()
        except BaseException:
            self.file.close()
            raise
        return self.file

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self.path is None:
            return
        is_now = self._stamp()
        self._watched.close()
        self.file.close()
        if isinstance(error, DAMAGE):
            raise damaged(self.path, error) from None
        if error is None and is_now != self._was:
            raise DataError(f"{self.path}: changed while it was read. Translate it again when nothing writes to it.")

    def _stamp(self) -> tuple[int, int]:
        found = os.fstat(self._watched.fileno())
        return found.st_size, found.st_mtime_ns


# How nmt-translate writes what it found.


_LINE_ENDS = str.maketrans("\n\r", "  ")
_COLUMN_ENDS = str.maketrans("\t\n\r", "   ")


def answer_lines(
    args: argparse.Namespace,
    line: Line,
    number: int,
    answer: Answer,
    evidence: Fields,
    flags: list[str],
    *,
    n_best: int,
) -> list[str]:
    """What is written for one input line in the format that was asked for. evidence, flags: as `json_line` has them."""
    translation = answer.translation
    if args.format == "text":
        return text_lines(translation, number, show_scores=args.show_scores, n_best=n_best)
    if args.format == "moses":
        return moses_lines(translation, number)
    if args.format == "tsv":
        return tsv_lines(translation, number)
    if args.format == "pairs":
        return [pair_line(line, translation, flags)]
    found = {"flags": flags, **({"retry": answer.retry} if args.retry_suspect else {})}
    return [json_line(line, translation, number, evidence=evidence, beside=found)]


def text_lines(translation: Translation, number: int, *, show_scores: bool, n_best: int) -> list[str]:
    """What is written for one input line: one line, or one for each of the n best."""
    if n_best > 1:
        scores = [one.normalised for one in translation.hypotheses] or [0.0]
        texts = [text.translate(_LINE_ENDS) for text in translation.texts]
        return [f"{number} ||| {text} ||| {score:.6f}" for text, score in zip(texts, scores, strict=True)]
    text = translation.text.translate(_LINE_ENDS)
    return [f"{translation.score:.6f}\t{text}" if show_scores else text]


def moses_lines(translation: Translation, number: int) -> list[str]:
    """The n best as Moses and Marian write them: number from 0, text, log-probability as a feature, score."""
    hypotheses: Sequence[Hypothesis | None] = translation.hypotheses or [None]
    return [
        f"{number - 1} ||| {text.translate(_LINE_ENDS).replace('|||', '| | |')} ||| "
        f"F0= {one.score if one else 0.0:.6f} ||| {one.normalised if one else 0.0:.6f}"
        for one, text in zip(hypotheses, translation.texts, strict=True)
    ]


def tsv_lines(translation: Translation, number: int) -> list[str]:
    """number, rank from 1, score, log-probability and translation, in which a tab is written as a space."""
    hypotheses: Sequence[Hypothesis | None] = translation.hypotheses or [None]
    return [
        f"{number}\t{rank}\t{one.normalised if one else 0.0:.6f}\t{one.score if one else 0.0:.6f}\t"
        + text.translate(_COLUMN_ENDS)
        for rank, (one, text) in enumerate(zip(hypotheses, translation.texts, strict=True), start=1)
    ]


def json_line(line: Line, translation: Translation, number: int, *, evidence: Fields, beside: Fields) -> str:
    """Everything that is known of one line. evidence: how the best translation came about; beside: other fields."""
    found: dict[str, Any] = {
        "id": number,
        **line.beside,
        "source": line.text,
        "output": translation.text,
        "score": translation.score,
        "log_prob": log_prob_of(translation, evidence["token_log_probs"]),
        **evidence,
        **beside,
        "n_best": translation.n_best,
    }
    return json.dumps(found, ensure_ascii=False)


def pair_line(line: Line, translation: Translation, flags: Sequence[str]) -> str:
    """A pair to train on: JSON of the line, its best translation, and what looks wrong in it."""
    found = {**line.beside, "source": line.text, "output": translation.text, "flags": list(flags)}
    return json.dumps(found, ensure_ascii=False)


def scored_line(target: str, scored: Scored, number: int, format: str) -> str:
    """A given translation: its log-probability; with columns number, log-probability, tokens."""
    if format == "text":
        return f"{scored.log_prob:.6f}"
    return f"{number}\t{scored.log_prob:.6f}\t{len(scored.token_log_probs)}\t{target.translate(_COLUMN_ENDS)}"


def scored_json(line: Line, target: str, scored: Scored, number: int, evidence: Fields) -> str:
    """A given translation as JSON: its log-probability, and how it would have come about."""
    found = {
        "id": number,
        **line.beside,
        "source": line.text,
        "output": target,
        "log_prob": scored.log_prob,
        **evidence,
    }
    return json.dumps(found, ensure_ascii=False)


# Word alignments beside the translations.


class Alignments:
    """Takes the alignments line by line. A context manager: without `finish` nothing is left of them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._file: BinaryIO | None = None
        self._replacing: AbstractContextManager[BinaryIO] | None = None

    def __enter__(self) -> "Alignments":
        return self

    def __exit__(self, *_: object) -> None:
        if self._replacing:
            unfinished = NmtError("not finished")
            with contextlib.suppress(NmtError):
                self._replacing.__exit__(type(unfinished), unfinished, None)

    def add(self, alignment: str) -> None:
        """Take the alignment of a line and its translation."""
        if self._args.alignments:
            self._open().write(alignment.encode("ascii") + b"\n")

    def finish(self) -> None:
        """Give the file its name, now that every line was taken."""
        if self._args.alignments:
            self._open()
            assert self._replacing
            found, self._replacing = self._replacing, None
            found.__exit__(None, None, None)

    def _open(self) -> BinaryIO:
        if self._file is None:  # and not before, as what a killed process left in its place is deleted first
            self._replacing = replacing(Path(self._args.alignments))
            self._file = self._replacing.__enter__()
        return self._file
