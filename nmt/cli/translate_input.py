"""Input of nmt-translate: the files that flags name, bytes to lines, lines to requests; and files of phrases."""

import argparse
import contextlib
import io
import os
import queue
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from nmt.cli.begin import Stop
from nmt.cli.parser import check_count, must_be_free, refuse_corpus
from nmt.data.lines import (
    LONGEST_LINE,
    StreamLine,
    check_text,
    count_lines,
    decode_line,
    opened,
    read_lines,
    read_stream,
    without_end,
)
from nmt.data.sentences import ends_a_sentence, writes_no_space
from nmt.decoding.request import GIVEN, Request, Sources, Terms, is_blank
from nmt.errors import DataError, NmtError, RecipeError, shown
from nmt.evaluation.attention_page import check_path
from nmt.files import parse_json
from nmt.recipe.decode_options import DecodeConfig

READ = ("input", "score", "ref", "terms", "avoid")
_WRITTEN = ("output", "scores", "attention", "alignments")
_JOURNAL = "output's journal"  # what is done, beside the output until that is whole
_NEAR = 0.85  # likeness of keys from which one is taken for a typing error of the other

# Makes the request of a line, and the fields of an object that are for its answer. Raises DataError or RecipeError.
Reader = Callable[[str], tuple[Request, dict[str, Any]]]
Odd = dict[str, str]  # what is odd about a line that is translated all the same: by flag, the note about it
T = TypeVar("T")


class Line(NamedTuple):
    """A line of the input: what is odd about it, the fields beside it for its answer, and a given translation."""

    number: int  # from 1
    request: Request
    odd: Odd
    beside: dict[str, Any]
    target: str | None = None


# Files, and what is wrong with them before any work.


def follow_links(args: argparse.Namespace) -> None:
    """Replace names of links by those of the files that they lead to, where outputs are written; refuse devices."""
    for flag in _WRITTEN:
        name = getattr(args, flag)
        if name and os.path.exists(name) and not (os.path.isfile(name) or os.path.isdir(name)):
            instead = "Leave --output out for stdout, or name" if flag == "output" else "Name"
            raise NmtError(f"--{flag} {name}: is no file, but a device or a pipe. {instead} a file.")
        if name and os.path.islink(name):
            setattr(args, flag, os.path.realpath(name))


def check_paths(args: argparse.Namespace, *, finishing: bool) -> None:
    """Raise NmtError or DataError for all that is wrong with files and can be known before any work.

    finishing: see `check_outputs`.
    """
    if not args.input and sys.stdin is None:
        raise NmtError("stdin is closed, so there is nothing to read: name a file with --input.")
    if not args.output and sys.stdout is None:
        raise NmtError("stdout is closed, so there is nowhere to write to: name a file with --output.")
    taken = dict[str, str]()  # a file that is written twice, or written and read, would hold only what came last
    if args.output:
        taken[os.path.realpath(f"{args.output}.journal")] = _JOURNAL
    for flag in (*READ, *_WRITTEN):
        given = getattr(args, flag) or ()
        for name in [given] if isinstance(given, str) else given:
            other = taken.setdefault(os.path.realpath(name), flag)
            if other != flag and (flag in _WRITTEN or other == _JOURNAL):
                raise NmtError(f"{name}: --{flag} and --{other} are the same file. Name two.")
    for name in filter(None, (args.input if args.input_format == "text" else None, args.score, *(args.ref or ()))):
        refuse_corpus(name)
    for name in filter(None, (args.input, args.score, args.terms, args.avoid)):
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
    for name in filter(None, (getattr(args, flag) for flag in _WRITTEN)):
        must_be_free(Path(name), overwrite=args.overwrite or finishing, advice=advice)
        if os.path.isdir(name):
            raise NmtError(f"{name}: cannot be written: it is a folder. Name a file.")


def read_references(args: argparse.Namespace) -> list[list[str]]:
    """Read the lines of each reference. Raises DataError unless each has text, and as many lines as the input, or where
    that has not been counted, as the first reference.
    """
    if not args.ref:
        return []
    references = [list(read_lines(name)) for name in args.ref]
    other, n_line = args.ref[0], len(references[0])
    if args.input and args.input_format != "wrapped":  # else its lines are counted as they are translated
        other, n_line = args.input, count_lines(args.input)
    for name, lines in zip(args.ref, references, strict=True):
        check_count(n_line, len(lines), name, other)
        if not any(map(str.strip, lines)):
            raise DataError(f"{name}: all {len(lines):,} lines are blank, so there is nothing to score.")
    return references


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
        before = os.fstat(watched.fileno())
        yield file
        after = os.fstat(watched.fileno())
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise DataError(f"{path}: changed while it was read. Translate it again when nothing writes to it.")


