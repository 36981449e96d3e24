"""A prepared data folder: rows of ids in memory-mapped Arrow files, their lengths and their fingerprint.

    PREPARED/  train.arrow  valid.arrow  test.arrow  subwords.json  report.json  recipe.yaml  schema.json  manifest.json

Further validation sets are valid-NAME.arrow, and so is the first one if it has a name.
`prepare.py` makes it. The Arrow files are those of the `datasets` library: `Dataset.from_file("train.arrow")`.
"""

import itertools
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nmt.data.arrays import Ragged, places
from nmt.data.manifest import SUBWORDS, changed_settings, prepare_again, read_manifest, settings_of, verify_files
from nmt.data.subwords import N_SPECIAL, Subwords
from nmt.data.text import VALID, set_of, shares_of
from nmt.errors import DataError
from nmt.recipe.contradictions import names_of
from nmt.recipe.options import Recipe


# Columns of Arrow as arrays of numpy and back, over the same memory. What pyarrow has for it loads pandas.
def as_arrow(values: NDArray[Any]) -> pa.Array:
    """A column of whole numbers."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def texts_as_arrow(texts: Sequence[str]) -> pa.Array:
    """A column of texts."""
    raw = [text.encode("utf-8") for text in texts]
    offsets = np.cumsum([0, *map(len, raw)], dtype=np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(raw))]
    return pa.Array.from_buffers(pa.large_string(), len(raw), buffers)


def as_numpy(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """The whole numbers of a column, none of which is null; copied where it has several chunks.

    Raises ValueError if it is no such column.
    """
    if not pa.types.is_integer(column.type) or column.null_count:
        raise ValueError("a column is not made of whole numbers")
    if isinstance(column, pa.ChunkedArray):
        parts = [as_numpy(chunk) for chunk in column.chunks]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.dtype(str(column.type))), *parts])
    dtype, values = np.dtype(str(column.type)), column.buffers()[1]
    if not len(column):
        return np.empty(0, dtype)
    return np.frombuffer(values, dtype, len(column), column.offset * dtype.itemsize)


Ids = NDArray[np.int64]
_N_STYLE = 2000  # training pairs that are looked at


class Corpus:
    """The pairs of one split. Rows stay on disk until asked for."""

    def __init__(self, path: Path, size: tuple[int, int], fingerprint: str) -> None:
        """size: ids of the source and of the target side are below; fingerprint: SHA-256 of the file."""
        self.path, self.fingerprint = path, fingerprint
        try:
            with pa.memory_map(str(path)) as mapped:
                file = mapped.read_buffer()
            self._table = pa.ipc.open_stream(file).read_all()
            self._table.validate(full=True)
            self._src = _Rows(self._table["src"], file)
            self._trg = _Rows(self._table["trg"], file)
            self.src_len: NDArray[np.int32] = as_numpy(self._table["src_len"])
            self.trg_len: NDArray[np.int32] = as_numpy(self._table["trg_len"])
        except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: not an Arrow file of nmt-preprocess ({error}).") from None
        self.n_pair: int = self._table.num_rows
        for rows, told, below in ((self._src, self.src_len, size[0]), (self._trg, self.trg_len, size[1])):
            if told.dtype != np.int32 or not rows.are_as_long_as(told):
                raise DataError(f"{path}: the lengths in it are not those of its rows.")
            if not rows.are_within(N_SPECIAL, below):
                raise DataError(f"{path}: ids outside the vocabulary; its subwords belong to other data.")

    def pairs(self, numbers: Iterable[int] | NDArray[np.integer]) -> tuple[list[Ids], list[Ids]]:
        """The source and target ids of some pairs, without BOS and EOS; each an array of its own."""
        rows = np.fromiter(numbers, np.int64) if not isinstance(numbers, np.ndarray) else numbers
        src, trg = (Ragged(side.values.astype(np.int64), side.lengths) for side in self.picked(rows))
        return src.rows(), trg.rows()

    def picked(self, numbers: NDArray[np.integer]) -> tuple[Ragged, Ragged]:
        """The ids of some pairs, without BOS and EOS, as they are stored: the sources, and the targets."""
        return self._src.picked(numbers), self._trg.picked(numbers)

    def texts(self) -> tuple[list[str], list[str]]:
        """The lines as they stood in the files. Training pairs keep none."""
        if "src_text" not in self._table.column_names:
            raise DataError(f"{self.path}: holds no text: only validation and test pairs keep theirs.")
        return self._table["src_text"].to_pylist(), self._table["trg_text"].to_pylist()


class Prepared:
    """A prepared folder that was checked: its files are, to the byte, those that were written."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder, self.manifest = folder, manifest
        self.settings: dict[str, Any] = manifest["settings"]
        self.subwords = Subwords.load(folder / SUBWORDS)
        if self.subwords.sha256 != manifest["subwords_sha256"]:
            raise DataError(
                f"{folder}: {SUBWORDS} has SHA-256 {self.subwords.sha256}, but the pairs were encoded with "
                f"{manifest['subwords_sha256']}. {prepare_again(folder)}"
            )
        self.train = self._corpus("train")
        # Pairs of each training corpus, which lie one after the other.
        self.sizes: list[int] = [each["n_pair"] for each in manifest["corpora"]]
        if sum(self.sizes) != self.train.n_pair:
            raise DataError(
                f"{folder}: the manifest tells of {sum(self.sizes):,} training pairs, train.arrow has "
                f"{self.train.n_pair:,}. {prepare_again(folder)}"
            )
        splits = [name.removesuffix(".arrow") for name in manifest["files"] if name.endswith(".arrow")]
        found = {name: split for split in splits if (name := set_of(split)) is not None}
        # In the order of the recipe: the first is the one that decides.
        self.valid_sets = {name: self._corpus(split) for name, split in (found or {VALID: VALID}).items()}
        self.valid = next(iter(self.valid_sets.values()))
        self.test = self._corpus("test") if "test.arrow" in manifest["files"] else None

    def src_style(self) -> dict[str, float]:
        """Return how source lines of training are written: see `shares_of`."""
        some = np.unique(np.linspace(0, self.train.n_pair - 1, min(_N_STYLE, self.train.n_pair)).astype(np.int64))
        return shares_of(self.subwords.src.decode(row.tolist()) for row in self.train.pairs(some)[0])

    def usual_ratios(self) -> dict[str, float]:
        """Characters of a target for one of its source, by target language: the median of its largest corpus."""
        corpora = sorted(self.manifest["corpora"], key=lambda each: int(each["n_pair"]))
        return {each["trg_lang"]: each["usual_ratio"] for each in corpora if each.get("usual_ratio")}

    @classmethod
    def open(cls, folder: Path | str) -> "Prepared":
        """Check the manifest, then sizes and hashes, then structure; a DataError names what is wrong."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        verify_files(folder, manifest)
        return cls(folder, manifest)

    def differences(self, recipe: Recipe) -> list[str]:
        """Options of a recipe that the data was not made with, as `data.max_len: 256 there, 100 here`."""
        changed = changed_settings(self.settings, settings_of(recipe))
        before = [each["name"] for each in self.manifest["corpora"]]
        now = ["" if one.translated_by else (names_of(one.file or one.src) or [""])[0] for one in recipe.data.train]
        moved = any(name in before and name != before[n] for n, name in enumerate(now[: len(before)]))
        if now and any(before) and (moved or len(now) != len(before)):  # weights and languages go by their places
            changed.append(f"data.train: {', '.join(before)} there, in this order")
        there, here = list(self.valid_sets), [files.name for files in recipe.data.valid] or [VALID]
        return changed if there == here else [*changed, f"data.valid: {', '.join(there)} there, {', '.join(here)} here"]

    def _corpus(self, split: str) -> Corpus:
        name = f"{split}.arrow"
        if name not in self.manifest["files"]:
            raise DataError(f"{self.folder}: no {name} in it. {prepare_again(self.folder)}")
        fingerprint = self.manifest["files"][name]["sha256"]
        return Corpus(self.folder / name, (self.subwords.src.size, self.subwords.trg.size), fingerprint)


class _Rows:
    """A column of id lists as numpy arrays over the mapped file: nothing is copied before rows are asked for."""

    def __init__(self, column: pa.ChunkedArray, file: pa.Buffer) -> None:
        self._offsets: list[NDArray[np.int32]] = []
        self._values: list[NDArray[Any]] = []
        for chunk in column.chunks or [pa.array([], column.type)]:
            if chunk.null_count or not pa.types.is_list(chunk.type) or not pa.types.is_integer(chunk.type.value_type):
                raise ValueError("a column of ids is not made of lists of whole numbers")
            self._offsets.append(as_numpy(chunk.offsets))
            self._values.append(as_numpy(chunk.values))
        # Chunk c holds the rows first[c] up to first[c + 1].
        self._first = np.fromiter(itertools.accumulate((len(o) - 1 for o in self._offsets), initial=0), np.int64)
        # All chunks as one array, and where each begins in it: rows of any of them are looked up together.
        self._all_offsets, self._offsets_at = _as_one(self._offsets, file)
        self._all_values, self._values_at = _as_one(self._values, file)

    def are_as_long_as(self, told: NDArray[np.int32]) -> bool:
        """Return whether the rows have so many ids each."""
        return len(told) == self._first[-1] and all(
            np.array_equal(np.diff(offsets), told[first : first + len(offsets) - 1])
            for first, offsets in zip(self._first, self._offsets, strict=False)
        )

    def are_within(self, low: int, high: int) -> bool:
        """Return whether low <= id < high everywhere."""
        return all(int(v.min()) >= low and int(v.max()) < high for v in self._values if len(v))

    def picked(self, numbers: NDArray[np.integer]) -> Ragged:
        """Copies of some rows."""
        chunk = np.searchsorted(self._first, numbers, side="right") - 1
        at = self._offsets_at[chunk] + numbers - self._first[chunk]
        begin = self._all_offsets[at]
        n_id = self._all_offsets[at + 1] - begin
        return Ragged(self._all_values[places(self._values_at[chunk] + begin, n_id)], n_id)


def _as_one(parts: Sequence[NDArray[Any]], file: pa.Buffer) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """An array that holds arrays of a mapped file, and the place where each begins in it: the whole file, if Arrow has
    left them there; else a copy of them, end to end.
    """
    size = parts[0].dtype.itemsize
    begins = [part.ctypes.data - file.address if part.size else 0 for part in parts]
    ends = [begin + part.nbytes for begin, part in zip(begins, parts, strict=True)]
    if min(begins) >= 0 and max(ends) <= file.size and not any(begin % size for begin in begins):
        return np.frombuffer(file, parts[0].dtype, count=file.size // size), np.array(begins, dtype=np.int64) // size
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    return np.concatenate(parts), np.cumsum(lengths) - lengths


def show_pairs(folder: Path, n: int) -> Iterator[str]:
    """Yield lines on n training pairs, always the same: text, pieces, ids. All pairs where there are no more.

    The text is decoded from the ids, so what is shown is what a model learns from.
    """
    data = Prepared.open(folder)
    n = min(n, data.train.n_pair)
    numbers = sorted(random.Random(0).sample(range(data.train.n_pair), n))
    codecs = (data.subwords.src, data.subwords.trg)
    for number in numbers:
        yield f"pair {number + 1:,} of {data.train.n_pair:,}"
        for side, codec, (ids,) in zip(("src", "trg"), codecs, data.train.pairs([number]), strict=True):
            yield f"  {side} text    {codec.decode(ids.tolist())}"
            yield f"  {side} pieces  {' '.join(codec.pieces(ids.tolist()))}"
            yield f"  {side} ids     {' '.join(map(str, ids.tolist()))}"


# Encoded pairs as Arrow tables, and as a file of the `datasets` library.
def dtype_of_ids(subwords: Subwords) -> np.dtype[Any]:
    """Two bytes an id where every id fits."""
    fits = max(subwords.src.n_vocab, subwords.trg.n_vocab) <= 1 << 16
    return np.dtype(np.uint16 if fits else np.int32)


def table_of(src: Ragged, trg: Ragged) -> pa.Table:
    """The columns src, trg, src_len, trg_len of some pairs."""
    columns: dict[str, pa.Array] = {}
    for name, rows in (("src", src), ("trg", trg)):
        offsets = np.concatenate(([0], np.cumsum(rows.lengths, dtype=np.int64)))
        assert offsets[-1] < 2**31, "a block holds too many ids for offsets of 32 bits"
        columns[name] = pa.ListArray.from_arrays(as_arrow(offsets.astype(np.int32)), as_arrow(rows.values))
        columns[f"{name}_len"] = as_arrow(rows.lengths)
    return pa.table({name: columns[name] for name in ("src", "trg", "src_len", "trg_len")})


def in_batches(blocks: Iterable[tuple[Ragged, Ragged]], n_row: int) -> Iterator[pa.Table]:
    """Tables of n_row pairs each, the last of fewer, however the blocks were cut. blocks: both sides of some pairs."""
    waiting, n_waiting = list[pa.Table](), 0
    for block in blocks:
        waiting.append(table_of(*block))
        n_waiting += len(waiting[-1])
        if n_waiting >= n_row:
            table = pa.concat_tables(waiting)
            n = n_waiting // n_row * n_row
            yield from (table.slice(start, n_row) for start in range(0, n, n_row))
            waiting, n_waiting = [table.slice(n)], n_waiting - n
    if n_waiting:
        yield pa.concat_tables(waiting)


def write_arrow(path: Path, tables: Iterable[pa.Table], subwords: Subwords) -> int:
    """Write an Arrow file of the `datasets` library, one record batch for each table; return the number of rows."""
    n_row = 0
    writer: pa.RecordBatchStreamWriter | None = None
    with path.open("wb") as file:
        for table in tables:
            table = table.replace_schema_metadata(_described(table, str(dtype_of_ids(subwords))))
            if writer is None:
                writer = pa.RecordBatchStreamWriter(file, table.schema)
            writer.write_table(table.combine_chunks(), max(len(table), 1))
            n_row += len(table)
        if writer is not None:
            writer.close()
    return n_row


def _described(table: pa.Table, ids: str) -> dict[str, str]:
    """Description of the columns for the `datasets` library; to import it for this would take a second."""
    value = {"_type": "Value"}
    of_ids = {"feature": {"dtype": ids} | value, "_type": "List"}
    text = {"dtype": "large_string"} | value
    features: dict[str, Any] = {"src": of_ids, "trg": of_ids}
    features |= {name: {"dtype": "int32"} | value for name in ("src_len", "trg_len")}
    features |= {name: text for name in table.column_names if name.endswith("_text")}
    return {"huggingface": json.dumps({"info": {"features": features}})}
