"""Files of a recipe: names, forms, and the columns of both sides; and columns of Parquet, Arrow and datasets."""

import contextlib
import functools
import glob
import hashlib
import logging
import os
import re
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
from nmt.data.formats import Column, Flaw, Found, Reading, names_in_document, names_in_records, shown
from nmt.data.lines import complaint_about, without_ending
from nmt.errors import DataError
from nmt.languages import language_of
from nmt.recipe.contradictions import ENDINGS, NOT_READ, STDIN
from nmt.recipe.data_options import CorpusFiles
from nmt.recipe.places import is_prepared

# From the names in a recipe to files.
_WILD = re.compile(r"\*|\?|\[[^\]]+\]")


@dataclass(frozen=True)
class Named:
    """A file as it is called, and where it is, None where there is none. wild: what a pattern's wildcards stood for."""

    name: str
    path: Path | None
    wild: tuple[str, ...] | None = None


def locate(
    names: Sequence[str], option: str, complaints: list[str], folders: Sequence[Path] = (Path(),)
) -> list[Named]:
    """The files of some names, patterns replaced by what they match, in the order of its names. What is not there is
    complained about. folders: where to look before the one that NMT_DATA names.
    """
    found = [each for name in names for each in _locate(name, option, complaints, folders)]
    for each in found:
        try:
            each.name.encode("utf-8")
        except UnicodeEncodeError:  # bytes that Python stands half surrogate pairs for
            complaints.append(
                f"{option}: {each.name!r}: a name that is not UTF-8 stands in no report. Rename the file."
            )
    return found


def dataset_place(name: str, folders: Sequence[Path] = (Path(),)) -> str:
    """The folder of a dataset, where there is one of the name; else the name."""
    there = (folder / name for folder in _folders(name, folders))
    return str(next((path for path in there if path.is_dir()), name))


def partners(
    src: Sequence[Named], trg: Sequence[Named], option: str, complaints: list[str]
) -> list[tuple[Named, Named]]:
    """Pairs of source and target files: those for which two patterns' wildcards stand for the same; else
    the first to the first, and so on.
    """
    if any(named.path is None for named in (*src, *trg)):
        return list(zip(src, trg, strict=False))  # what is not there has been complained about
    if len(src) == len(trg) == 1:
        return [(src[0], trg[0])]
    sides = [_by_wildcards(side) for side in (src, trg)]
    if sides[0] and sides[1] and len(next(iter(sides[0]))) == len(next(iter(sides[1]))):
        alone = [named.name for one, other in (sides, sides[::-1]) for wild, named in one.items() if wild not in other]
        if alone:
            more = f", and {len(alone) - 5:,} more" if len(alone) > 5 else ""
            complaints.append(f"{option}: no partner on the other side for {', '.join(alone[:5])}{more}.")
            return []
        return [(named, sides[1][wild]) for wild, named in sides[0].items()]
    if len(src) != len(trg):
        complaints.append(
            f"{option}: {len(src):,} files of src ({_some(src)}) but {len(trg):,} of trg ({_some(trg)}). Each must "
            "have its partner: file n of one belongs to file n of the other."
        )
        return []
    return list(zip(src, trg, strict=True))


def _by_wildcards(side: Sequence[Named]) -> dict[tuple[str, ...], Named]:
    """The files of a side by what the wildcards of its one pattern stood for; nothing where it is not one pattern."""
    found = {named.wild: named for named in side if named.wild is not None}
    return {wild: named for wild, named in found.items() if wild} if len(found) == len(side) else {}


def _locate(name: str, option: str, complaints: list[str], before: Sequence[Path]) -> list[Named]:
    if name == STDIN:
        return [Named("stdin", Path(STDIN))]
    folders = _folders(name, before)
    for folder in folders:
        if (folder / name).exists() and not is_prepared(folder / name):  # which may have the name of its corpus
            return [Named(name, folder / name)]
    is_pattern = _WILD.search(name) is not None
    if is_pattern:
        shape = re.compile("".join(_shape(name)), re.DOTALL)
        for folder in folders:
            if found := sorted(glob.glob(name, root_dir=folder)):
                matched = ((each, shape.fullmatch(each)) for each in found)
                return [
                    Named(each, folder / each, (tuple(map(without_ending, match.groups())) if match else None))
                    for each, match in matched
                ]
    places = " and ".join(str((folder / name).absolute()) for folder in folders)
    plain = not os.environ.get("NMT_DATA") and not Path(name).is_absolute()
    hint = " (NMT_DATA, one more folder to look in, is not set)" if plain else ""
    what = "no file matches" if is_pattern else "no file"
    complaints.append(f"{option}: {what} {name}: tried {places}{hint}.".replace("\n", "\\n"))
    return [Named(name, None)]


