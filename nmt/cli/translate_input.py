"""Input of nmt-translate: bytes to lines, lines to requests, requests to windows; and files of phrases."""

import argparse
import contextlib
import hashlib
import io
import json
import os
import queue
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from itertools import islice
from typing import Any, BinaryIO, NamedTuple, TypeVar

from nmt.cli.begin import Stop
from nmt.cli.translate_files import check_count, source_name
from nmt.data.lines import (
    LONGEST_LINE,
    StreamLine,
    decode_line,
    opened,
    read_lines,
    read_stream,
    without_end,
)
from nmt.data.sentences import ends_a_sentence, writes_no_space
from nmt.decoding.request import GIVEN, Request, Sources, Terms, is_blank
from nmt.errors import DataError, MachineError, NmtError, RecipeError
from nmt.recipe.decode_options import DecodeConfig

_NEAR = 0.85  # likeness of keys from which one is taken for a typing error of the other

Reader = Callable[[str, str], Request]
Odd = dict[str, str]  # what is odd about a line that is translated all the same: by flag, the note about it
T = TypeVar("T")


class Line(NamedTuple):
    """A line of the input: what is odd about it, the fields beside it for its answer, and a given translation."""

    request: Request
    odd: Odd
    beside: dict[str, Any]
    target: str | None = None


class Window(NamedTuple):
    """Lines of the input that are sorted and batched together. first: the number of the first of them."""

    lines: list[Line]
    first: int

    def digest(self) -> str:
        """Hash the lines."""
        return hashlib.sha256(repr(self.lines).encode()).hexdigest()


# Bytes to windows.


@contextlib.contextmanager
def open_input(path: str | None) -> Iterator[BinaryIO]:
    """Open the input, a file, plain or compressed, or stdin, as a binary stream.

    Raises DataError at the end if the file was written to meanwhile: it may have been read half as it was and half as
    it is.
    """
    if path is None:
        try:
            # A file object of our own: Python locks sys.stdin when it exits, and would abort if the reading thread
            # still waited in it.
            file: BinaryIO = io.BufferedReader(io.FileIO(sys.stdin.fileno(), closefd=False))
        except (OSError, ValueError):  # a stdin that a program made of memory has no descriptor
            file = sys.stdin.buffer
        yield file
        return
    with opened(path) as file, open(path, "rb") as watched:  # that file, whatever gets its name
        before = _stamp(watched)
        yield file
        if _stamp(watched) != before:
            raise DataError(f"{path}: changed while it was read. Translate it again when nothing writes to it.")


def _stamp(file: BinaryIO) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns


def read_windows(
    file: BinaryIO,
    args: argparse.Namespace,
    request_of: Reader,
    size: int,
    *,
    stop: Stop,
    notes: Counter[str],
) -> Iterator[Window]:
    """Read the input window by window, each of `size` lines at most and none empty.

    A signal ends the command while it waits. notes: counts what is odd but harmless. Raises DataError for a request
    that is none, and for more or fewer translations under --score than lines.
    """
    n_read, given = 0, read_lines(args.score) if args.score else iter(())
    # In a pipe what has arrived is answered at once. Else windows are full, so that a restart cuts the same ones.
    patience = None if args.input or args.output else PATIENCE
    coming = windows(_lines(file, request_of, args, notes), size, patience)
    while True:
        with stop.finishing(False):
            lines = next(coming, None)
        if lines is None:
            break
        n_read += len(lines)
        if args.score:
            targets = list(islice(given, len(lines)))
            if len(targets) < len(lines):
                check_count(n_read, n_read - len(lines) + len(targets), args.score, args.input)
            lines = [line._replace(target=target) for line, target in zip(lines, targets, strict=True)]
        yield Window(lines, n_read - len(lines) + 1)
    if surplus := sum(1 for _ in given):
        check_count(n_read, n_read + surplus, args.score, args.input)


def _lines(file: BinaryIO, request_of: Reader, args: argparse.Namespace, notes: Counter[str]) -> Iterator[Line]:
    # A thread reads them that may outlive the job, and then must not be the last to know the model: to let go of
    # tensors while Python ends would abort the process.
    name = source_name(args)
    texts = (_text_of(line, f"{name}:{number}", args) for number, line in enumerate(read_stream(file, name, notes), 1))
    for number, (text, odd) in enumerate(unwrapped(texts) if args.input_format == "wrapped" else texts, start=1):
        if _MARK in text:  # of files that were put together
            notes["inner bom"] += 1
            text = text.replace(_MARK, "")
        request = request_of(text, f"{name}:{number}")
        beside = {}  # keys of an object that are not ours go on to its answer
        if args.input_format == "jsonl" and args.format in ("jsonl", "pairs") and text.strip():
            beside = {key: value for key, value in json.loads(text).items() if key not in GIVEN}
            notes.update(dict.fromkeys((f"key {key}" for key in beside), 1))
        yield Line(request, odd, beside)


