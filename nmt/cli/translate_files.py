"""Files of nmt-translate: their names, and what is wrong with them before any work."""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from nmt.cli.parser import must_be_free
from nmt.data.lines import check_text, count_lines, read_lines
from nmt.errors import DataError, NmtError
from nmt.evaluation.attention_drawing import check_path

_READ = ("input", "score", "ref", "terms", "avoid")
_WRITTEN = ("output", "scores", "attention", "alignments")


def source_name(args: argparse.Namespace) -> str:
    """Return the name of the input in messages."""
    return name_of(args, args.input) if args.input else "<stdin>"


def name_of(args: argparse.Namespace, path: str) -> str:
    """Return the name that the user gave a file: a pipe is read from a copy."""
    given: str = getattr(args, "pipes", {}).get(path, path)
    return given


def follow_links(args: argparse.Namespace) -> None:
    """Replace names of symbolic links by those of the files that they lead to, where outputs are written.

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
    """Copy pipes that flags name to files, as they are read more than once. Errors name the pipes."""
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
    taken: dict[str, str] = {}  # a file that is written twice, or written and read, would hold only what came last
    for flag in (*_READ, *_WRITTEN):
        given = getattr(args, flag) or ()
        for name in [given] if isinstance(given, str) else given:
            other = taken.setdefault(os.path.realpath(name), flag)
            if flag in _WRITTEN and other != flag:
                raise NmtError(f"{name}: --{flag} and --{other.replace('_', '-')} are the same file. Name two.")
    for name in (args.input, args.score, args.terms, args.avoid):
        if name:
            check_text(name)
    if args.input and args.score:
        check_count(count_lines(args.input), count_lines(args.score), args.score, args.input)
    if args.attention:
        check_path(Path(args.attention))
    if args.input and args.lines and (n_line := count_lines(args.input)) < max(args.lines):
        raise NmtError(f"--lines {max(args.lines)}: nothing to draw there: {args.input} has {n_line:,} lines.")
    check_outputs(args, finishing=finishing)


def check_outputs(args: argparse.Namespace, *, finishing: bool, worked: bool = False) -> None:
    """Raise NmtError if a file that is written is neither free nor may be replaced.

    finishing: an earlier process had written them, and was killed then; worked: all is translated, and in the journal.
    """
    advice = "Move it away and start again, which goes on from the journal" if worked else "Choose another name"
    for flag in _WRITTEN:
        if not (name := getattr(args, flag)):
            continue
        path = Path(name)
        must_be_free(path, overwrite=args.overwrite or finishing, advice=advice)
        if path.is_dir():
            raise NmtError(f"{path}: cannot be written: it is a folder. Name a file.")


def read_references(args: argparse.Namespace) -> list[list[str]]:
    """Read the lines of each reference. Raises DataError unless each has a line for each of the input."""
    references = [list(read_lines(name)) for name in args.ref or ()]
    if args.input and references and args.input_format != "wrapped":
        check_references(count_lines(args.input), references, args)
    for name, lines in zip(args.ref or (), references, strict=True):
        check_count(len(references[0]), len(lines), name, args.ref[0])
        if not any(map(str.strip, lines)):
            raise DataError(f"{name}: all {len(lines):,} lines are blank, so there is nothing to score.")
    return references


def check_references(n_line: int, references: Sequence[Sequence[str]], args: argparse.Namespace) -> None:
    """Raise DataError for references that have not one line for each of the input, by name."""
    for name, lines in zip(args.ref or (), references, strict=True):
        check_count(n_line, len(lines), name, args.input)


def check_count(n_line: int, n_given: int, given: str, other: str | None) -> None:
    """Raise DataError if `other` (None: stdin) and the file `given` have different numbers of lines, or none."""
    if n_line != n_given:
        raise DataError(
            f"{other or 'the input'} has {n_line:,} lines but {given} has {n_given:,}: line n of one must belong "
            "to line n of the other."
        )
    if not n_line:
        raise DataError(f"{given}: no lines, so nothing to compare.")
