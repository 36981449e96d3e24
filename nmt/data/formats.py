"""Readers of files with pairs: text, TSV, CSV, JSON, JSONL, TMX, Parquet, Arrow, and datasets of the Hugging Face Hub.

Each format has a reader of records; texts are taken from some of their columns. Record n of TSV and JSONL is line n.
In TSV a tab ends a column, and quotes have no meaning. Tables are streamed, but a JSON list is read whole. The column
`a.b` is the field b inside a.
"""

import contextlib
import csv
import functools
import hashlib
import itertools
import json
import logging
import math
import os
import re
import ssl
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nmt.data.filters import BAD_RECORD, BAD_UTF8, TOO_LONG
from nmt.data.lines import bad_utf8, count_lines, errors_of, first_bytes, open_text, read_lines, start_of, text_lines
from nmt.data.text import undo_moses
from nmt.errors import DataError
from nmt.files import sha256_of
from nmt.progress import Bar

Column = int | str  # number of a column, from 1, or its name
Policy = Literal["refuse", "drop"]
TABLES = ("parquet", "arrow", "json", "dataset")
_MAX_RECORD = 1 << 22  # bytes of a record of TSV or JSONL, characters of a field of CSV: far more than pairs have
_N_SAMPLED = 100  # records that are searched for names of columns
_HUB_TIMEOUT = 5  # seconds
_N_ROW = 512  # rows of a table in memory at once
_MAX_DEPTH = 20  # nested JSON objects that are searched for names


class Flaw(NamedTuple):
    """Placeholder of a text that cannot be used. reason: one of `filters.REASONS`, or a flag; message: for the user."""

    reason: str
    message: str


TextOrFlaw = str | Flaw


@dataclass(frozen=True)
class HubDataset:
    """A dataset to load: its name on the hub or its folder, its subset and its split."""

    name: str
    subset: str | None
    split: str

    def __str__(self) -> str:
        return " ".join(part for part in (self.name, self.subset, self.split) if part)

    @functools.cached_property
    def dataset(self) -> Any:
        """The `datasets.Dataset`. Raises DataError if it cannot be loaded."""
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        hub_error = None if Path(self.name).exists() else _hub_error()
        if hub_error:  # offline mode still finds cached datasets, and saves the retries
            os.environ["HF_HUB_OFFLINE"] = "1"
        # Imported here: it takes a second, and reads the environment.
        from datasets import load_dataset
        from datasets.exceptions import DatasetsError

        try:
            return load_dataset(self.name, self.subset, split=self.split)
        except (DatasetsError, OSError, ValueError, RuntimeError, LookupError, TypeError, ImportError) as error:
            cause = hub_error or " ".join(str(error).split())[:500]
            raise DataError(
                f"dataset {self}: cannot be loaded ({cause}). Give name, subset and split as on its page of the hub, "
                "or the path of a folder of files; dataset scripts are not run."
            ) from None