def _text_of(line: StreamLine, place: str, args: argparse.Namespace) -> tuple[str, Odd]:
    """Decode a line of the input. Raises DataError for a line of JSON that was cut."""
    text, valid = decode_line(line.raw)
    odd = {} if valid else {"invalid_utf8": "invalid UTF-8, read with replacement characters"}
    if line.is_cut and args.input_format == "jsonl":
        raise DataError(f"{place}: {line.n_byte:,} bytes. A line of JSON may have {LONGEST_LINE:,}: divide its text.")
    if line.is_cut:
        odd["cut"] = f"{line.n_byte:,} bytes, of which the first {len(line.raw):,} are read; are line feeds missing?"
    return text, odd


# Seconds of silence after which what has arrived is answered. Files and fast programs are never this slow.
PATIENCE = 0.05


def windows(lines: Iterable[T], size: int, patience: float | None = PATIENCE) -> Iterator[list[T]]:
    """Cut lines into lists of at most `size`, none of them empty.

    A list is full, or ends where the input ended or was silent for `patience` seconds; None: however long it is silent.
    An error of `lines` is raised after the lines before it. A thread reads, since a read of a pipe may block.
    """
    arrived: queue.Queue[tuple[T] | Exception | None] = queue.Queue(maxsize=2 * size)  # None: the end
    stop = threading.Event()

    def put(thing: tuple[T] | Exception | None) -> None:
        while not stop.is_set():
            with contextlib.suppress(queue.Full):
                arrived.put(thing, timeout=0.2)
                return

    def read() -> None:
        end: Exception | None = MachineError("the input could not be read to its end.")
        try:
            for line in lines:
                put((line,))
                if stop.is_set():
                    return
            end = None
        except (OSError, ValueError, MemoryError, NmtError) as error:
            end = error
        finally:  # whatever happens
            put(end)

    # A daemon: a thread that waits for a terminal cannot be woken, and Ctrl-C must not wait for it.
    threading.Thread(target=read, name="reader", daemon=True).start()
    try:
        while True:
            window: list[T] = []
            thing = arrived.get()
            with contextlib.suppress(queue.Empty):
                while isinstance(thing, tuple):
                    window += thing
                    if len(window) == size:
                        break
                    thing = arrived.get(timeout=patience)
            if window:
                yield window
            if isinstance(thing, Exception):
                raise thing
            if thing is None:
                return
    finally:
        stop.set()


_MARK = "\ufeff"  # byte order mark
_ITEM = re.compile(r"(?:[-*•]|(\d{1,3})[.)])\s")
_HYPHENS = "-\u00ad\u2010"
# Words before which a hyphen stands for what follows later: Vor- und Nachteile, pre- or postwar.
_AFTER_HYPHEN = frozenset(("und", "oder", "bis", "and", "or", "to", "et", "ou", "y", "o", "e", "en", "of", "og", "och"))


def unwrapped(lines: Iterable[tuple[str, Odd]]) -> Iterator[tuple[str, Odd]]:
    """Join hard-wrapped lines up to the end of a sentence, a list item or a blank line, which stays."""
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
    """Join a line and the next one, without the hyphen of a word that was divided."""
    if not text or (writes_no_space(text[-1]) and writes_no_space(more[0])):
        return text + more
    if text[-1] not in _HYPHENS or not text[-2:-1].isalnum():
        return f"{text} {more}"
    if not more[0].islower():
        return text + more
    is_divided = text[-2].islower() and more.split(maxsplit=1)[0] not in _AFTER_HYPHEN
    return text[:-1] + more if is_divided else f"{text} {more}"


# Lines to requests.


