"""Input of nmt-translate: bytes to lines, lines to requests; files of phrases."""

import argparse
import contextlib
import io
import json
import os
import queue
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple, TypeVar

from nmt.data.lines import LONGEST_LINE, check_line_counts, open_decompressed, read_lines, read_stream, without_end
from nmt.data.sentences import ends_a_sentence, writes_no_space
from nmt.decoding.request import GIVEN, Request, Terms, is_blank
from nmt.errors import DataError, NmtError, RecipeError, shown
from nmt.files import parse_json
from nmt.recipe.decode_options import DecodeConfig

# Keys of an earlier output, which would describe another translation.
_OWN_KEYS = {
    *("output", "score", "log_prob", "mean_log_prob", "tokens", "token_log_probs", "source_tokens"),
    *("alignment", "word_alignment", "items", "flags", "retry", "n_best"),
}

# Turns a line into its request and the fields that its answer repeats. Raises DataError or RecipeError.
Reader = Callable[[str], tuple[Request, dict[str, Any]]]
Anomalies = dict[str, str]  # anomalies of a line that is still translated: messages by flag
T = TypeVar("T")


class Line(NamedTuple):
    """A line of the input. Its repr is hashed in journals, so a new field name makes old journals useless."""

    number: int  # from 1
    request: Request
    odd: Anomalies
    beside: dict[str, Any]  # fields of the input that the answer repeats
    target: str | None = None  # given translation


# Bytes to windows.


@contextlib.contextmanager
def open_input(path: str | None) -> Iterator[BinaryIO]:
    """Open the input, a plain or compressed file or stdin, as a binary stream.

    Raises DataError at the end if the file changed meanwhile: the lines may be a mixture of two versions.
    """
    if path is None:
        try:
            # Another file object: Python locks sys.stdin at exit, and would abort if the reading thread waited in it.
            file: BinaryIO = io.BufferedReader(io.FileIO(sys.stdin.fileno(), closefd=False))
        except (OSError, ValueError):  # a stdin in memory has no descriptor
            file = sys.stdin.buffer
        yield file
        return
    with open_decompressed(path) as file, open(path, "rb") as watched:  # the same file, even if the path is replaced
        before = os.fstat(watched.fileno())
        yield file
        after = os.fstat(watched.fileno())
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise DataError(f"{path}: changed while it was read. Translate again when nothing else writes to it.")


def read_input(file: BinaryIO, args: argparse.Namespace, request_of: Reader, notes: Counter[str]) -> Iterator[Line]:
    """Yield the lines of the input. notes: counts of harmless anomalies.

    Raises DataError for an invalid request, such as a JSON line that was cut, and under --score for another number of
    translations than lines.
    """
    # The thread that runs this may outlive the job. It must not hold the last reference to the model: freeing tensors
    # while Python exits would abort the process.
    name, number = args.input or "<stdin>", 0

    def texts() -> Iterator[tuple[str, Anomalies]]:
        for raw, is_cut in read_stream(file, name, notes):
            text, anomalies = raw.decode("utf-8", errors="replace"), Anomalies()
            if text.encode("utf-8") != raw:
                anomalies["invalid_utf8"] = "invalid UTF-8, read with replacement characters"
            if is_cut:
                anomalies["cut"] = f"only its first {len(raw):,} bytes are read; are line feeds missing?"
            yield text, anomalies

    targets = read_lines(args.score) if args.score else iter(())
    sentences = unwrapped(texts()) if args.input_format == "wrapped" else texts()
    for number, (text, anomalies) in enumerate(sentences, start=1):
        if "\ufeff" in text:  # a byte order mark, from concatenated files
            notes["inner bom"] += 1
            text = text.replace("\ufeff", "")
        try:
            request, extra_fields = request_of(text)
        except (DataError, RecipeError) as error:
            complaints = (f"{name}:{number}: {complaint}" for complaint in (error, *anomalies.values()))
            raise DataError("\n".join(complaints)) from None
        if args.format in ("jsonl", "pairs"):
            notes.update(dict.fromkeys((f"key {key}" for key in extra_fields), 1))
        target = next(targets, None)
        if args.score and target is None:
            check_line_counts(number, number - 1, args.score, args.input)
        yield Line(number, request, anomalies, extra_fields, target)
    if n_surplus := sum(1 for _ in targets):
        check_line_counts(number, number + n_surplus, args.score, args.input)


# Seconds of silence that end a window. Files and fast programs are never this slow.
PATIENCE = 0.05


def windows(lines: Iterable[T], size: int, patience: float | None = PATIENCE) -> Iterator[list[T]]:
    """Cut lines into lists of 1 to `size` lines.

    A list ends when it is full, at the end of the input, or after `patience` seconds of silence (None: never).
    An error of `lines` is raised after the lines before it. A thread reads, since a read of a pipe may block.
    """
    received: queue.Queue[tuple[T] | Exception | None] = queue.Queue(maxsize=2 * size)  # None: the end

    def read() -> None:
        try:
            for line in lines:
                received.put((line,))
            received.put(None)
        except Exception as error:
            received.put(error)

    # A daemon: the thread cannot be woken from waiting for a terminal or a full queue, and Ctrl-C must not wait for it.
    threading.Thread(target=read, name="reader", daemon=True).start()
    while True:
        window: list[T] = []
        item = received.get()
        with contextlib.suppress(queue.Empty):
            while isinstance(item, tuple):
                window += item
                if len(window) == size:
                    break
                item = received.get(timeout=patience)
        if window:
            yield window
        if isinstance(item, Exception):
            raise item
        if item is None:
            return


