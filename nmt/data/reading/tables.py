"""Rows of tables, Parquet, Arrow files and streams, and what `datasets.load_dataset` loads: the texts in some columns.

Read a few rows at a time; what that may unpack to is bounded in `unpacking.py`. Columns hold text, `a.b` is b inside
the struct a. Code of a dataset is never run.
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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nmt.data.filters.clean import BAD_RECORD
from nmt.data.reading.fields import Column, Flaw, Found, Reading, shown
from nmt.data.reading.unpacking import (
    largest_page,
    n_row_of_file,
    n_row_of_stream,
    refuse_shorter,
    refuse_too_many_bytes,
    refuse_too_many_rows,
)
from nmt.errors import DataError

_HUB_SECONDS = 5.0
_N_ROW = 512
# Rows of Parquet at once, or fewer where pages are large: a text that stands there once for many rows comes out as
# often as there are rows.
_N_UNPACKED = 32
# Bytes of some rows that are taken out of Arrow at once; where there are more, rows are taken one by one, and only as
# far as wanted.
_AT_ONCE = 1 << 26
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
    """Why these columns cannot be read, by the schema."""
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
        n_row = there.n_row()
    if isinstance(table, Path):
        refuse_too_many_rows(table, n_row)
    return n_row


def size_and_digest(loaded: Loaded, column: Column) -> tuple[int, str]:
    """Bytes of the texts in a column of a dataset, and their SHA-256."""
    size, digest = 0, hashlib.sha256()
    for (value,) in _values(loaded, (column,), None):
        digest.update(b"-" if value is None else f"{len(value)}:".encode())
        if value is not None:
            size += len(value)
            digest.update(value)
    return size, digest.hexdigest()


def _nothing() -> None:
    """Of what is not mapped, nothing can get lost."""


@dataclass(frozen=True)
class _Open:
    """A table that is open: its columns, how many rows, and those of some columns, in pieces."""

    schema: pa.Schema
    n_row: Callable[[], int]
    batches: Callable[[Sequence[_Way]], Iterator[pa.RecordBatch]]
    still_whole: Callable[[], None] = _nothing  # is asked before bytes of a mapped file are touched


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
                yield _parquet(table, parquet)
        else:
            with pa.memory_map(str(table)) as mapped:
                yield (_arrow_file if head.startswith(_ARROW_FILE) else _arrow_stream)(table, mapped)
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


def _parquet(path: Path, file: Any) -> _Open:
    def batches(ways: Sequence[_Way]) -> Iterator[pa.RecordBatch]:
        names = [".".join(way) for way in ways]
        together: list[pa.RecordBatch] = []
        n_row = max(1, min(_N_UNPACKED, _AT_ONCE // max(1, largest_page(path, file.metadata, names))))
        for few in file.iter_batches(batch_size=n_row, columns=names, use_threads=False):
            together.append(few)
            if len(together) * n_row >= _N_ROW or few.nbytes > _AT_ONCE // _N_UNPACKED:
                yield pa.concat_batches(together)
                together = []
        if together:
            yield pa.concat_batches(together)

    return _Open(file.schema_arrow, lambda: int(file.metadata.num_rows), batches)


def _arrow_file(path: Path, mapped: pa.MemoryMappedFile) -> _Open:
    n_row = n_row_of_file(path, mapped)
    reader, still_whole = pa.ipc.open_file(mapped), partial(refuse_shorter, path, mapped.size())

    def batches(ways: Sequence[_Way]) -> Iterator[pa.RecordBatch]:
        only = pa.ipc.open_file(mapped, options=_only(reader.schema, ways))
        for n in range(only.num_record_batches):
            still_whole()
            yield only.get_batch(n)

    return _Open(reader.schema, lambda: n_row, batches, still_whole)


def _arrow_stream(path: Path, mapped: pa.MemoryMappedFile) -> _Open:
    mapped.seek(0)
    n_row = n_row_of_stream(path, mapped)
    mapped.seek(0)
    schema, still_whole = pa.ipc.open_stream(mapped).schema, partial(refuse_shorter, path, mapped.size())

    def batches(ways: Sequence[_Way]) -> Iterator[pa.RecordBatch]:
        mapped.seek(0)
        for batch in pa.ipc.open_stream(mapped, options=_only(schema, ways)):
            yield batch
            still_whole()

    return _Open(schema, lambda: n_row, batches, still_whole)


def _only(schema: pa.Schema, ways: Sequence[_Way]) -> pa.ipc.IpcReadOptions:
    """Options that leave all other columns where they are."""
    names = {way[0] for way in ways}
    return pa.ipc.IpcReadOptions(included_fields=[n for n, name in enumerate(schema.names) if name in names])


def _way(schema: pa.Schema, column: Column, table: Table) -> _Way:
    """Where the texts of a column are. DataError if there is none of the name, or something else than text."""
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
        n_byte = 0
        for whole in there.batches(ways):
            whole.validate()  # lengths and buffers; what is in them is looked at slice by slice
            sides = [_Texts(_follow(whole, way)) for way in ways]
            for start in range(0, len(whole), _N_ROW):
                there.still_whole()
                found = [side.some(start, longest) for side in sides]
                if isinstance(table, Path):
                    n_byte += sum(size for size, _ in found)
                    refuse_too_many_bytes(table, n_byte)
                yield from zip(*(texts() for _, texts in found), strict=True)


def _follow(rows: pa.RecordBatch, way: _Way) -> pa.Array:
    array = rows.column(way[0])
    return pc.struct_field(array, list(way[1:])) if len(way) > 1 else array


class _Texts:
    """The texts of a column of some rows."""

    def __init__(self, array: pa.Array) -> None:
        self._array, self._dictionary = array, None
        if pa.types.is_dictionary(array.type):
            # It may be far larger than a slice of the rows, so it is looked at once.
            self._array, self._dictionary = array.indices, _raw(array.dictionary)
            self._lengths = _lengths(self._dictionary)

    def some(self, start: int, longest: int | None) -> tuple[int, Callable[[], list[bytes | None]]]:
        """Of the next rows from `start` the size of all texts, and what gives their bytes.

        Those are at most `longest` of each, without a look whether they are UTF-8.
        """
        rows = self._array.slice(start, _N_ROW)
        if self._dictionary is None:
            array, indices = _raw(rows), None
            size = pc.sum(_lengths(array)).as_py() or 0
        else:
            array, indices = self._dictionary, rows
            size = pc.sum(self._lengths.take(rows)).as_py() or 0  # refuses what is out of bounds
        return size, lambda: _bytes(array, indices, size, longest)


def _raw(array: pa.Array) -> pa.Array:
    """The bytes of texts, so that one which is not UTF-8 is found where it stands."""
    array = array.view(_RAW.get(array.type, array.type))
    array.validate(full=True)
    return array


def _lengths(array: pa.Array) -> pa.Array:
    """The bytes of each text; null is null."""
    if not pa.types.is_binary_view(array.type):
        return pc.binary_length(array)
    if not len(array):
        return pa.array([], pa.int32())
    views = np.frombuffer(array.buffers()[1], np.int32)[4 * array.offset :: 4][: len(array)]
    return pa.array(views, mask=array.is_null().to_numpy(zero_copy_only=False))


def _bytes(array: pa.Array, indices: pa.Array | None, size: int, longest: int | None) -> list[bytes | None]:
    """The bytes of some texts of together `size`, at most `longest` of each."""
    if size <= _AT_ONCE:
        found = array if indices is None else array.take(indices)
        if pa.types.is_binary_view(found.type):
            found = found.cast(pa.large_binary())
        texts = found.to_pylist()
        return texts if longest is None else [value if value is None else value[:longest] for value in texts]
    places = range(len(array)) if indices is None else indices.to_pylist()
    return [None if place is None else _start(array[place], longest) for place in places]


# The type of the bytes of a text.
_RAW = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}


def _start(value: pa.Scalar, longest: int | None) -> bytes | None:
    buffer = value.as_buffer()
    return None if buffer is None else buffer[:longest].to_pybytes()