def request_reader(args: argparse.Namespace) -> Reader:
    """Return the function that makes a request of a line and its place, file:number.

    Raises NmtError for wrong files of phrases.
    """
    read: Reader = {"tsv": _of_columns, "jsonl": _of_json}.get(args.input_format, lambda line, place: Request(line))
    if not (args.terms or args.avoid or args.keep):
        return read
    required = _terms(args.terms) if args.terms else []
    avoided = _columns(args.avoid, least=1) if args.avoid else []
    try:
        terms = Terms(required, avoided, re.compile(args.keep) if args.keep else None)
    except re.error as error:
        raise NmtError(f"--keep {args.keep}: no regular expression ({error}).") from None
    return lambda line, place: terms(read(line, place))


def checking(read: Reader, args: argparse.Namespace, decode: DecodeConfig, sources: Sources) -> Reader:
    """Have a reader also raise DataError for languages and tags that the model does not know, and for constraints that
    this command cannot meet.
    """

    def checked(line: str, place: str) -> Request:
        request = read(line, place)
        if not is_blank(request.source):  # which the model never sees
            try:
                sources.codec_of(request)
            except RecipeError as error:
                raise DataError(f"{place}: {error}") from None
        if args.score and request.asks:
            raise DataError(
                f"{place}: --score translates nothing, so prefix, required and avoided have nothing to do: leave them "
                "out."
            )
        if decode.samples and request.requires:
            raise DataError(f"{place}: phrases can be required of beam search only: set decode.samples to 0.")
        return request

    return checked


def _of_columns(line: str, place: str) -> Request:
    source, *more = line.split("\t")
    if len(more) > 1:
        raise DataError(
            f"{place}: {len(more) + 1} columns, but --input-format tsv has two: the source, and how its translation "
            "begins."
        )
    return _asked(place, source, prefix=more[0] if more else "")


def _of_json(line: str, place: str) -> Request:
    if not line.strip():
        return Request("")
    try:
        found = json.loads(line, object_pairs_hook=_object)
    except DataError as error:
        raise DataError(f"{place}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON ({error}). --input-format jsonl has an object a line.") from None
    if not isinstance(found, dict) or not isinstance(found.get("source"), str):
        raise DataError(f'{place}: expected an object with the text "source", found {_shown(found)}.')
    for key in found.keys() - set(GIVEN):
        if near := get_close_matches(key, GIVEN[1:], 1, _NEAR):
            raise DataError(f"{place}: unknown key {key!r}: did you mean {near[0]}? Else give it another name.")
    asked = {key: _text(value) for key, value in found.items() if key in GIVEN}
    return _asked(place, **{**asked, "source": without_end(asked["source"])})


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for key, n in Counter(key for key, _ in pairs).items():
        if n > 1:
            raise DataError(f"an object that has the key {key!r} twice: leave one of them out.")
    return dict(pairs)


def _asked(place: str, source: str, **asked: Any) -> Request:
    try:
        return Request(source, **asked)
    except DataError as error:
        raise DataError(f"{place}: {error}") from None


def _text(found: Any) -> Any:
    """Replace halves of surrogate pairs, which JSON can write, in a text or a list of them."""
    if isinstance(found, str):
        return found.encode("utf-8", errors="replace").decode("utf-8")
    return list(map(_text, found)) if isinstance(found, list) else found


def _terms(path: str) -> list[tuple[str, str]]:
    """Read a file of terms, in which a phrase has one translation."""
    pairs = _columns(path, least=2)
    first: dict[str, int] = {}
    for number, (phrase, translation) in enumerate(pairs, start=1):
        before = first.setdefault(phrase, number)
        if (other := pairs[before - 1][1]) != translation:
            raise DataError(
                f"{path}:{number}: the term {_shown(phrase)} is {_shown(translation)} here, and {_shown(other)} in "
                f"line {before}. Only one of them can be required: take the other out."
            )
    return pairs


def _columns(path: str, least: int) -> list[tuple[str, str]]:
    """Read a file of phrases as pairs, of which the first is "" where a line has one column. least: columns."""
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        columns = [column.strip() for column in line.split("\t")]
        if not least <= len(columns) <= 2 or not all(columns):
            first = "two columns" if least == 2 else "a phrase, or"
            raise DataError(
                f"{path}:{number}: expected {first}, a phrase of the source and one of the translation between tabs, "
                f"found {_shown(line)}."
            )
        _asked(f"{path}:{number}", "", avoided=(columns[-1],))  # or it says why that is no phrase
        pairs.append((columns[0] if len(columns) == 2 else "", columns[-1]))
    if not pairs:
        raise DataError(f"{path}: no phrases.")
    return pairs


def _shown(found: object) -> str:
    text = repr(found)
    return text if len(text) <= 60 else text[:57] + "..."
