"""Texts in some columns of Parquet files, Arrow files and streams, and what `datasets.load_dataset` loads.

Streamed: some rows of Parquet at a time, a record batch of Arrow. Columns hold text, `a.b` is b inside the struct a.
Code of a dataset is never run.
"""

import contextlib
import functools
import hashlib
import logging
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nmt.data.filters import BAD_RECORD
from nmt.data.formats import Column, Flaw, Found, Reading, shown
from nmt.errors import DataError

_HUB_SECONDS = 5.0
_N_ROW = 512  # that are texts of Python at once
_PARQUET, _ARROW_FILE = b"PAR1", b"ARROW1"


@dataclass(frozen=True)
class Loaded:
    """A dataset to load: its name on the hub or its folder, and what of it."""

    name: str
    subset: str | None
    split: str
    found: list[Any] = field(default_factory=list, compare=False)  # the dataset, once it is loaded

    def __str__(self) -> str:
        return " ".join(part for part in (self.name, self.subset, self.split) if part)

    def dataset(self) -> Any:
        """The `datasets.Dataset`. DataError where there is none."""
        if not self.found:
            # Imported here: it takes a second, and few corpora are datasets.
            unreachable = None if Path(self.name).exists() else _why_no_hub()
            if unreachable:  # what was loaded before is still found, and nothing is tried again and again
                os.environ["HF_HUB_OFFLINE"] = "1"
            logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
            from datasets import load_dataset
            from datasets.exceptions import DatasetsError

            try:
                self.found.append(load_dataset(self.name, self.subset, split=self.split))
            except (DatasetsError, OSError, ValueError, RuntimeError, LookupError, TypeError, ImportError) as error:
                if unreachable:
                    raise DataError(
                        f"dataset {self}: {unreachable}, and it was not loaded here before. Try again with a network, "
                        "or name files."
                    ) from None
                what = " ".join(str(error).split())[:500]
                raise DataError(
                    f"dataset {self}: cannot be loaded ({what}). Its name, subset and split are as on its page of the "
                    "hub; a folder of files is named by its path; scripts of datasets are not run."
                ) from None
        return self.found[0]


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


Table = Path | Loaded
# The names of a column and of the fields inside it that lead to the texts.
_Way = tuple[str, ...]


def read_rows(table: Table, columns: Sequence[Column], reading: Reading) -> Iterator[tuple[Found, ...]]:
    """The texts of some columns of every row, one by one."""
    for number, values in enumerate(_values(table, columns, reading.longest + 1), start=1):
        texts: list[Found] = []
        for column, value in zip(columns, values, strict=True):
            if value is None:
                texts.append(reading.settle(Flaw(BAD_RECORD, f"null in the column {column!r}"), table, number))
            else:
                text = reading.decode(value, table, number)
                texts.append(text if text is None else reading.one_line(text, number))
        yield tuple(texts)


def complaint_about_table(table: Table, columns: Sequence[Column]) -> str | None:
    """Return why these columns cannot be read, by the schema."""
    try:
        with _opened(table) as there:
            for column in columns:
                _way(there.schema, column, table)
    except DataError as error:
        return str(error)
    return None


def names_in_table(table: Table) -> list[str]:
    """The names of all columns that are one level deep, and `a.b` of those inside structs."""
    with _opened(table) as there:
        inside = [
            f"{each.name}.{one.name}" for each in there.schema if pa.types.is_struct(each.type) for one in each.type
        ]
        return [each.name for each in there.schema if not pa.types.is_struct(each.type)] + inside


def count_rows(table: Table) -> int:
    """The number of rows."""
    with _opened(table) as there:
        return there.n_row()


def size_and_digest(loaded: Loaded, column: Column) -> tuple[int, str]:
    """Bytes of the texts in a column of a dataset, and their SHA-256."""
    size, digest = 0, hashlib.sha256()
    for (value,) in _values(loaded, (column,), None):
        digest.update(b"-" if value is None else f"{len(value)}:".encode())
        if value is not None:
            size += len(value)
            digest.update(value)
    return size, digest.hexdigest()


@dataclass(frozen=True)
class _Open:
    """A table that is open: its columns, how many rows, and those of some columns, in pieces."""

    schema: pa.Schema
    n_row: Callable[[], int]
    batches: Callable[[Sequence[_Way]], Iterator[pa.RecordBatch]]


@contextlib.contextmanager
def _opened(table: Table) -> Iterator[_Open]:
    """Open a table; what goes wrong while it is read becomes a DataError."""
    try:
        if isinstance(table, Loaded):
            yield _dataset(table.dataset())
            return
        with open(table, "rb") as file:
            head = file.read(8)
        if head.startswith(_PARQUET):
            # Imported here: few corpora are Parquet.
            from pyarrow.parquet import ParquetFile

            # Pages are read as they are needed, not whole row groups.
            with ParquetFile(table, buffer_size=1 << 20, pre_buffer=False) as parquet:
                yield _parquet(parquet)
        else:
            # Not mapped: a file that becomes shorter while it is read would end the process by SIGBUS.
            with pa.OSFile(str(table)) as opened:
                yield _arrow_file(opened) if head.startswith(_ARROW_FILE) else _arrow_stream(opened)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, pa.ArrowException):
            raise DataError(f"{table}: cannot be read ({error.strerror or error}).") from None
        what = str(error).split("\n")[0][:300]
        raise DataError(
            f"{table}: neither Parquet nor Arrow, or damaged ({what}). Download or write it again."
        ) from None