@functools.cache
def _hub_error() -> str | None:
    """Return why the hub cannot be reached; None if it can, or in offline mode. Tries once, for a few seconds."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return None
    hub = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        urllib.request.urlopen(urllib.request.Request(hub, method="HEAD"), timeout=_HUB_TIMEOUT).close()
    except urllib.error.HTTPError:
        return None  # the hub did answer
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return None if isinstance(reason, ssl.SSLError) else f"the hub {hub} cannot be reached ({reason})"
    return None


Place = Path | HubDataset


@dataclass(frozen=True)
class Text:
    """One side of a source. name: the user's name for it.

    place: a file, a dataset, or lines in memory. form: text, dataset, or one of `ENDINGS`. column: the column of the
    text; None if the whole line is the text. header: the first line has names of columns. drop_flagged: skip lines
    that nmt-translate flagged. moses: the language for `text.undo_moses`; None to leave the text as it is.
    """

    name: str
    place: Place | tuple[str, ...]
    form: str = "text"
    column: Column | None = None
    header: bool = False
    drop_flagged: bool = False
    moses: str | None = None

    def check(self) -> None:
        """Raise DataError if the text cannot be read, or if its column is missing. Checks the beginning only."""
        place, form, column = self.place, self.form, self.column
        if isinstance(place, tuple):
            return
        names = names_in(place, form, header=self.header)  # raises DataError if the file cannot be read
        if column is None:
            return
        by_number = isinstance(column, int) and form in ("tsv", "csv")
        is_found = int(column) <= len(names) if by_number else names.count(str(column)) == 1
        if not is_found and form in ("jsonl", "tmx"):  # it may occur only after the first records
            records = _records(place, form)
            is_found = any(isinstance(record, dict) and str(column) in _text_keys(record) for record in records)
        if not is_found:
            raise DataError(
                f"{place}: expected one column {column!r} of text, found {name_list(names)}. Is its format {form}? "
                "Columns are chosen by their names, those of TSV and CSV also by their numbers."
            )

    def facts(self, known: dict[tuple[Path, str], tuple[int, str]]) -> dict[str, Any]:
        """Return the identity of this text: {"name", "n_line", "size", "sha256"}, and "column" if it has one.

        known: cache of the record count and digest of each file in its format; this text's file is added.
        """
        if isinstance(self.place, HubDataset):
            assert self.column is not None
            n_line, size, hashed = len(self.place.dataset), 0, hashlib.sha256()
            for (value,) in _table_rows(self.place, (self.column,), None):
                hashed.update(f"{len(value)}:".encode() + value if isinstance(value, bytes) else b"-")
                size += len(value) if isinstance(value, bytes) else 0
            digest = hashed.hexdigest()
        elif isinstance(self.place, Path):
            file = self.place, self.form
            if file not in known:
                known[file] = _count_records(*file), sha256_of(self.place)
            n_line, digest = known[file]
            n_line, size = max(0, n_line - self.header), self.place.stat().st_size
        else:
            content = "".join(line + "\n" for line in self.place).encode("utf-8")
            n_line, size, digest = len(self.place), len(content), hashlib.sha256(content).hexdigest()
        facts = {"name": self.name, "n_line": n_line, "size": size, "sha256": digest}
        if self.column is not None:
            facts["column"] = f"{self.form} {self.column!r}{', header' if self.header else ''}"
        if self.moses is not None:
            facts["column"] = f"{facts.get('column', self.form)}, unescaped as {self.moses}"
        return facts

    def read(self, reading: "Reading") -> Iterator[TextOrFlaw]:
        """Return all lines of this side alone."""
        if isinstance(self.place, tuple):
            return iter(self.place)
        if self.column is not None:
            return (value for (value,) in read_columns([self], reading))
        lines = text_lines(cast(Path, self.place), reading.longest, reading.notes)
        return (reading.text(raw, self, number) for number, raw in enumerate(lines, start=1))

    def scores(self, *, has_pairs: bool) -> NDArray[np.float64]:
        """Return the scores in a column, or in the lines of a text file; NaN for null.

        Raises DataError for any other value that is no number, and for the text "nan". has_pairs: the file also has
        the pairs. Then a broken record gets NaN, since the reader of the pairs drops or refuses it.
        """
        place, form, column = cast(Place, self.place), self.form, self.column
        rows: Iterator[Sequence[Any]]
        if form in TABLES:
            rows = _table_rows(place, (str(column),), 100)
        elif column is None:
            rows = ((line,) for line in text_lines(cast(Path, place), 100))
        elif form in ("tsv", "csv"):
            self.check()
            rows = _select_fields(_records(place, form), (column,), self.header)
        else:
            rows = ((record,) for record in _records(place, form))

        def score_of(row: Sequence[Any], number: int) -> float:
            value = row[0].decode("utf-8", "replace") if isinstance(row[0], bytes) else row[0]
            value = _value_at(value, str(column)) if isinstance(value, dict) else value
            if value is None or (isinstance(row[0], Flaw) and (has_pairs or form in TABLES)):  # in a table: null
                return math.nan
            with contextlib.suppress(TypeError, ValueError):
                if not isinstance(value, bool) and not math.isnan(score := float(value)):
                    return score
            flaw = value.message if isinstance(value, Flaw) else f"found {json.dumps(value, ensure_ascii=False):.40}."
            raise DataError(f"{place}:{number}: {flaw} Each pair needs a number as its score.")

        with Bar(rows, desc=f"reading scores: {self.name}", unit=" pairs", unit_scale=True, leave=False) as bar:
            return np.fromiter(map(score_of, bar, itertools.count(1 + self.header)), np.float64)


@dataclass(frozen=True)
class Reading:
    """Policy of reading. longest: bytes of a text that are needed; a longer text may be cut, to `longest - 4` bytes at
    least. notes: counts of harmless oddities. on_joined: called with file and number of a record that had line feeds.
    """

    bad_utf8: Policy
    bad_records: Policy
    longest: int
    notes: Counter[str] = field(default_factory=Counter)
    on_joined: Callable[[str, int], object] = lambda *_: None

    def text(self, value: bytes | TextOrFlaw, text: Text, number: int) -> TextOrFlaw:
        """Return the value of a record as one line of text, or its flaw. Raises DataError for a flaw to refuse."""
        if isinstance(value, bytes):
            value = _decoded(value)
        if isinstance(value, Flaw):
            option = {BAD_UTF8: "bad_utf8", BAD_RECORD: "bad_records"}.get(value.reason)
            if option and getattr(self, option) == "refuse":
                raise DataError(
                    f"{text.place}:{number}: {value.message} Repair the file. For training corpora data.{option}: "
                    "drop drops and counts such pairs instead."
                )
        elif "\n" in value:
            self.on_joined(text.name, number)
            value = " ".join(piece for line in value.split("\n") if (piece := line.removesuffix("\r")))
        return value if text.moses is None or isinstance(value, Flaw) else undo_moses(value, text.moses)


def _decoded(raw: bytes) -> TextOrFlaw:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return Flaw(BAD_UTF8, bad_utf8(error))


def name_list(names: Iterable[str]) -> str:
    """Return the first names as a list for a message."""
    first = [name if len(name) <= 30 else f"{name[:27]}..." for name in itertools.islice(names, 13)]
    return ", ".join(map(repr, first[:12])) + (", ..." if len(first) > 12 else "") or "none"


def read_columns(texts: Sequence[Text], reading: Reading) -> Iterator[tuple[TextOrFlaw, ...]]:
    """Yield texts that are columns of one place, for every record."""
    first, columns = texts[0], [text.column for text in texts if text.column is not None]
    place, form = first.place, first.form
    assert not isinstance(place, tuple)
    rows: Iterator[Sequence[bytes | TextOrFlaw]]
    if form in TABLES:
        rows = _table_rows(place, columns, reading.longest)
    else:
        records: Iterator[Any] = _records(place, form, reading.notes)
        if form in ("tsv", "csv"):
            rows = _select_fields(records, columns, first.header)
        elif form == "jsonl":
            rows = _select_keys(records, columns, first.drop_flagged)
        else:
            rows = ([unit.get(str(column), "") for column in columns] for unit in records)
    for number, row in enumerate(rows, start=1 + first.header):
        yield tuple([reading.text(value, text, number) for value, text in zip(row, texts, strict=True)])


def names_in(place: Place, form: str, *, header: bool = False) -> list[str]:
    """Return the names of all columns, keys or languages with text, from the schema or the first records.

    header: the first record has the names. DataError if it cannot be read.
    """
    if form in TABLES:
        with _open_table(place) as (schema, _):
            return [name for name, _ in _columns_of_types(_TEXT, schema)]
    names: dict[str, None] = {}
    for record in itertools.islice(_records(place, form), _N_SAMPLED):
        if isinstance(record, list):
            return record
        if header and isinstance(record, Flaw):
            raise DataError(f"{place}:1: {record.message} Repair this line, which names the columns.")
        names |= dict.fromkeys(_text_keys(record) if isinstance(record, dict) else ())
    return list(names)


def _count_records(path: Path, form: str) -> int:
    """Return the number of records of a file, a header included."""
    if form in TABLES:
        with _open_table(path, []) as (_, batches):
            return sum(map(len, batches))
    return sum(1 for _ in _records(path, form)) if form in ("csv", "tmx") else count_lines(path)


# TSV and CSV.
Record = list[str] | dict[str, Any] | Flaw


def _records(place: Place, form: str, notes: Counter[str] | None = None) -> Iterator[Record]:
    """Yield the records of a file that is no table. notes: counts of harmless oddities."""
    assert isinstance(place, Path)
    if form == "csv":
        yield from _csv(place)
    elif form == "tmx":
        yield from _tmx(place)
    else:
        for raw in text_lines(place, _MAX_RECORD, notes):
            if len(raw) > _MAX_RECORD - 4:
                yield Flaw(TOO_LONG, f"a line of over {_MAX_RECORD - 4:,} bytes.")
            elif isinstance(line := _decoded(raw), Flaw):
                yield line
            else:
                yield _parse_object(line) if form == "jsonl" else line.split("\t")


def _csv(path: Path) -> Iterator[list[str]]:
    """Yield the records of CSV without blank lines. The delimiter is the more frequent of comma and semicolon."""
    csv.field_size_limit(_MAX_RECORD)
    # The csv module takes a lone carriage return as a row end, too, but not inside one of the lines given to it.
    lines = (part for line in read_lines(path) for part in re.split(r"(?<=\r)", line + "\n"))
    head = next(lines, "")
    delimiter = ";" if head.count(";") > head.count(",") else ","
    rows = csv.reader(itertools.chain([head], lines), delimiter=delimiter, strict=True)
    try:
        yield from filter(None, rows)
    except csv.Error as error:
        raise DataError(f"{path}:{rows.line_num}: not CSV ({error}). Check the quotes in this line.") from None


def _select_fields(records: Iterable[Any], columns: Sequence[Column], header: bool) -> Iterator[Sequence[TextOrFlaw]]:
    n_column, places = 0, list[int]()
    for record in records:
        if isinstance(record, Flaw):
            yield (record,) * len(columns)
            continue
        if not n_column:
            n_column = len(record)
            places = [column - 1 if isinstance(column, int) else record.index(column) for column in columns]
            if header:
                continue
        if len(record) == n_column:
            yield [record[place] for place in places]
        else:
            flaw = Flaw(BAD_RECORD, f"{len(record)} columns, but the first record has {n_column}.")
            yield (flaw,) * len(columns)


# JSONL.
# Integers are never texts, but valid JSON of any length. Python's int would refuse more than 4,300 digits.
_JSON = json.JSONDecoder(parse_int=float)
_KINDS = {type(None): "null", bool: "true or false", float: "a number", str: "text", list: "a list", dict: "an object"}


def _parse_object(line: str) -> dict[str, Any] | Flaw:
    try:
        record = _JSON.decode(line)
    except (ValueError, RecursionError) as error:
        return Flaw(BAD_RECORD, f"not JSON ({error}).")
    if isinstance(record, dict):
        return record
    return Flaw(BAD_RECORD, f"{_KINDS[type(record)]} instead of a JSON object.")


def _select_keys(
    records: Iterable[Any], columns: Sequence[Column], drop_flagged: bool
) -> Iterator[Sequence[TextOrFlaw]]:
    for record in records:
        flaw = record if isinstance(record, Flaw) else _flaw_of_flags(record) if drop_flagged else None
        yield (flaw,) * len(columns) if flaw else [_text_at(record, str(column)) for column in columns]


def _value_at(record: Any, key: str) -> Any:
    """Return the value of a key. Without a key `a.b`, return the value of b inside a."""
    value = record
    for part in (key,) if key in record else key.split("."):
        if not isinstance(value, dict) or part not in value:
            return Flaw(BAD_RECORD, f"no key {key!r}; there are {name_list(record)}.")
        value = value[part]
    return value


def _text_at(record: dict[str, Any], key: str) -> TextOrFlaw:
    if not isinstance(value := _value_at(record, key), str | Flaw):
        return Flaw(BAD_RECORD, f"expected text under the key {key!r}, found {_KINDS[type(value)]}.")
    if isinstance(value, str) and not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        return Flaw(BAD_RECORD, f"half a surrogate pair under the key {key!r}, which is not a valid character.")
    return value


def _text_keys(record: dict[str, Any], depth: int = 1) -> Iterator[str]:
    for key, value in record.items():
        if isinstance(value, str):
            yield key
        elif isinstance(value, dict) and depth < _MAX_DEPTH:
            yield from (f"{key}.{name}" for name in _text_keys(value, depth + 1))


def _flaw_of_flags(record: dict[str, Any]) -> Flaw | None:
    """Return a flaw for the first flag of nmt-translate that is a complaint: `split` is none."""
    flags = record.get("flags")
    if not isinstance(flags, list) or not all(isinstance(flag, str) for flag in flags):
        return Flaw(BAD_RECORD, "no list of texts under the key 'flags', which drop_flagged needs.")
    complaints = [flag for flag in flags if flag != "split"]
    return Flaw(f"flagged {complaints[0]:.20}", "a flagged translation.") if complaints else None


# TMX.
_LANG = "{http://www.w3.org/XML/1998/namespace}lang"


def _tmx(path: Path) -> Iterator[dict[str, str]]:
    """Yield the texts of each translation unit, by language."""
    # Imported here: few corpora are TMX.
    from defusedxml.ElementTree import ParseError, iterparse

    body: Any = None
    with open_text(path) as file:
        try:
            for event, element in iterparse(file, events=("start", "end"), forbid_dtd=False):
                name = element.tag.rpartition("}")[2]
                if event == "start" and name == "body":
                    body = element
                elif event == "end" and name == "seg":
                    for inline in [*element.iter()][1:]:
                        if inline.tag.rpartition("}")[2] != "hi":  # others have markup, not text of the sentence
                            inline.text = None
                            del inline[:]
                elif event == "end" and name == "tu":
                    texts: dict[str, str] = {}
                    for variant in element:
                        code = variant.get(_LANG) or variant.get("lang")
                        segment = variant.find("{*}seg")
                        if code and segment is not None:
                            texts.setdefault(code, "".join(segment.itertext()))
                    yield texts
                    if body is not None:
                        body.clear()  # otherwise the tree of the whole file stays in memory
        except (ParseError, LookupError, ValueError) as error:  # the last two: an encoding, or entities of its own
            raise DataError(
                f"{path}: not TMX, damaged, or with an encoding or entities that are not supported ({error})."
            ) from None


# Parquet, Arrow and datasets.
_FieldPath = tuple[str, ...]  # names of a column and of the nested fields inside it, down to the values
_TEXT, _NUMBER = ("string", "binary"), ("float", "double", "halffloat", "int", "uint")  # types without their widths


@contextlib.contextmanager
def _open_table(place: Place, names: list[str] | None = None) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Open a table: its schema, and the rows of at least these columns. names: empty to count the rows."""
    kinds = (pa.ArrowException, OSError, ValueError, KeyError, StopIteration)  # the last three: of JSON
    with errors_of(place, "not Parquet, Arrow or JSON, or damaged", kinds):
        if isinstance(place, HubDataset):
            dataset = place.dataset
            yield dataset.features.arrow_schema, _batches_of(dataset.select_columns(names) if names else dataset)
            return
        head = start_of(place)
        if head.startswith(b"PAR1"):
            # Imported here: few corpora are Parquet.
            from pyarrow.parquet import ParquetFile

            with ParquetFile(place, buffer_size=1 << 20, pre_buffer=False) as parquet:
                yield parquet.schema_arrow, parquet.iter_batches(_N_ROW, columns=names, use_threads=False)
            return
        # Of a stream: a marker, or before Arrow 0.15 the length of the schema.
        if not head.startswith((b"ARROW1", b"\xff\xff\xff\xff")) and head[2:4] != b"\0\0":
            # Imported here: it takes a second, and few corpora are JSON.
            from datasets import load_dataset

            dataset = load_dataset("json", data_files=str(place), split="train", streaming=True)
            rows = _batches_of(dataset)
            first = next(rows, pa.record_batch({}))
            yield first.schema, itertools.chain([first], rows)
            return
        # Not memory-mapped: if the file were truncated while it is read, SIGBUS would kill the process.
        with pa.OSFile(str(place)) as file:
            if head.startswith(b"ARROW1"):
                reader = pa.ipc.open_file(file)
                yield reader.schema, map(reader.get_batch, range(reader.num_record_batches))
            else:
                reader = pa.ipc.open_stream(file)
                yield reader.schema, iter(reader)


