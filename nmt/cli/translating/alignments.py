"""Word alignments beside the translations: --alignments, a line for each of the input."""

import argparse
import contextlib
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from nmt.errors import NmtError
from nmt.files import replacing


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
