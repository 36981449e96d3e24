"""Forms of files with pairs: text, TSV, CSV, JSONL, TMX, Parquet, Arrow, and datasets of the Hugging Face Hub.

Each has a reader of records, from which the texts of some columns are taken. Record n of TSV and JSONL is line n. In
TSV a tab ends a column and quotes mean nothing. Tables are streamed; `a.b` is b inside a.
"""

import contextlib
import csv
import functools
import hashlib
import io
import itertools
import json
import logging
import math
import os
import ssl
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nmt.data.filters import BAD_RECORD, BAD_UTF8, TOO_LONG
from nmt.data.lines import bad_utf8, count_lines, first_bytes, open_text, refuse_stream, text_blocks, text_lines
from nmt.errors import DataError

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

Column = int | str  # the number of a column from 1, or its name
Policy = Literal["refuse", "drop"]
TABLES = ("parquet", "arrow", "dataset")
_LONGEST = 1 << 22  # bytes of a record of TSV or JSONL, characters of a field of CSV: far more than pairs have
_N_LOOKED_AT = 100  # records by which names of columns are told
_HUB_SECONDS = 5
_N_ROW = 512  # of a table that are in memory at once
_DEEPEST = 20  # objects inside each other in which names are looked for


class Flaw(NamedTuple):
    """Stands in place of a text. reason: one of `filters.REASONS`; what: the same of this very place, for a message."""

    reason: str
    what: str


Found = str | Flaw


@dataclass(frozen=True)
class Loaded:
    """A dataset to load: its name on the hub or its folder, and what of it."""

    name: str
    subset: str | None
    split: str

    def __str__(self) -> str:
        return " ".join(part for part in (self.name, self.subset, self.split) if part)

    @functools.cached_property
    def dataset(self) -> Any:
        """The `datasets.Dataset`. DataError where there is none."""
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        unreachable = None if Path(self.name).exists() else _why_no_hub()
        if unreachable:  # what was loaded before is still found, and nothing is tried again and again
            os.environ["HF_HUB_OFFLINE"] = "1"
        # Imported here: it takes a second, and reads the environment.
        from datasets import load_dataset
        from datasets.exceptions import DatasetsError

        try:
            return load_dataset(self.name, self.subset, split=self.split)
        except (DatasetsError, OSError, ValueError, RuntimeError, LookupError, TypeError, ImportError) as error:
            what = unreachable or " ".join(str(error).split())[:500]
            raise DataError(
                f"dataset {self}: cannot be loaded ({what}). Its name, subset and split are as on its page of the hub; "
                "a folder of files is named by its path; scripts of datasets are not run."
            ) from None


