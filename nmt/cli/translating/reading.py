"""The input of nmt-translate as requests, window by window as its lines come, with given translations under --score."""

import argparse
import contextlib
import queue
import re
import threading
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO, TypeVar

from nmt.cli.begin import Stop
from nmt.cli.translating.answering import key_of
from nmt.cli.translating.files import check_count, source_name
from nmt.cli.translating.requests import Line, Odd, Reader, Window, beside, text_of
from nmt.cli.translating.tally import Tally, warn
from nmt.data.lines import LONGEST_LINE, read_lines, read_stream
from nmt.data.sentences import ends_a_sentence, writes_no_space
from nmt.decoding.request import Request
from nmt.errors import MachineError, NmtError

# Lines as they arrive.


T = TypeVar("T")

# Seconds of silence after which what has arrived is answered. Files and fast programs are never this slow.
PATIENCE = 0.05


@dataclass(frozen=True)
class _End:
    """The last thing that arrives."""

    error: Exception | None = None


def windows(lines: Iterable[T], size: int, patience: float | None = PATIENCE) -> Iterator[list[T]]:
    """Lists of at most `size` lines, none of them empty, in order.

    A list is full, or ends where the input ended or was silent for `patience` seconds; None: however long it is silent.
    An error of `lines` is raised after the lines before it. A thread does the reading, since a read of a pipe waits for
    as long as it likes.
    """
    arrived: queue.Queue[T | _End] = queue.Queue(maxsize=2 * size)
    stop = threading.Event()

    def put(thing: T | _End) -> None:
        while not stop.is_set():
            with contextlib.suppress(queue.Full):
                arrived.put(thing, timeout=0.2)
                return

    def read() -> None:
        # Whatever happens here, somebody waits; and an end that nobody explains is not taken for the end of the input.
        error: Exception | None = MachineError("the input could not be read to its end.")
        try:
            for line in lines:
                put(line)
                if stop.is_set():
                    return
            error = None
        except (OSError, EOFError, ValueError, MemoryError, zlib.error, NmtError) as found:
            error = found
        finally:
            put(_End(error))

    # A daemon: nobody can wake a thread that waits for a terminal, and Ctrl-C must not wait for it.
    threading.Thread(target=read, name="reader", daemon=True).start()
    try:
        end = None
        while end is None:
            window: list[T] = []
            thing: T | _End | None = arrived.get()
            while thing is not None:
                if isinstance(thing, _End):
                    end = thing
                    break
                window.append(thing)
                thing = _next(arrived, patience) if len(window) < size else None
            if window:
                yield window
        if end.error is not None:
            raise end.error
    finally:
        stop.set()


def _next(arrived: "queue.Queue[T | _End]", patience: float | None) -> T | _End | None:
    try:
        return arrived.get(timeout=patience)
    except queue.Empty:
        return None


_MARK = "\ufeff"  # byte order mark
_ITEM = re.compile(r"(?:[-*•]|(\d{1,3})[.)])\s")
_HYPHENS = "-\u00ad\u2010"
# Words before which a hyphen stands for what follows later: Vor- und Nachteile, pre- or postwar.
_AFTER_HYPHEN = frozenset(("und", "oder", "bis", "and", "or", "to", "et", "ou", "y", "o", "e", "en", "of", "og", "och"))


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
    """Lines joined up to one that ends a sentence, or that a list item or a blank line follows, which stays.

    Each with what is odd about it.
    """
    text, odd, next_item = "", Odd(), "1"
    for line, its in lines:
        bare = line.strip()
        item = _ITEM.match(bare)
        number = item[1] if item else None
        # A date may go on with a number and a full stop, too.
        starts = item and (not number or number == next_item != "1" or text.endswith(":"))
        if text and (not bare or starts or len(text) + len(bare) > LONGEST_LINE):
            yield text, odd
            text, odd = "", {}
        if not bare:
            yield line, its
            next_item = "1"
            continue
        if number and not text:
            next_item = str(int(number) + 1)
        text, odd = _joined(text, bare), {**odd, **its}
        if ends_a_sentence(text):
            yield text, odd
            text, odd = "", {}
    if text:
        yield text, odd


def _joined(text: str, more: str) -> str:
    """A line and the next one, without the hyphen of a word that was divided."""
    if not text or (writes_no_space(text[-1]) and writes_no_space(more[0])):
        return text + more
    if text[-1] not in _HYPHENS or not text[-2:-1].isalnum():
        return f"{text} {more}"
    if not more[0].islower():
        return text + more
    is_divided = text[-2].islower() and more.split(maxsplit=1)[0] not in _AFTER_HYPHEN
    return text[:-1] + more if is_divided else f"{text} {more}"
