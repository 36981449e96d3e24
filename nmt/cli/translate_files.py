"""The files of nmt-translate: what is wrong with them is said before any work, and input is read as bytes."""

import argparse
import gzip
import os
import sys
import zlib
from pathlib import Path
from typing import BinaryIO, cast

from nmt.data.lines import complaint_about, count_lines, read_lines
from nmt.errors import DataError, NmtError
from nmt.evaluation.attention import check_path


def check_paths(args: argparse.Namespace) -> None:
    """Everything about files that can be known before any work."""
    for flag, needed in (("scores", "ref"), ("lines", "attention"), ("examples", "ref")):
        if getattr(args, flag) and not getattr(args, needed):
            raise NmtError(f"--{flag} needs --{needed}.")
    if args.input and (complaint := complaint_about(args.input)):
        raise DataError(complaint)
    if args.attention:
        check_path(Path(args.attention))
    for name in (args.output, args.scores, args.attention):
        if not name:
            continue
        path = Path(name)
        if path.exists() and not args.overwrite:
            raise NmtError(f"{path} exists already. Choose another name, or replace it with --overwrite.")
        folder = path.absolute().parent
        if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
            raise NmtError(f"{path}: cannot be written: {folder} is no folder, or not yours to write to.")


def read_references(args: argparse.Namespace) -> list[str] | None:
    """The raw reference, read before the work so that a wrong file costs no time."""
    if not args.ref:
        return None
    references = [line for line in read_lines(args.ref) if line is not None]
    if args.input:
        check_count(count_lines(args.input), len(references), args)
    return references


def check_count(n_line: int, n_reference: int, args: argparse.Namespace) -> None:
    """Refuse input and reference that do not belong together, or nothing at all, with a DataError."""
    if n_line != n_reference:
        raise DataError(
            f"{args.input or 'the input'} has {n_line:,} lines but {args.ref} has {n_reference:,}: line n of one must "
            "be the translation of line n of the other."
        )
    if not n_line:
        raise DataError(f"{args.ref}: no lines, so nothing to score.")


class InputFile:
    """The input as a binary file: a path, plain or gzip, or stdin."""

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
        with open(self.path, "rb") as probe:
            is_gzip = probe.read(2) == b"\x1f\x8b"
        self.file = cast(BinaryIO, gzip.open(self.path, "rb")) if is_gzip else open(self.path, "rb")
        return self.file

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self.path is not None:
            self.file.close()
        if isinstance(error, (EOFError, gzip.BadGzipFile, zlib.error)):
            raise DataError(f"{self.path}: damaged gzip file ({error}). Download or compress it again.") from None