@functools.cache
def _why_no_hub() -> str | None:
    """Return why the hub cannot be reached; None if it can, or is not to be asked. One try of a few seconds."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return None
    hub = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        urllib.request.urlopen(urllib.request.Request(hub, method="HEAD"), timeout=_HUB_SECONDS).close()
    except urllib.error.HTTPError:
        return None  # which is an answer
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return None if isinstance(reason, ssl.SSLError) else f"the hub {hub} cannot be reached ({reason})"
    return None


Place = Path | Loaded


@dataclass(frozen=True)
class Reading:
    """Policy of reading. longest: bytes of a text that are wanted; a longer one may come out cut, but not shorter than
    `longest - 4`. notes: counts what is odd but harmless; joined: gets numbers of records whose text had line feeds.
    """

    bad_utf8: Policy
    bad_records: Policy
    longest: int
    notes: Counter[str] = field(default_factory=Counter)
    joined: Callable[[int], object] = lambda _: None

    def text(self, found: bytes | Found, place: object, number: int) -> Found:
        """Return what was found in a record as one line of text, or a flaw, unless that is to be refused."""
        if isinstance(found, bytes):
            found = _decoded(found)
        if isinstance(found, Flaw):
            option = {BAD_UTF8: "bad_utf8", BAD_RECORD: "bad_records"}.get(found.reason)
            if option and getattr(self, option) == "refuse":
                raise DataError(
                    f"{place}:{number}: {found.what} Mend the file; pairs of training corpora can be dropped and "
                    f"counted instead: data.{option}: drop."
                )
        elif "\n" in found:
            self.joined(number)
            return " ".join(piece for line in found.split("\n") if (piece := line.removesuffix("\r")))
        return found


def _decoded(raw: bytes) -> Found:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return Flaw(BAD_UTF8, bad_utf8(error))


def shown(names: Iterable[str]) -> str:
    """Some names, for a message."""
    first = [name if len(name) <= 30 else f"{name[:27]}..." for name in itertools.islice(names, 13)]
    return ", ".join(map(repr, first[:12])) + (", ..." if len(first) > 12 else "") or "none"


def read_text(path: Path, reading: Reading) -> Iterator[Found]:
    """The lines of a file of text."""
    n_line = 0
    for block in text_blocks(path, reading.longest, reading.notes):
        lines: list[Found] = []
        with contextlib.suppress(UnicodeDecodeError):
            lines += block.decode("utf-8").split("\n")
        if not lines or 4 * max(map(len, lines)) > reading.longest:
            cut = (first_bytes(raw, reading.longest) for raw in block.split(b"\n"))
            lines = [reading.text(raw, path, number) for number, raw in enumerate(cut, start=n_line + 1)]
        n_line += len(lines)
        yield from lines


def read_columns(
    place: Place, form: str, columns: Sequence[Column], reading: Reading, *, header: bool, drop_flagged: bool
) -> Iterator[tuple[Found, ...]]:
    """The texts of some columns of every record.

    header: the first record holds none. drop_flagged: of JSONL; in place of texts that are flagged stands a flaw.
    """
    rows: Iterator[Sequence[bytes | Found]]
    if form in TABLES:
        rows = _rows(place, columns, reading.longest)
    else:
        records: Iterator[Any] = _records(place, form, reading.notes)
        if form in ("tsv", "csv"):
            rows = _of_fields(records, columns, header)
        elif form == "jsonl":
            rows = _of_keys(records, columns, drop_flagged)
        else:
            rows = ([unit.get(str(column), "") for column in columns] for unit in records)
    for number, row in enumerate(rows, start=1 + header):
        yield tuple([reading.text(found, place, number) for found in row])


def names_in(place: Place, form: str, *, header: bool = False) -> list[str]:
    """The names of all columns, keys or languages that have text, as far as the first records tell.

    header: the first record has to be readable.
    """
    if form in TABLES:
        with _table(place) as (schema, _):
            return [name for name, _ in _ways_to(_TEXT, schema)]
    found: dict[str, None] = {}
    for record in itertools.islice(_records(place, form), _N_LOOKED_AT):
        if isinstance(record, list):
            return record
        if header and isinstance(record, Flaw):
            raise DataError(f"{place}:1: {record.what} Mend the line, which has the names of the columns.")
        found |= dict.fromkeys(_text_keys(record) if isinstance(record, dict) else ())
    return list(found)


def count_records(place: Place, form: str) -> int:
    """The number of records, a header included."""
    if isinstance(place, Loaded):
        return len(place.dataset)
    if form in TABLES:
        with _table(place, []) as (_, batches):
            return sum(map(len, batches))
    if form in ("csv", "tmx"):
        return sum(1 for _ in _records(place, form))
    assert isinstance(place, Path)
    return count_lines(place)


def check_column(place: Place, form: str, column: Column, *, header: bool = False) -> None:
    """Raise DataError for a column, key or language that is not there. header: of `names_in`."""
    names = names_in(place, form, header=header)
    if not names and form not in TABLES and not count_records(place, form):
        return  # it is empty, which is told later
    by_number = isinstance(column, int) and form in ("tsv", "csv")
    if not (0 < int(column) <= len(names) if by_number else names.count(str(column)) == 1):
        records = _records(place, form) if form in ("jsonl", "tmx") else ()
        if any(isinstance(record, dict) and str(column) in _text_keys(record) for record in records):
            return  # after the first records
        expected = _EXPECTED.get(form, "columns of text, by name")
        raise DataError(f"{place}: not one column {column!r} of text: there are {shown(names)}. Expected {expected}.")


def size_and_digest(loaded: Loaded, column: Column) -> tuple[int, str]:
    """Bytes of the texts in a column of a dataset, and their SHA-256."""
    size, digest = 0, hashlib.sha256()
    for (value,) in _rows(loaded, (column,), None):
        digest.update(f"{len(value)}:".encode() + value if isinstance(value, bytes) else b"-")
        size += len(value) if isinstance(value, bytes) else 0
    return size, digest.hexdigest()


def read_scores(place: Place, form: str, column: Column | None, *, header: bool, is_own: bool) -> NDArray[np.float64]:
    """The numbers in a column, or of the lines of text; NaN for null. DataError for what is no number, as "nan".

    is_own: the pairs stand there, too. A broken record is NaN, and their reader drops or refuses it.
    """
    rows: Iterator[Sequence[Any]]
    if form in TABLES:
        rows = _rows(place, (str(column),), 100)
    elif column is None:
        rows = ((line,) for line in text_lines(cast(Path, place), 100))
    elif form in ("tsv", "csv"):
        check_column(place, form, column, header=header)
        rows = _of_fields(_records(place, form), (column,), header)
    else:
        rows = ((record,) for record in _records(place, form))

    def number_of(row: Sequence[Any], number: int) -> float:
        value = row[0].decode("utf-8", "replace") if isinstance(row[0], bytes) else row[0]
        value = _under(value, str(column)) if isinstance(value, dict) else value
        if value is None or (isinstance(row[0], Flaw) and (is_own or form in TABLES)):  # of tables: null
            return math.nan
        with contextlib.suppress(TypeError, ValueError):
            if not isinstance(value, bool) and not math.isnan(found := float(value)):
                return found
        what = value.what if isinstance(value, Flaw) else f"{json.dumps(value, ensure_ascii=False):.40} is no number."
        raise DataError(f"{place}:{number}: {what} Each pair needs a score, a number.")

    return np.fromiter(map(number_of, rows, itertools.count(1 + header)), np.float64)


# TSV and CSV.
Record = list[str] | dict[str, Any] | Flaw


def _records(place: Place, form: str, notes: Counter[str] | None = None) -> Iterator[Record]:
    """The records of a file, none of a table. notes: counts what is odd but harmless."""
    assert isinstance(place, Path)
    if form == "csv":
        yield from _csv(place)
    elif form == "tmx":
        yield from _tmx(place)
    else:
        for raw in text_lines(place, _LONGEST, notes):
            is_cut = len(raw) > _LONGEST - 4
            line: Found = Flaw(TOO_LONG, f"a line of over {_LONGEST - 4:,} bytes.") if is_cut else _decoded(raw)
            if isinstance(line, Flaw):
                yield line
            else:
                yield _object_of(line) if form == "jsonl" else line.split("\t")


def _csv(path: Path) -> Iterator[list[str]]:
    """The records of CSV, blank lines left out; columns are parted by commas, or by semicolons where there are more."""
    csv.field_size_limit(_LONGEST)
    with open_text(path) as raw:
        head = raw.peek(4096).partition(b"\n")[0]
        delimiter = ";" if head.count(b";") > head.count(b",") else ","
        rows = csv.reader(io.TextIOWrapper(raw, "utf-8-sig", newline=""), delimiter=delimiter, strict=True)
        try:
            yield from filter(None, rows)
        except UnicodeDecodeError:
            raise DataError(
                f"{path}: invalid UTF-8 near line {rows.line_num + 1:,}. Save it as CSV in UTF-8."
            ) from None
        except csv.Error as error:
            raise DataError(f"{path}:{rows.line_num}: not CSV ({error}). Look at the quotes there.") from None


def _of_fields(records: Iterable[Any], columns: Sequence[Column], header: bool) -> Iterator[Sequence[Found]]:
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
            yield [record[at] for at in places]
        else:
            flaw = Flaw(BAD_RECORD, f"{len(record)} columns, but the first record has {n_column}.")
            yield (flaw,) * len(columns)


# JSONL.
# The key under which nmt-translate says what looks wrong, and what it says there of translations that look right.
_FLAGS, _HARMLESS = "flags", {"split"}
_LONGEST_FLAG = 20
# Whole numbers are no texts, and however long they are, they are JSON: Python would refuse those of 4,300 digits.
_JSON = json.JSONDecoder(parse_int=float)
_JSON_KINDS = {
    type(None): "null",
    bool: "true or false",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
}


def _object_of(line: str) -> dict[str, Any] | Flaw:
    try:
        record = _JSON.decode(line)
    except (ValueError, RecursionError) as error:
        what = f"not JSON ({error})" if line.strip() else "a blank line in place of a JSON object"
        return Flaw(BAD_RECORD, f"{what}.")
    if not isinstance(record, dict):
        return Flaw(BAD_RECORD, f"{_JSON_KINDS[type(record)]} in place of a JSON object.")
    return record


def _of_keys(records: Iterable[Any], columns: Sequence[Column], drop_flagged: bool) -> Iterator[Sequence[Found]]:
    for record in records:
        flaw = record if isinstance(record, Flaw) else _flagged(record) if drop_flagged else None
        yield (flaw,) * len(columns) if flaw else [_text_under(record, str(column)) for column in columns]


def _under(record: Any, key: str) -> Any:
    """The value under a key, or under `a.b` for b inside a where there is no key `a.b`."""
    value = record
    for part in (key,) if key in record else key.split("."):
        if not isinstance(value, dict) or part not in value:
            return Flaw(BAD_RECORD, f"no key {key!r}; there are {shown(record)}.")
        value = value[part]
    return value


def _text_under(record: dict[str, Any], key: str) -> Found:
    if not isinstance(value := _under(record, key), str | Flaw):
        return Flaw(BAD_RECORD, f"{_JSON_KINDS[type(value)]} under the key {key!r}.")
    if isinstance(value, str) and not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        return Flaw(BAD_RECORD, f"half a surrogate pair under the key {key!r}, which is no character.")
    return value


def _text_keys(record: dict[str, Any], depth: int = 1) -> Iterator[str]:
    for key, value in record.items():
        if isinstance(value, str):
            yield key
        elif isinstance(value, dict) and depth < _DEEPEST:
            yield from (f"{key}.{name}" for name in _text_keys(value, depth + 1))


def _flagged(record: dict[str, Any]) -> Flaw | None:
    """The first thing that is said against a translation."""
    flags = record.get(_FLAGS)
    if not isinstance(flags, list) or not all(isinstance(flag, str) for flag in flags):
        return Flaw(BAD_RECORD, f"no list of texts under the key {_FLAGS!r}, which drop_flagged asks for.")
    for found in flags:
        if found not in _HARMLESS:
            return Flaw(f"flagged {found[:_LONGEST_FLAG]}", f"a translation that is flagged {found}.")
    return None


# TMX.
_LANG = "{http://www.w3.org/XML/1998/namespace}lang"


def _tmx(path: Path) -> Iterator[dict[str, str]]:
    """The texts of each unit by their languages."""
    # Imported here: few corpora are TMX.
    from xml.etree.ElementTree import ParseError

    from defusedxml.common import DefusedXmlException
    from defusedxml.ElementTree import iterparse

    body: Any = None
    with open_text(path) as file:
        try:
            for event, element in iterparse(file, events=("start", "end"), forbid_dtd=False):
                name = _tag(element)
                if event == "start" and name == "body":
                    body = element
                elif event == "end" and name == "tu":
                    found: dict[str, str] = {}
                    for variant in element:
                        code = variant.get(_LANG) or variant.get("lang")
                        segment = next((child for child in variant if _tag(child) == "seg"), None)
                        if code and segment is not None:
                            found.setdefault(code, "".join(_pieces(segment)))
                    yield found
                    if body is not None:
                        body.clear()  # or the whole file is in memory at the end
        except DefusedXmlException:
            raise DataError(
                f"{path}: declares entities of its own, which are not read. Write it without them."
            ) from None
        except (ParseError, LookupError, ValueError) as error:  # the last two for an encoding that is not read
            raise DataError(f"{path}: not TMX, or damaged, or in an encoding that is not read ({error}).") from None


def _pieces(element: "Element") -> Iterator[str]:
    """The text of a segment without inline markup; what <hi> highlights is text of the sentence."""
    yield element.text or ""
    for child in element:
        if _tag(child) == "hi":
            yield from _pieces(child)
        yield child.tail or ""


def _tag(element: "Element") -> str:
    return str(element.tag).rpartition("}")[2]


# What a message says of the columns of a form.
_EXPECTED = {
    "tsv": "columns between tabs (CSV: format: csv)",
    "csv": "columns between commas",
    "jsonl": "a JSON object a line, with texts",
    "tmx": "units with texts of that language",
}


# Parquet, Arrow and datasets.
_Way = tuple[str, ...]  # the names of a column and of the fields inside it that lead to the values
_TEXT, _NUMBER = ("string", "binary"), ("float", "double", "halffloat", "int", "uint")  # types without their widths


@contextlib.contextmanager
def _table(place: Place, names: list[str] | None = None) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Open a table: its schema, and its rows, of some columns. names: none for as little as tells their number."""
    try:
        if isinstance(place, Loaded):
            dataset = place.dataset
            chosen = (dataset.select_columns(names) if names else dataset).with_format("arrow")
            rows = (batch for part in chosen.iter(batch_size=_N_ROW) for batch in part.to_batches())
            yield dataset.features.arrow_schema, rows
            return
        refuse_stream(place)
        with open(place, "rb") as opened:
            head = opened.read(8)
        if head.startswith(b"PAR1"):
            # Imported here: few corpora are Parquet.
            from pyarrow.parquet import ParquetFile

            with ParquetFile(place, buffer_size=1 << 20, pre_buffer=False) as parquet:
                yield parquet.schema_arrow, parquet.iter_batches(_N_ROW, columns=names, use_threads=False)
            return
        # Not mapped: a file that becomes shorter while it is read would end the process by SIGBUS.
        with pa.OSFile(str(place)) as file:
            is_file = head.startswith(b"ARROW1")
            new: Any = pa.ipc.open_file if is_file else pa.ipc.open_stream
            schema = new(file).schema
            # None would be all of them.
            fields = [] if names is None else [schema.get_field_index(name) for name in names] or [0]
            file.seek(0)
            reader = new(file, options=pa.ipc.IpcReadOptions(included_fields=fields))
            batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else iter(reader)
            yield schema, batches
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise DataError(f"{place}: cannot be read ({error.strerror or error}).") from None
        what = str(error).split("\n")[0][:300]
        raise DataError(
            f"{place}: neither Parquet nor Arrow, or damaged ({what}). Download or write it again."
        ) from None