def _batches_of(dataset: Any) -> Iterator[pa.RecordBatch]:
    parts = dataset.with_format("arrow").iter(batch_size=_N_ROW)
    return (batch for part in parts for batch in part.to_batches())


def _columns_of_types(types: Sequence[str], fields: Iterable[pa.Field]) -> Iterator[tuple[str, _FieldPath]]:
    """Yield the name and path of all columns of these types, also inside structs. A name may occur twice."""
    for column in fields:
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if pa.types.is_struct(kind):
            nested = _columns_of_types(types, kind)
            yield from ((f"{column.name}.{name}", (column.name, *path)) for name, path in nested)
        elif str(kind).removeprefix("large_").removesuffix("_view").rstrip("0123456789") in types:
            yield column.name, (column.name,)


def _table_rows(place: Place, columns: Sequence[Column], longest: int | None) -> Iterator[tuple[bytes | Flaw, ...]]:
    """Yield the texts of some columns as bytes, at most `longest` of each."""
    with _open_table(place) as (schema, _):
        found = list(_columns_of_types((*_TEXT, *_NUMBER), schema))
    names, path_of = [name for name, _ in found], dict(found)
    if wrong := [column for column in columns if names.count(str(column)) != 1]:
        raise DataError(f"{place}: expected one column {wrong[0]!r}, found {name_list(names)}.")
    paths = [path_of[str(column)] for column in columns]
    with _open_table(place, list(dict.fromkeys(path[0] for path in paths))) as (_, batches):
        for batch in batches:
            batch.validate()
            for start in range(0, len(batch), _N_ROW):
                part = batch.slice(start, _N_ROW)
                yield from zip(*(_column_texts(part, path, longest) for path in paths), strict=True)


def _column_texts(rows: pa.RecordBatch, path: _FieldPath, longest: int | None) -> Iterator[bytes | Flaw]:
    array = rows.column(path[0])
    array = pc.struct_field(array, list(path[1:])) if len(path) > 1 else array
    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    if pa.types.is_primitive(array.type):  # numbers
        array = array.cast(pa.large_string())
    # As bytes, so that invalid UTF-8 is reported with its record.
    array = array.cast(pa.large_binary())
    array.validate(full=True)
    if longest is not None:
        array = pc.binary_slice(array, 0, longest + 1)
    for value in array.to_pylist():
        if value is None:
            yield Flaw(BAD_RECORD, f"null in the column {'.'.join(path)!r}.")
        else:
            yield value if longest is None else first_bytes(value, longest)
