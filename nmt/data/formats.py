"""Lines of which each is a record, TSV or JSONL: the texts in some of their columns.

A record is a line, whatever is in it, so numbers of lines are those of `wc -l` and nothing shifts. In TSV a tab ends a
column and nothing else means anything, quotes neither; every line has as many columns as the first.
"""

import contextlib
import csv
import io
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nmt.data.filters import BAD_RECORD, TOO_LONG
from nmt.data.lines import BOM, open_text, read_lines
from nmt.errors import DataError

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

# Content of one field of a line or row.
Column = int | str  # its number from 1, or its name
Policy = Literal["refuse", "drop"]


@dataclass(frozen=True)
class Flaw:
    """Stands in place of a text. reason: one of `filters.REASONS`; what: the same of this very place, for a message."""

    reason: str
    what: str


# None: it is not UTF-8, and data.bad_utf8 says drop.
Found = str | Flaw | None


def shown(names: Iterable[str]) -> str:
    """Some names, for a message."""
    first = [name if len(name) <= 30 else f"{name[:27]}..." for name in itertools.islice(names, 13)]
    return ", ".join(map(repr, first[:12])) + (", ..." if len(first) > 12 else "")


def _nothing(_: int) -> None:
    """The default for `joined`: ignore it."""


@dataclass(frozen=True)
class Reading:
    """Policy of reading. longest: bytes of a text that are wanted; a longer one may come out cut, but not shorter than
    `longest - 4`. notes: counts what is odd but harmless; joined: gets the number of a line or row whose text had line
    feeds.
    """

    bad_utf8: Policy
    bad_records: Policy
    longest: int
    notes: Counter[str] = field(default_factory=Counter)
    joined: Callable[[int], None] = _nothing

    def settle(self, found: Found, name: object, number: int) -> Found:
        """Return what was found in a line or row of a file or dataset, unless it is to be refused."""
        if isinstance(found, Flaw) and found.reason == BAD_RECORD and self.bad_records == "refuse":
            raise DataError(
                f"{name}:{number}: {found.what}. Expected text there: mend the file; pairs of training corpora can be "
                "dropped and counted instead: data.bad_records: drop."
            )
        return found

    def one_line(self, text: str, number: int) -> str:
        """A text as a line: pieces between line feeds, put together by spaces; those at the ends go without."""
        if "\n" not in text:
            return text
        self.joined(number)
        return " ".join(piece for line in text.split("\n") if (piece := line.removesuffix("\r")))

    def decode(self, raw: bytes, name: object, number: int) -> str | None:
        """The text of some bytes, of which at most `longest` are looked at."""
        cut = len(raw) > self.longest
        raw = raw[: self.longest]
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            if cut and error.start >= len(raw) - 4:
                return raw[: error.start].decode("utf-8")  # cut inside a character: that is our doing
            if self.bad_utf8 == "drop":
                return None
            raise DataError(
                f"{name}:{number}: invalid UTF-8 at byte {error.start + 1} of the text (0x{raw[error.start]:02X}). "
                "Write the file again in UTF-8; pairs of training corpora can be dropped instead: data.bad_utf8: drop."
            ) from None


# Bytes of a line that are taken apart: far more than pairs have, and little even where a bracket becomes an object.
_LONGEST = 1 << 22
# The key under which nmt-translate says what looks wrong, and what it says there of translations that look right.
FLAGS = "flags"
_HARMLESS = {"split"}
_LONGEST_FLAG = 20
# Whole numbers are no texts, and however long they are, they are JSON: Python would refuse those of 4,300 digits.
_JSON = json.JSONDecoder(parse_int=float)
# Lines in which a key must occur, or it is the wrong one.
_N_LOOKED_AT = 100


def read_records(
    path: Path, form: str, columns: Sequence[Column], reading: Reading, *, header: bool, drop_flagged: bool = False
) -> Iterator[tuple[Found, ...]]:
    """The texts of some columns of every line, one by one. form: tsv or jsonl; header: the first line holds none.

    drop_flagged: of JSONL; in place of texts that are flagged stands a flaw.
    """
    lines = enumerate(read_lines(path, bad_utf8=reading.bad_utf8, longest=_LONGEST, notes=reading.notes), start=1)
    take = _Keys(columns, drop_flagged=drop_flagged).take if form == "jsonl" else None
    for number, line in lines:
        if take is None and line is not None:
            places, complaint = _places(line, columns, header=header)
            if complaint:
                raise DataError(f"{path}: {complaint}")
            take = _Tabs(places, line.count("\t") + 1).take
            if header:
                continue
        if line is None:
            yield (None,) * len(columns)
        elif take is None or _is_cut(line):
            yield (Flaw(TOO_LONG, f"a line of over {_LONGEST - 4:,} bytes"),) * len(columns)
        else:
            found = take(line)
            for one in found:
                reading.settle(one, path, number)
            yield tuple(reading.one_line(one, number) if isinstance(one, str) else one for one in found)