def read_windows(
    file: BinaryIO, args: argparse.Namespace, request_of: Reader, size: int, stop: Stop, notes: Counter[str]
) -> Iterator[list[Line]]:
    """Read the input window by window, each of `size` lines at most and none empty.

    A signal ends the command while it waits. notes: counts what is odd but harmless. Raises DataError for a request
    that is none, and for more or fewer translations under --score than lines.
    """
    # In a pipe what has arrived is answered at once. Else windows are full, so that a restart cuts the same ones.
    patience = None if args.input or args.output else PATIENCE
    coming = windows(_lines(file, args, request_of, notes), size, patience)
    while True:
        with stop.finishing(False):
            lines = next(coming, None)
        if lines is None:
            return
        yield lines


def _lines(file: BinaryIO, args: argparse.Namespace, request_of: Reader, notes: Counter[str]) -> Iterator[Line]:
    # A thread reads them that may outlive the job, and then must not be the last to know the model: to let go of
    # tensors while Python ends would abort the process.
    name, given, number = args.input or "<stdin>", read_lines(args.score) if args.score else iter(()), 0
    texts = (_text_of(line, f"{name}:{number}", args) for number, line in enumerate(read_stream(file, name, notes), 1))
    for number, (text, odd) in enumerate(unwrapped(texts) if args.input_format == "wrapped" else texts, start=1):
        if _MARK in text:  # of files that were put together
            notes["inner bom"] += 1
            text = text.replace(_MARK, "")
        try:
            request, beside = request_of(text)
        except (DataError, RecipeError) as error:
            raise DataError(f"{name}:{number}: {error}") from None
        if args.format in ("jsonl", "pairs"):
            notes.update(dict.fromkeys((f"key {key}" for key in beside), 1))
        target = next(given, None)
        if args.score and target is None:
            check_count(number, number - 1, args.score, args.input)
        yield Line(number, request, odd, beside, target)
    if surplus := sum(1 for _ in given):
        check_count(number, number + surplus, args.score, args.input)


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

    def read() -> None:
        try:
            for line in lines:
                arrived.put((line,))
            arrived.put(None)
        except Exception as error:
            arrived.put(error)

    # A daemon: a thread that waits, for a terminal or for room, cannot be woken, and Ctrl-C must not wait for it.
    threading.Thread(target=read, name="reader", daemon=True).start()
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


_MARK = "\ufeff"  # byte order mark
_ITEM = re.compile(r"(?:[-*•]|(\d{1,3})[.)])\s")  # the beginning of a list item, and its number
_HYPHENS = "-\u00ad\u2010"
# Words before which a hyphen stands for what follows later: Vor- und Nachteile, pre- or postwar.
_AFTER_HYPHEN = frozenset(("und", "oder", "bis", "and", "or", "to", "et", "ou", "y", "o", "e", "en", "of", "og", "och"))


def unwrapped(lines: Iterable[tuple[str, Odd]]) -> Iterator[tuple[str, Odd]]:
    """Join hard-wrapped lines up to the end of a sentence, a list item or a blank line, which stays."""
    text, odd, next_number = "", Odd(), 1
    for line, its in lines:
        bare = line.strip()
        item = _ITEM.match(bare)
        if item and item[1]:  # a date goes on with a number and a full stop, too
            item = item if not text or text[-1] == ":" or int(item[1]) == next_number > 1 else None
            next_number = int(item[1]) + 1 if item else next_number
        if text and (not bare or item or len(text) + len(bare) > LONGEST_LINE):
            yield text, odd
            text, odd = "", {}
        if not bare:
            yield line, its
            next_number = 1
            continue
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
    if text[-1] in _HYPHENS and text[-2:-1].isalnum():
        if not more[0].islower():
            return text + more
        if text[-2].islower() and more.split(maxsplit=1)[0] not in _AFTER_HYPHEN:
            return text[:-1] + more
    return f"{text} {more}"


