"""CSV and TMX: records that are not lines, so that places in them are numbers of records, from 1.

Both are read as they come, one record after the other. A header of CSV is its record 1. Of TMX the texts of a unit are
told by their languages; one that a unit lacks is empty. Tags inside a text are left out, their content, too, as it is
code of the format.
"""

import contextlib
import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.data.filters.clean import BAD_RECORD
from nmt.data.reading.fields import Column, Flaw, Found, Reading, shown
from nmt.data.text.lines import BOM, open_text
from nmt.errors import DataError

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_LONGEST = 1 << 22  # characters of a field of CSV
_N_LOOKED_AT = 100  # units of TMX by which its languages are told
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
    for _, unit in zip(range(_N_LOOKED_AT), _units(path), strict=False):
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
    csv.field_size_limit(_LONGEST)
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