def complaint_about_records(
    path: Path, form: str, columns: Sequence[Column], *, header: bool, drop_flagged: bool = False
) -> str | None:
    """Return why these columns cannot be read from the file, as far as its first lines tell."""
    lines = (line for line in read_lines(path, bad_utf8="drop", longest=_LONGEST) if line is not None)
    if form == "tsv":
        first = next(lines, "")
        return _places(first, columns, header=header)[1] if first else None
    start = [line for line in itertools.islice(lines, _N_LOOKED_AT) if not _is_cut(line)]
    if found := _complaint_about_keys(start, columns):
        return found
    if drop_flagged and (found := _complaint_about_keys(start, [FLAGS])):
        return f"drop_flagged: {found} Was it written by nmt-translate --format jsonl?"
    return None


def names_in_records(path: Path, form: str) -> list[str]:
    """The columns of the first line of TSV; the keys of the first object of JSONL, `a.b` for b inside a."""
    line = next(iter(read_lines(path, bad_utf8="drop", longest=_LONGEST)), None) or ""
    if form == "tsv":
        return line.split("\t")
    record = _parsed(line)
    if isinstance(record, Flaw):
        return []
    inside = [f"{key}.{name}" for key, value in record.items() if isinstance(value, dict) for name in value]
    return [key for key, value in record.items() if isinstance(value, str)] + inside


def _is_cut(line: str) -> bool:
    return 4 * len(line) > _LONGEST - 4 and len(line.encode("utf-8")) > _LONGEST - 4


def _places(first: str, columns: Sequence[Column], *, header: bool) -> tuple[list[int], str]:
    """Find where columns stand in a line of TSV, from 0, by its first line; and what is wrong with them, or nothing."""
    names = first.split("\t")
    if "\t" not in first:
        return [], f"no tab in the first line: {shown([first])}. Is it TSV? (CSV: format: csv)"
    places = []
    for column in columns:
        if isinstance(column, int):
            if column > len(names):
                return [], f"no column {column}: its first line has {len(names)}, counted from 1."
            places.append(column - 1)
        elif not header or names.count(column) != 1:
            how = "there are" if column not in names else "it occurs more than once in"
            return [], f"no column {column!r} by its first line: {how} {shown(names)}."
        else:
            places.append(names.index(column))
    return places, ""


class _Tabs:
    """Takes texts out of lines of TSV."""

    def __init__(self, places: Sequence[int], n_column: int) -> None:
        self._places, self._n_column = places, n_column

    def take(self, line: str) -> tuple[Found, ...]:
        """The texts in a line, in the order of the columns."""
        texts = line.split("\t")
        if len(texts) != self._n_column:
            what = f"{len(texts)} columns, but the first line has {self._n_column}"
            return (Flaw(BAD_RECORD, what),) * len(self._places)
        return tuple(texts[place] for place in self._places)


class _Keys:
    """Takes texts out of lines of JSONL: a key by its name, or `a.b` for b inside a where there is no key `a.b`."""

    def __init__(self, columns: Sequence[Column], *, drop_flagged: bool) -> None:
        self._keys = [str(column) for column in columns]
        self._parts = sorted({part for key in self._keys for part in (key, *key.split("."))})
        self._drops_flagged = drop_flagged

    def take(self, line: str) -> tuple[Found, ...]:
        """The texts in a line, in the order of the keys."""
        record = _parsed(line)
        if isinstance(record, Flaw):
            return (record,) * len(self._keys)
        if twice := self._twice(line):
            return (Flaw(BAD_RECORD, f"the key {twice!r} more than once in an object"),) * len(self._keys)
        if self._drops_flagged and (flaw := _flagged(record)):
            return (flaw,) * len(self._keys)
        return tuple(self._text(record, key) for key in self._keys)

    def _twice(self, line: str) -> str | None:
        """One of the keys, or a part of one, that an object has more than once: which text is meant, nothing tells."""
        suspect = [part for part in self._parts if line.count(f'"{part}"') > 1]  # or in an object or text elsewhere
        if not suspect:
            return None
        found: list[str] = []

        def look(pairs: list[tuple[str, Any]]) -> None:
            names = [name for name, _ in pairs]
            found.extend(part for part in suspect if names.count(part) > 1)

        json.JSONDecoder(object_pairs_hook=look, parse_int=float).decode(line)
        return next(iter(found), None)

    def _text(self, record: dict[str, Any], key: str) -> Found:
        there, value = _value(record, key)
        if not there:
            return Flaw(BAD_RECORD, f"no key {key!r}; there are {shown(record)}")
        if not isinstance(value, str):
            return Flaw(BAD_RECORD, f"{_KINDS.get(type(value), 'a number')} under the key {key!r}")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            return Flaw(BAD_RECORD, f"half a surrogate pair under the key {key!r}, which is no character")
        return value


