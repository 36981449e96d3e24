"""The input of nmt-translate as requests, window by window as its lines come, with given translations under --score."""

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO

from nmt.cli.arrivals import PATIENCE, windows
from nmt.cli.stop import Stop
from nmt.cli.translating.answering import key_of
from nmt.cli.translating.files import check_count, source_name
from nmt.cli.translating.report import warn
from nmt.cli.translating.requests import Odd, Reader, beside, text_of
from nmt.cli.translating.tally import Tally
from nmt.cli.translating.windows import Line, Window
from nmt.data.text.lines import LONGEST_LINE, read_lines, read_stream
from nmt.data.text.sentences import ends_a_sentence, writes_no_space
from nmt.decoding.constraints.request import Request

_MARK = "\ufeff"  # byte order mark


@dataclass(frozen=True)
class Reading:
    """How the input is read. window: lines of one; ahead: whether some are handed out before the first is answered."""

    args: argparse.Namespace
    stop: Stop
    request_of: Reader
    window: int
    ahead: bool

    def windows(self, file: BinaryIO, tally: Tally | None) -> Iterator[Window]:
        """The windows of the input, none of them empty. tally: told what was read, and what is odd about it is said.

        Raises DataError for a request that is none, and for more or fewer translations under --score than lines.
        """
        args, n_read = self.args, 0
        given = read_lines(args.score) if args.score else iter(())
        # Where nobody waits for an answer, windows are full: then a restart cuts the same ones.
        patience = None if args.input or args.output else PATIENCE
        notes = Counter[str]() if tally is None else tally.notes
        arriving = _arriving(file, self.request_of, args, notes)
        coming = windows(arriving, self.window, patience)
        while True:
            with self.stop.finishing(self.ahead):  # an idle command need not wait for a line to end
                window = next(coming, None)
            if window is None:
                break
            for number, (_, odd, _) in enumerate(window, start=n_read + 1):
                for note in () if tally is None else odd.values():
                    warn(f"{source_name(args)}:{number}: {note}")
            n_read += len(window)
            if tally is not None:
                tally.n_read = n_read
            lines = [Line(request.source, odd, its) for request, odd, its in window]
            keys = [key_of(request) for request, _, _ in window]
            if args.score:
                targets = [line or "" for line in islice(given, len(lines))]
                if len(targets) < len(lines):
                    check_count(n_read, n_read - len(lines) + len(targets), args.score, args)
                keys = [(*key, target) for key, target in zip(keys, targets, strict=True)]
            yield Window(lines, keys)
        if surplus := sum(1 for _ in given):
            check_count(n_read, n_read + surplus, args.score, args)


def _arriving(
    file: BinaryIO, request_of: Reader, args: argparse.Namespace, notes: Counter[str]
) -> Iterator[tuple[Request, Odd, dict[str, Any]]]:
    """Requests, what is odd about their lines, and what these have beside them.

    A thread reads them that may outlive the job, and then must not be the last to know the model: to let go of tensors
    while Python ends would abort the process.
    """
    name = source_name(args)
    texts = (
        text_of(line, f"{name}:{number}", args.input_format)
        for number, line in enumerate(read_stream(file, name, notes), 1)
    )
    for number, (text, odd) in enumerate(unwrapped(texts) if args.input_format == "wrapped" else texts, start=1):
        if _MARK in text:  # of files that were put together
            notes["inner bom"] += 1
            text = text.replace(_MARK, "")
        request = request_of(text, f"{name}:{number}")
        its = beside(text, args)
        notes.update(dict.fromkeys((f"key {key}" for key in its), 1))
        yield request, odd, its


def unwrapped(lines: Iterable[tuple[str, Odd]]) -> Iterator[tuple[str, Odd]]:
    """Lines joined up to one that ends a sentence, or that a blank one follows, which stays. Each with what is odd."""
    text, odd = "", Odd()
    for line, its in lines:
        bare = line.strip()
        if text and (not bare or len(text) + len(bare) > LONGEST_LINE):
            yield text, odd
            text, odd = "", {}
        if not bare:
            yield line, its
            continue
        space = "" if not text or (writes_no_space(text[-1]) and writes_no_space(bare[0])) else " "
        text, odd = text + space + bare, {**odd, **its}
        if ends_a_sentence(text):
            yield text, odd
            text, odd = "", {}
    if text:
        yield text, odd
