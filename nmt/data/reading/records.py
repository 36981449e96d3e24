"""Lines of which each is a record, TSV or JSONL: the texts in some of their columns.

A record is a line, whatever is in it, so numbers of lines are those of `wc -l` and nothing shifts. In TSV a tab ends a
column and nothing else means anything, quotes neither; every line has as many columns as the first.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nmt.data.filters.clean import BAD_RECORD, TOO_LONG
from nmt.data.reading.fields import Column, Flaw, Found, Reading, shown
from nmt.data.text.lines import read_lines
from nmt.errors import DataError

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