def _folders(name: str, before: Sequence[Path]) -> list[Path]:
    if Path(name).is_absolute():
        return [Path()]
    return [*before, *map(Path, filter(None, [os.environ.get("NMT_DATA")]))]


def _shape(pattern: str) -> list[str]:
    """A regular expression, in parts, that matches what a pattern does, with a group for each wildcard."""
    parts, end = [], 0
    for wild in _WILD.finditer(pattern):
        parts.append(re.escape(pattern[end : wild.start()]))
        end = wild.end()
        # Which files match has been decided; a bracket only has to tell which letter it stood for.
        parts.append("([^/]*)" if wild[0] == "*" else "([^/])")
    return [*parts, re.escape(pattern[end:])]


def _some(files: Sequence[Named]) -> str:
    first = ", ".join(named.name for named in files[:3])
    return f"{first}, ..." if len(files) > 3 else first or "none"


RECORDS, TABLES, DOCUMENTS = ("tsv", "jsonl"), ("parquet", "arrow"), ("csv", "tmx")
_SIDES = (("source", "target"), ("src", "trg"), ("src", "tgt"), ("source_text", "target_text"))


def form_of(named: Named) -> str:
    """Return what is in a file, by its name."""
    plain = without_ending(named.name).lower()
    return next((form for ending, form in ENDINGS.items() if plain.endswith(ending)), "text")


def columns_in(
    named: Named, files: CorpusFiles, languages: tuple[str, str], option: str, complaints: list[str]
) -> tuple[tuple[Column, Column], bool] | None:
    """The columns of a file with both sides where the recipe names none, and whether they are named in its head.

    None where there is something to complain about.
    """
    form = files.format or form_of(named)
    plain = without_ending(named.name).lower()
    if named.path is None or named.path == Path(STDIN) or form == "text":
        if named.path is not None:
            what = next((f"is {why}" for ending, why in NOT_READ.items() if plain.endswith(ending)), "")
            told = what or "in which form, and which columns? Name src_column and trg_column, and format"
            complaints.append(f"{option}: {named.name}: {told} (docs/data.md).")
        return None
    if complaint := (None if form in TABLES else complaint_about(named.path)):
        complaints.append(f"{option}: {complaint}")
        return None
    try:
        names = _names_in(named.path, form)
    except DataError as error:
        complaints.append(f"{option}: {error}")
        return None
    if found := columns_by_name(names, languages):
        return found, True
    if form in ("tsv", "csv") and len(names) == 2 and not files.header:
        return (1, 2), False
    what = {"tmx": "languages", "jsonl": "keys"}.get(form, "columns")
    complaints.append(
        f"{option}: {named.name}: which of its {what} are {languages[0]} and {languages[1]}? There are {shown(names)}. "
        f"Name others with --langs, or the {what} in a recipe: src_column and trg_column."
    )
    return None


def _names_in(path: Path, form: str) -> list[str]:
    if form in DOCUMENTS:
        return names_in_document(path, form)
    return names_in_table(path) if form in TABLES else names_in_records(path, form)


def columns_by_name(names: Sequence[str], languages: tuple[str, str]) -> tuple[str, str] | None:
    """The columns, keys or languages that two sides are in, by their names; None where the names do not tell.

    Names are codes of the languages, in any form and with any region, their English names, or source and target.
    """
    wanted = [language_of(code) for code in languages]
    known = {name: [language_of(part) for part in (name, name.rpartition(".")[2])] for name in names}
    for exact in (True, False):
        sides = [
            [
                name
                for name, of in known.items()
                if any(
                    (one.code == side.code) if exact else (one.is_known and one.primary == side.primary) for one in of
                )
            ]
            for side in wanted
        ]
        if len(sides[0]) == len(sides[1]) == 1 and sides[0] != sides[1]:
            return sides[0][0], sides[1][0]
    folded = {name.strip().casefold().replace(" ", "_"): name for name in names}
    return next(((folded[src], folded[trg]) for src, trg in _SIDES if {src, trg} <= folded.keys()), None)


# Tables: Parquet files, Arrow files and streams, and datasets of `datasets.load_dataset`. They are streamed, some rows
# at a time. Columns hold text, `a.b` is b inside the struct a. Code of a dataset is never run.
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