_KINDS = {type(None): "null", bool: "true or false", dict: "an object", list: "a list"}


def _parsed(line: str) -> dict[str, Any] | Flaw:
    try:
        record = _JSON.decode(line)
    except (ValueError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return Flaw(BAD_RECORD, f"not JSON ({what})" if line.strip() else "a blank line in place of a JSON object")
    if not isinstance(record, dict):
        return Flaw(BAD_RECORD, f"{_KINDS.get(type(record), 'text or a number')} in place of a JSON object")
    return record


def _value(record: dict[str, Any], key: str) -> tuple[bool, Any]:
    """Return whether a key is there, and what is under it."""
    if key in record:
        return True, record[key]
    here: Any = record
    for part in key.split("."):
        if not isinstance(here, dict) or part not in here:
            return False, None
        here = here[part]
    return True, here


def _flagged(record: dict[str, Any]) -> Flaw | None:
    """The first thing that is said against a translation."""
    flags = record.get(FLAGS)
    if not isinstance(flags, list) or not all(isinstance(flag, str) for flag in flags):
        return Flaw(BAD_RECORD, f"no list of texts under the key {FLAGS!r}, which drop_flagged asks for")
    found = next((flag for flag in flags if flag not in _HARMLESS), None)
    return None if found is None else Flaw(f"flagged {found[:_LONGEST_FLAG]}", f"a translation that is flagged {found}")


def _complaint_about_keys(start: Sequence[str], columns: Sequence[Column]) -> str | None:
    records = [record for line in start if isinstance(record := _parsed(line), dict)]
    if not start:
        return None
    is_list = start[0].lstrip().startswith("[")
    if is_list or not records:
        why = "it begins like one list" if is_list else "no line of its first is a JSON object"
        return f"not JSONL, one JSON object a line: {why}."
    for column in columns:
        if isinstance(column, int):
            return f"column {column}: JSONL has keys and no numbers of columns; there are {shown(records[0])}."
        if not any(_value(record, column)[0] for record in records):
            return f"no key {column!r} in its first {len(start):,} lines; there are {shown(records[0])}."
    return None


# CSV and TMX.
_MAX_FIELD = 1 << 22  # characters of a field of CSV
_N_UNITS_READ = 100  # units of TMX by which its languages are told
_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
_KEPT_TAGS = {"hi"}  # of TMX: those whose content is text of the sentence


def read_documents(
    path: Path, form: str, columns: Sequence[Column], reading: Reading, *, header: bool
) -> Iterator[tuple[Found, ...]]:
    """The texts of some columns or languages of every record, one by one. form: csv or tmx."""
    records = _of_csv(path, columns, header=header) if form == "csv" else _of_tmx(path, columns)
    for number, found in enumerate(records, start=1 + header):
        for one in found:
            reading.settle(one, path, number)
        yield tuple(reading.one_line(one, number) if isinstance(one, str) else one for one in found)


def count_records(path: Path, form: str) -> int:
    """The number of records, a header included."""
    records = _rows(path) if form == "csv" else _units(path)
    return sum(1 for _ in records)


def names_in_document(path: Path, form: str) -> list[str]:
    """The names in the first record of CSV, the languages of the first units of TMX."""
    if form == "csv":
        return next(_rows(path), [])
    found: dict[str, None] = {}
    for _, unit in zip(range(_N_UNITS_READ), _units(path), strict=False):
        found |= dict.fromkeys(unit)
    return list(found)


def complaint_about_document(path: Path, form: str, columns: Sequence[Column]) -> str | None:
    """Return why these columns or languages cannot be read, as far as the first records tell."""
    try:
        names = names_in_document(path, form)
        for column in columns:
            if form == "csv":
                _place(names, column)
            elif str(column) not in names:
                return f"no text of the language {str(column)!r} in its first units; there are {shown(names)}."
    except DataError as error:
        return str(error).removeprefix(f"{path}: ")
    return None


def _rows(path: Path) -> Iterator[list[str]]:
    """The records of CSV, blank lines left out; columns are parted by commas, or by semicolons where there are more."""
    csv.field_size_limit(_MAX_FIELD)
    with open_text(path) as raw:
        start = raw.peek(len(BOM)) if isinstance(raw, io.BufferedReader) else b""
        head = start.removeprefix(BOM).split(b"\n", 1)[0]
        delimiter = ";" if head.count(b";") > head.count(b",") else ","
        text = io.TextIOWrapper(raw, "utf-8-sig", newline="")
        try:
            rows = csv.reader(text, delimiter=delimiter, strict=True)
            yield from filter(None, rows)
        except UnicodeDecodeError:
            raise DataError(
                f"{path}: invalid UTF-8 near line {rows.line_num + 1:,}. Save it as CSV in UTF-8."
            ) from None
        except csv.Error as error:
            raise DataError(f"{path}:{rows.line_num}: not CSV ({error}). Look at the quotes there.") from None
        finally:
            with contextlib.suppress(ValueError):
                text.detach()


def _place(names: Sequence[str], column: Column) -> int:
    """Return where a column stands, from 0."""
    if isinstance(column, int):
        if column > len(names):
            raise DataError(f"no column {column}: its first record has {len(names)}, counted from 1.")
        return column - 1
    if names.count(column) != 1:
        how = "there are" if column not in names else "it occurs more than once in"
        raise DataError(f"no column {column!r} by its first record: {how} {shown(names)}.")
    return names.index(column)


def _of_csv(path: Path, columns: Sequence[Column], *, header: bool) -> Iterator[tuple[Found, ...]]:
    rows = _rows(path)
    first = next(rows, [])
    places = [_place(first, column) for column in columns]
    for row in rows if header else _before(first, rows):
        if len(row) == len(first):
            yield tuple(row[place] for place in places)
        else:
            flaw = Flaw(BAD_RECORD, f"{len(row)} columns, but the first record has {len(first)}")
            yield (flaw,) * len(columns)


def _before(first: list[str], rows: Iterator[list[str]]) -> Iterator[list[str]]:
    if first:
        yield first
    yield from rows


def _of_tmx(path: Path, columns: Sequence[Column]) -> Iterator[tuple[Found, ...]]:
    for unit in _units(path):
        yield tuple(unit.get(str(column), "") for column in columns)


def _units(path: Path) -> Iterator[dict[str, str]]:
    """The texts of each unit by their languages, in the order of the file."""
    # Imported here: few corpora are TMX.
    from xml.etree.ElementTree import ParseError

    from defusedxml.common import DefusedXmlException
    from defusedxml.ElementTree import iterparse

    n_unit = 0
    with open_text(path) as file:
        try:
            body: Any = None
            for event, element in iterparse(file, events=("start", "end"), forbid_dtd=False):
                name = _tag(element)
                if event == "start":
                    body = element if name == "body" else body
                elif name == "tu":
                    n_unit += 1
                    yield _texts(element)
                    if body is not None:
                        body.clear()  # or the whole file is in memory at the end
        except DefusedXmlException:
            raise DataError(
                f"{path}: declares entities of its own, which are not read. Write it without them."
            ) from None
        except ParseError as error:
            raise DataError(f"{path}: after {n_unit:,} units: not TMX, or damaged ({error}).") from None


def _texts(unit: "Element") -> dict[str, str]:
    found: dict[str, str] = {}
    for variant in unit:
        segment = next((child for child in variant if _tag(child) == "seg"), None)
        code = variant.get(_LANG) or variant.get("lang")
        if code and segment is not None:
            found.setdefault(code, "".join(_pieces(segment)))
    return found


def _pieces(element: "Element") -> Iterator[str]:
    yield element.text or ""
    for child in element:
        if _tag(child) in _KEPT_TAGS:
            yield from _pieces(child)
        yield child.tail or ""


def _tag(element: "Element") -> str:
    return str(element.tag).rpartition("}")[2]