_ITEM = re.compile(r"(?:[-*•]|(\d{1,3})[.)])\s")  # the beginning of a list item, and its number
_HYPHENS = "-\u00ad\u2010"
# Words after a hyphen that must stay: Vor- und Nachteile, pre- or postwar.
_AFTER_HYPHEN = frozenset(("und", "oder", "bis", "and", "or", "to", "et", "ou", "y", "o", "e", "en", "of", "og", "och"))


def unwrapped(lines: Iterable[tuple[str, Anomalies]]) -> Iterator[tuple[str, Anomalies]]:
    """Join hard-wrapped lines up to the end of a sentence, a list item or a blank line. Blank lines are kept."""
    text, anomalies, next_number = "", Anomalies(), 1
    for line, line_anomalies in lines:
        stripped = line.strip()
        item = _ITEM.match(stripped)
        if item and item[1]:  # the line may also continue a date with a number and a full stop
            item = item if not text or text[-1] == ":" or int(item[1]) == next_number > 1 else None
            next_number = int(item[1]) + 1 if item else next_number
        if text and (not stripped or item or len(text) + len(stripped) > LONGEST_LINE):
            yield text, anomalies
            text, anomalies = "", {}
        if not stripped:
            yield line, line_anomalies
            next_number = 1
            continue
        text, anomalies = _joined(text, stripped), {**anomalies, **line_anomalies}
        if ends_a_sentence(text):
            yield text, anomalies
            text, anomalies = "", {}
    if text:
        yield text, anomalies


def _joined(text: str, next_line: str) -> str:
    """Join a line and the next one, without the hyphen of a divided word."""
    if not text or (writes_no_space(text[-1]) and writes_no_space(next_line[0])):
        return text + next_line
    if text[-1] in _HYPHENS and text[-2:-1].isalnum():
        if not next_line[0].islower():
            return text + next_line
        if text[-2].islower() and next_line.split(maxsplit=1)[0] not in _AFTER_HYPHEN:
            return text[:-1] + next_line
    return f"{text} {next_line}"


# Lines to requests.


def read_request(
    line: str, args: argparse.Namespace, terms: Terms, decode: DecodeConfig, check_tags: Callable[[Request], object]
) -> tuple[Request, dict[str, Any]]:
    """Return the request of a line, and the fields that its answer repeats.

    check_tags: raises RecipeError for tags that the model has not learnt. It must hold no model: see `read_input`.
    Raises DataError or RecipeError for an invalid line, and for a language, tags or constraints that this run cannot
    meet.
    """
    request, extra_fields = _of_json(line) if args.input_format == "jsonl" else (Request(line), {})
    own_keys = _OWN_KEYS - ({"flags"} if args.score and args.format == "pairs" else set())
    extra_fields = {key: value for key, value in extra_fields.items() if key not in own_keys}
    if args.input_format == "tsv":
        source, *columns = line.split("\t")
        if len(columns) > 1:
            raise DataError(f"{len(columns) + 1} columns; --input-format tsv expects two: a source and a prefix.")
        request = Request(source, prefix="".join(columns))
    request = terms(request)
    if not is_blank(request.source):  # the model never sees a blank line
        check_tags(request)
    if args.score and request.asks:
        raise DataError("prefix, required and avoided have no effect with --score: leave them out.")
    if decode.samples and request.requires:
        raise DataError("required phrases need beam search: set decode.samples to 0.")
    return request, extra_fields


def _of_json(line: str) -> tuple[Request, dict[str, Any]]:
    if not line.strip():
        return Request(""), {}
    try:
        fields = parse_json(line.encode("utf-8"))
        # JSON can contain unpaired surrogates: replace them.
        fields = parse_json(json.dumps(fields, ensure_ascii=False).encode("utf-8", errors="replace"))
    except ValueError as error:
        raise DataError(f"not JSON ({error}). --input-format jsonl expects one object a line.") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("source"), str):
        raise DataError(f'expected an object with the text "source", found {shown(fields)}.')
    request_fields = {key: fields.pop(key) for key in GIVEN if key in fields}
    return Request(**{**request_fields, "source": without_end(request_fields["source"])}), fields


def terms_of(args: argparse.Namespace) -> Terms:
    """Read --terms, --avoid and --keep. Raises NmtError for invalid ones."""
    required = _phrases(args.terms, 2) if args.terms else []
    translation_of: dict[str, str] = {}
    for number, (phrase, translation) in enumerate(required, start=1):
        if (other := translation_of.setdefault(phrase, translation)) != translation:
            raise DataError(
                f"{args.terms}:{number}: the term {shown(phrase)} has the translation {shown(translation)} here, but "
                f"{shown(other)} in an earlier line. Remove one of the two lines."
            )
    try:
        keep = re.compile(args.keep) if args.keep else None
    except (re.error, OverflowError, RecursionError) as error:
        raise NmtError(f"--keep {args.keep}: not a regular expression ({error}).") from None
    return Terms(required, _phrases(args.avoid, 1) if args.avoid else [], keep)


def _phrases(path: str, min_columns: int) -> list[tuple[str, str]]:
    """Read a file of phrases as pairs (source, target). In a line with one column the source is ""."""
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        columns = [column.strip() for column in line.split("\t")]
        if not min_columns <= len(columns) <= 2 or not all(columns):
            columns_text = "two columns" if min_columns == 2 else "a phrase, or"
            raise DataError(
                f"{path}:{number}: expected {columns_text}, a phrase of the source and one of the translation between "
                f"tabs, found {shown(line)}."
            )
        try:
            Request("", avoided=(columns[-1],))
        except DataError as error:
            raise DataError(f"{path}:{number}: {error}") from None
        pairs.append((columns[0] if len(columns) == 2 else "", columns[-1]))
    if not pairs:
        raise DataError(f"{path}: the file has no phrases.")
    return pairs