# Lines to requests.


def read_request(line: str, input_format: str, terms: Terms | None) -> tuple[Request, dict[str, Any]]:
    """Return the request of a line in a format, and the fields beside it. Raises DataError for a line that is none."""
    request, beside = _of_json(line) if input_format == "jsonl" else (Request(line), {})
    if input_format == "tsv":
        source, *columns = line.split("\t")
        if len(columns) > 1:
            raise DataError(
                f"{len(columns) + 1} columns, but --input-format tsv has two: the source, and how its translation "
                "begins."
            )
        request = Request(source, prefix="".join(columns))
    return terms(request) if terms else request, beside


def request_reader(args: argparse.Namespace, terms: Terms | None, decode: DecodeConfig, sources: Sources) -> Reader:
    """Return the reader of the input. It also refuses languages, tags and constraints that cannot be met here."""

    def request_of(line: str) -> tuple[Request, dict[str, Any]]:
        request, beside = read_request(line, args.input_format, terms)
        if args.input_format != "jsonl":  # where each line may have a language and constraints of its own
            return request, beside
        if not is_blank(request.source):  # which the model never sees
            sources.codec_of(request)
        if args.score and request.asks:
            raise DataError(
                "--score translates nothing, so prefix, required and avoided have nothing to do: leave them out."
            )
        if decode.samples and request.requires:
            raise DataError("phrases can be required of beam search only: set decode.samples to 0.")
        return request, beside

    return request_of


def _of_json(line: str) -> tuple[Request, dict[str, Any]]:
    if not line.strip():
        return Request(""), {}
    try:
        found = parse_json(line.encode("utf-8"))
    except ValueError as error:
        raise DataError(f"not JSON ({error}). --input-format jsonl has an object a line.") from None
    if not isinstance(found, dict) or not isinstance(found.get("source"), str):
        raise DataError(f'expected an object with the text "source", found {shown(found)}.')
    for key in found.keys() - set(GIVEN):
        if near := get_close_matches(key, GIVEN[1:], 1, _NEAR):
            raise DataError(f"unknown key {key!r}: did you mean {near[0]}? Else give it another name.")
    asked = {key: _text(found.pop(key)) for key in GIVEN if key in found}
    return Request(**{**asked, "source": without_end(asked["source"])}), found


def _text(found: Any) -> Any:
    """Replace halves of surrogate pairs, which JSON can write, in a text or a list of them."""
    if isinstance(found, str):
        return found.encode("utf-8", errors="replace").decode("utf-8")
    return list(map(_text, found)) if isinstance(found, list) else found


# Phrases.


def terms_of(args: argparse.Namespace) -> Terms | None:
    """Read --terms, --avoid and --keep. Raises NmtError for wrong ones."""
    if not (args.terms or args.avoid or args.keep):
        return None
    required = _phrases(args.terms, 2) if args.terms else []
    first: dict[str, int] = {}
    for number, (phrase, translation) in enumerate(required, start=1):
        before = first.setdefault(phrase, number)
        if (other := required[before - 1][1]) != translation:
            raise DataError(
                f"{args.terms}:{number}: the term {shown(phrase)} is {shown(translation)} here, and {shown(other)} "
                f"in line {before}. Only one of them can be required: take the other out."
            )
    try:
        kept = re.compile(args.keep) if args.keep else None
    except re.error as error:
        raise NmtError(f"--keep {args.keep}: no regular expression ({error}).") from None
    return Terms(required, _phrases(args.avoid, 1) if args.avoid else (), kept)


def _phrases(path: str, least: int) -> list[tuple[str, str]]:
    """Read a file of phrases as pairs, of which the first is "" where a line has one column. least: columns."""
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        columns = [column.strip() for column in line.split("\t")]
        if not least <= len(columns) <= 2 or not all(columns):
            first = "two columns" if least == 2 else "a phrase, or"
            raise DataError(
                f"{path}:{number}: expected {first}, a phrase of the source and one of the translation between tabs, "
                f"found {shown(line)}."
            )
        try:
            Request("", avoided=(columns[-1],))
        except DataError as error:
            raise DataError(f"{path}:{number}: {error}") from None
        pairs.append((columns[0] if len(columns) == 2 else "", columns[-1]))
    if not pairs:
        raise DataError(f"{path}: no phrases.")
    return pairs