def _ways_to(types: Sequence[str], fields: Iterable[pa.Field]) -> Iterator[tuple[str, _Way]]:
    """The names of all columns of these types, also inside structs, and where they are; none that several have."""
    fields = list(fields)
    n_of = Counter(each.name for each in fields)
    for each in fields:
        if n_of[each.name] > 1:
            continue
        kind = each.type.value_type if pa.types.is_dictionary(each.type) else each.type
        if pa.types.is_struct(kind):
            yield from ((f"{each.name}.{name}", (each.name, *way)) for name, way in _ways_to(types, kind))
        elif str(kind).removeprefix("large_").removesuffix("_view").rstrip("0123456789") in types:
            yield each.name, (each.name,)


def _rows(place: Place, columns: Sequence[Column], longest: int | None) -> Iterator[tuple[bytes | Flaw, ...]]:
    """The bytes of the texts of some columns, at most `longest` of each."""
    with _table(place) as (schema, _):
        of = dict(_ways_to((*_TEXT, *_NUMBER), schema))
    if absent := [column for column in columns if str(column) not in of]:
        raise DataError(f"{place}: no column {absent[0]!r}: there are {shown(of)}.")
    ways = [of[str(column)] for column in columns]
    with _table(place, list(dict.fromkeys(way[0] for way in ways))) as (_, batches):
        for batch in batches:
            batch.validate()
            for start in range(0, len(batch), _N_ROW):
                part = batch.slice(start, _N_ROW)
                yield from zip(*(_texts(part, way, longest) for way in ways), strict=True)


def _texts(rows: pa.RecordBatch, way: _Way, longest: int | None) -> Iterator[bytes | Flaw]:
    array = rows.column(way[0])
    array = pc.struct_field(array, list(way[1:])) if len(way) > 1 else array
    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    if pa.types.is_primitive(array.type):  # numbers
        array = array.cast(pa.large_string())
    # As bytes, so that a text which is not UTF-8 is found where it stands.
    array = array.cast(pa.large_binary())
    array.validate(full=True)
    if longest is not None:
        array = pc.binary_slice(array, 0, longest + 1)
    for value in array.to_pylist():
        if value is None:
            yield Flaw(BAD_RECORD, f"null in the column {'.'.join(way)!r}.")
        else:
            yield value if longest is None else first_bytes(value, longest)
