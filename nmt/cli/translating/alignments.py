"""Word alignments beside the translations: --alignments, a line for each of the input, and their error rate."""

import argparse
import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO

from nmt.cli.translating.files import check_count
from nmt.data.text.lines import read_lines, write_lines
from nmt.errors import NmtError
from nmt.evaluation.alignment import WORDS_OF_BOTH, ByCharacter, split
from nmt.evaluation.alignment_error import AlignmentError, check_gold, links_of, read_gold
from nmt.files import replacing


def wants_alignments(args: argparse.Namespace) -> bool:
    """Whether words are to be aligned, whatever the format."""
    return bool(args.alignments or args.gold_alignments)


class Alignments:
    """Takes the alignments line by line. A context manager: without `finish` nothing is left of them.

    Gold is read at once, so that what is wrong with it is known before the work. by_character: whether its words are
    characters.
    """

    def __init__(self, args: argparse.Namespace, by_character: ByCharacter = WORDS_OF_BOTH) -> None:
        self._args, self._by_character = args, by_character
        self._file: BinaryIO | None = None
        self._replacing: AbstractContextManager[BinaryIO] | None = None
        self._error = AlignmentError()
        self._gold = read_gold(args.gold_alignments) if args.gold_alignments else []
        if self._gold and args.input:
            n_line = 0
            for n_line, (src, trg) in enumerate(_pairs(args.input, args.score), start=1):
                self._check(n_line, src, trg)
            check_count(n_line, len(self._gold), args.gold_alignments, args)

    def __enter__(self) -> "Alignments":
        return self

    def __exit__(self, *_: object) -> None:
        if self._replacing:
            unfinished = NmtError("not finished")
            with contextlib.suppress(NmtError):
                self._replacing.__exit__(type(unfinished), unfinished, None)

    def add(self, number: int, source: str, target: str, alignment: str) -> None:
        """Take the alignment of a line and its translation. number: from 1."""
        if self._args.alignments:
            self._open().write(alignment.encode("ascii") + b"\n")
        if number <= len(self._gold):
            self._check(number, source, target)
            self._error.add(links_of(alignment), self._gold[number - 1])

    def finish(self, n_line: int, say: Callable[[str], object]) -> None:
        """Every line was taken: the file gets its name, and the error rate is told, also to --scores."""
        if gold := self._args.gold_alignments:
            check_count(n_line, len(self._gold), gold, self._args)
        if self._args.alignments:
            self._open()
            assert self._replacing
            found, self._replacing = self._replacing, None
            found.__exit__(None, None, None)
        if gold:
            say(self._error.text)
            if self._args.scores:
                told: dict[str, Any] = {"alignment": self._error.as_json}
                write_lines(self._args.scores, json.dumps(told, indent=2).split("\n"))

    def _open(self) -> BinaryIO:
        if self._file is None:  # and not before, as what a killed process left in its place is deleted first
            self._replacing = replacing(Path(self._args.alignments))
            self._file = self._replacing.__enter__()
        return self._file

    def _check(self, number: int, source: str, target: str) -> None:
        if number <= len(self._gold):
            where = f"{self._args.gold_alignments}:{number}"
            n_src, n_trg = (len(split(text, by)) for text, by in zip((source, target), self._by_character, strict=True))
            check_gold(self._gold[number - 1], n_src, n_trg, where)


def _pairs(src: str, trg: str) -> Iterator[tuple[str, str]]:
    for one, other in zip(read_lines(src), read_lines(trg), strict=True):
        yield one or "", other or ""