def _dataset(dataset: Any) -> _Open:
    def batches(ways: Sequence[_Way]) -> Iterator[pa.RecordBatch]:
        names = list(dict.fromkeys(way[0] for way in ways))
        for rows in dataset.select_columns(names).with_format("arrow").iter(batch_size=_N_ROW):
            yield from rows.to_batches()

    return _Open(dataset.features.arrow_schema, lambda: len(dataset), batches)


def _parquet(file: Any) -> _Open:
    def batches(ways: Sequence[_Way]) -> Iterator[pa.RecordBatch]:
        yield from file.iter_batches(batch_size=_N_ROW, columns=[".".join(way) for way in ways], use_threads=False)

    return _Open(file.schema_arrow, lambda: int(file.metadata.num_rows), batches)


def _arrow_file(file: pa.NativeFile) -> _Open:
    schema = pa.ipc.open_file(file).schema

    def batches(ways: Sequence[_Way]) -> Iterator[pa.RecordBatch]:
        reader = pa.ipc.open_file(file, options=_only(schema, ways))
        yield from map(reader.get_batch, range(reader.num_record_batches))

    return _Open(schema, lambda: _count(schema, batches), batches)


def _arrow_stream(file: pa.NativeFile) -> _Open:
    file.seek(0)
    schema = pa.ipc.open_stream(file).schema

    def batches(ways: Sequence[_Way]) -> Iterator[pa.RecordBatch]:
        file.seek(0)
        yield from pa.ipc.open_stream(file, options=_only(schema, ways))

    return _Open(schema, lambda: _count(schema, batches), batches)


def _count(schema: pa.Schema, batches: Callable[[Sequence[_Way]], Iterator[pa.RecordBatch]]) -> int:
    return sum(map(len, batches([(name,) for name in schema.names[:1]])))


def _only(schema: pa.Schema, ways: Sequence[_Way]) -> pa.ipc.IpcReadOptions:
    """Options that leave all other columns where they are."""
    names = {way[0] for way in ways}
    return pa.ipc.IpcReadOptions(included_fields=[n for n, name in enumerate(schema.names) if name in names])


def _way(schema: pa.Schema, column: Column, table: Table) -> _Way:
    """Return where the texts of a column are. DataError if there is none of the name, or something else than text."""
    if isinstance(column, int):
        raise DataError(f"{table}: column {column}: columns have names here; there are {shown(schema.names)}.")
    way = (column,) if column in schema.names else tuple(column.split("."))
    if schema.names.count(way[0]) > 1:
        raise DataError(f"{table}: {schema.names.count(way[0])} columns are called {way[0]!r}.")
    here: Any = schema
    for n, name in enumerate(way):
        names = here.names if here is schema else [field.name for field in here] if pa.types.is_struct(here) else []
        if name not in names:
            where = f"in {'.'.join(way[:n])!r} " if n else ""
            raise DataError(f"{table}: no column {column!r}: {where}there are {shown(names) or 'no columns inside'}.")
        here = here.field(name).type
    text = here.value_type if pa.types.is_dictionary(here) else here
    if not any(is_kind(text) for is_kind in _TEXT):
        raise DataError(f"{table}: column {column!r} holds {here}; expected text.")
    return way


_TEXT = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
)


def _values(table: Table, columns: Sequence[Column], longest: int | None) -> Iterator[tuple[bytes | None, ...]]:
    """The bytes of each text, at most `longest` of them, row by row; None is null."""
    with _opened(table) as there:
        ways = [_way(there.schema, column, table) for column in columns]
        for batch in there.batches(ways):
            batch.validate()  # lengths and buffers; what is in them is looked at slice by slice
            sides = [_texts(_follow(batch, way), longest) for way in ways]
            yield from zip(*sides, strict=True)


def _follow(rows: pa.RecordBatch, way: _Way) -> pa.Array:
    array = rows.column(way[0])
    return pc.struct_field(array, list(way[1:])) if len(way) > 1 else array


def _texts(array: pa.Array, longest: int | None) -> Iterator[bytes | None]:
    """The bytes of the texts of a column, some rows at a time, without a look whether they are UTF-8."""
    words = _raw(array.dictionary) if pa.types.is_dictionary(array.type) else None
    for start in range(0, len(array), _N_ROW):
        rows = array.slice(start, _N_ROW)
        raw = _raw(rows) if words is None else words.take(rows.indices)  # which refuses what is out of bounds
        yield from (raw if longest is None else pc.binary_slice(raw, 0, longest)).to_pylist()


def _raw(array: pa.Array) -> pa.Array:
    """The bytes of texts, so that one which is not UTF-8 is found where it stands."""
    array = array.view(_RAW.get(array.type, array.type))
    array.validate(full=True)
    return array.cast(pa.large_binary()) if pa.types.is_binary_view(array.type) else array


# The type of the bytes of a text.
_RAW = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}
