"""A prepared data folder: rows of ids in memory-mapped Arrow files, their lengths and their fingerprint.

    PREPARED/  train.arrow  valid.arrow  test.arrow  subwords.json  report.json  recipe.yaml  schema.json  manifest.json

Named validation sets are in valid-NAME.arrow. `prepare.py` writes the folder.
The `datasets` library can read the Arrow files: `Dataset.from_file("train.arrow")`.
"""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nmt.data.arrays import Ints, Ragged, places
from nmt.data.manifest import changed_settings, prepare_again, read_manifest, settings_of, verify_files
from nmt.data.subwords import N_SPECIAL, Subwords
from nmt.data.text import SIDES, VALID, set_of, shares_of
from nmt.errors import DataError
from nmt.recipe.contradictions import names_of
from nmt.recipe.options import Recipe
from nmt.recipe.places import SUBWORDS


# Conversion between Arrow columns and numpy arrays without copying. The functions of pyarrow would load pandas.
def as_arrow(values: NDArray[Any]) -> pa.Array:
    """A column of integers."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def texts_as_arrow(texts: Sequence[str]) -> pa.Array:
    """A column of texts."""
    raw = [text.encode("utf-8") for text in texts]
    offsets = np.cumsum([0, *map(len, raw)], dtype=np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(raw))]
    return pa.Array.from_buffers(pa.large_string(), len(raw), buffers)


def as_numpy(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """The integers of a column without nulls, copied if it has several chunks."""
    if isinstance(column, pa.ChunkedArray):
        parts = [as_numpy(chunk) for chunk in column.chunks]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.dtype(str(column.type))), *parts])
    dtype, values = np.dtype(str(column.type)), column.buffers()[1]
    if not len(column):
        return np.empty(0, dtype)
    return np.frombuffer(values, dtype, len(column), column.offset * dtype.itemsize)


Ids = NDArray[np.int64]
_N_STYLE = 2000  # training pairs whose style is examined


class Corpus:
    """The pairs of one split. Rows stay on disk until they are read."""

    def __init__(self, path: Path, size: tuple[int, int], fingerprint: str) -> None:
        """size: of the source and the target vocabulary. fingerprint: SHA-256 of the file."""
        self.fingerprint = fingerprint
        try:
            with pa.memory_map(str(path)) as mapped:
                file = mapped.read_buffer()
            self._table = pa.ipc.open_stream(file).read_all()
            self._table.validate(full=True)
            self._src = _Rows(self._table["src"], file)
            self._trg = _Rows(self._table["trg"], file)
            self.src_len: NDArray[np.int32] = as_numpy(self._table["src_len"])
            self.trg_len: NDArray[np.int32] = as_numpy(self._table["trg_len"])
        except (pa.ArrowException, AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: not an Arrow file written by nmt-preprocess ({error}).") from None
        self.n_pair: int = self._table.num_rows
        for side, n_id in zip(SIDES, size, strict=True):
            rows = self._table[side]
            if not pc.list_value_length(rows).equals(self._table[f"{side}_len"]):
                raise DataError(f"{path}: the stored lengths do not match the rows.")
            ids = pc.list_flatten(rows)
            if len(ids) and not N_SPECIAL <= pc.min(ids).as_py() <= pc.max(ids).as_py() < n_id:
                raise DataError(f"{path}: ids outside the vocabulary: its subwords belong to other data.")

    def pairs(self, numbers: Sequence[int] | NDArray[np.integer]) -> tuple[list[Ids], list[Ids]]:
        """The source ids and the target ids of pairs, without BOS and EOS; one array for each sentence."""
        rows = self.picked(np.asarray(numbers, np.int64))
        src, trg = (Ragged(side.values.astype(np.int64), side.lengths) for side in rows)
        return src.rows(), trg.rows()

    def picked(self, numbers: NDArray[np.integer]) -> tuple[Ragged, Ragged]:
        """The source ids and the target ids of pairs, without BOS and EOS, in the dtype of the file."""
        return self._src.picked(numbers), self._trg.picked(numbers)

    def texts(self) -> tuple[list[str], list[str]]:
        """The original source and target lines, of validation and test pairs alone."""
        return self._table["src_text"].to_pylist(), self._table["trg_text"].to_pylist()


class Prepared:
    """A prepared folder whose files were verified against the manifest."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder, self.manifest = folder, manifest
        self.settings: dict[str, Any] = manifest["settings"]
        self.subwords = Subwords.load(folder / SUBWORDS)
        self.train = self._corpus("train")
        # Pairs of each training corpus; the corpora follow one another in train.arrow.
        self.sizes: list[int] = [corpus["n_pair"] for corpus in manifest["corpora"]]
        splits = [name.removesuffix(".arrow") for name in manifest["files"] if name.endswith(".arrow")]
        split_of = {name: split for split in splits if (name := set_of(split)) is not None}
        # In the order of the recipe: the first set selects the best checkpoint.
        self.valid_sets = {name: self._corpus(split) for name, split in (split_of or {VALID: VALID}).items()}
        self.valid = next(iter(self.valid_sets.values()))
        self.test = self._corpus("test") if "test.arrow" in manifest["files"] else None

    def src_style(self) -> dict[str, float]:
        """Style of the source lines of training: see `shares_of`."""
        sample = np.unique(np.linspace(0, self.train.n_pair - 1, min(_N_STYLE, self.train.n_pair)).astype(np.int64))
        return shares_of(self.subwords.src.decode(row.tolist()) for row in self.train.pairs(sample)[0])

    def usual_ratios(self) -> dict[str, float]:
        """Target characters per source character, by target language: the median of its largest corpus."""
        corpora = sorted(self.manifest["corpora"], key=lambda corpus: int(corpus["n_pair"]))
        return {corpus["trg_lang"]: corpus["usual_ratio"] for corpus in corpora if corpus.get("usual_ratio")}

    @classmethod
    def open(cls, folder: Path | str) -> "Prepared":
        """Check the manifest, then sizes and hashes, then the structure. Raises DataError if a check fails."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        verify_files(folder, manifest)
        return cls(folder, manifest)

    def differences(self, recipe: Recipe) -> list[str]:
        """Differences between the settings of the folder and a recipe, as texts for a message."""
        changed = changed_settings(self.settings, settings_of(recipe))
        stored = [corpus["name"] for corpus in self.manifest["corpora"]]
        names = list[str]()
        for corpus in recipe.data.train:
            dataset = " ".join(filter(None, (corpus.dataset, corpus.subset, corpus.split)))  # as `HubDataset` is shown
            names.append("" if corpus.translated_by else dataset or names_of(corpus.file or corpus.src)[0])
        known = {file["name"] for file in self.manifest["inputs"] if file["split"] == "train" and file["side"] == "src"}
        # The files of the folder that each name of the recipe matches. If its own is not among them, it has moved.
        matches = ([file for file in known if file == name or fnmatchcase(file, name)] for name in names)
        has_moved = any(files and own not in files for own, files in zip(stored, matches, strict=False))
        if names and any(stored) and (has_moved or len(names) != len(stored)):  # weights and languages go by position
            changed.append(f"data.train: {', '.join(stored)} in the folder, {', '.join(names)} in the recipe")
        old, new = list(self.valid_sets), [files.name for files in recipe.data.valid] or [VALID]
        if old != new:
            changed.append(f"data.valid: {', '.join(old)} in the folder, {', '.join(new)} in the recipe")
        return changed

    def _corpus(self, split: str) -> Corpus:
        name = f"{split}.arrow"
        if name not in self.manifest["files"]:
            raise DataError(f"{self.folder}: {name} is missing. {prepare_again(self.folder)}")
        fingerprint = self.manifest["files"][name]["sha256"]
        return Corpus(self.folder / name, (self.subwords.src.size, self.subwords.trg.size), fingerprint)


class _Rows:
    """A column of id lists as numpy arrays over the mapped file. Rows are copied only when they are picked."""

    def __init__(self, column: pa.ChunkedArray, file: pa.Buffer) -> None:
        chunks = column.chunks or [pa.array([], column.type)]
        # Chunk c holds the rows first[c] up to first[c + 1].
        self._first = np.cumsum([0, *map(len, chunks)], dtype=np.int64)
        # All chunks as one array, and the start of each in it: one lookup serves rows of several chunks.
        self._all_offsets, self._offsets_at = _as_one([as_numpy(chunk.offsets) for chunk in chunks], file)
        self._all_values, self._values_at = _as_one([as_numpy(chunk.values) for chunk in chunks], file)

    def picked(self, numbers: NDArray[np.integer]) -> Ragged:
        """Copies of the rows of these numbers."""
        chunk = np.searchsorted(self._first, numbers, side="right") - 1
        row = self._offsets_at[chunk] + numbers - self._first[chunk]
        begin = self._all_offsets[row]
        n_id = self._all_offsets[row + 1] - begin
        return Ragged(self._all_values[places(self._values_at[chunk] + begin, n_id)], n_id)


def _as_one(parts: Sequence[NDArray[Any]], file: pa.Buffer) -> tuple[NDArray[Any], Ints]:
    """One array that holds several arrays of a mapped file, and the start of each in it.

    If the arrays lie in the file, it is a view of the whole file; else a concatenated copy of them.
    """
    size = parts[0].dtype.itemsize
    begins = [part.ctypes.data - file.address if part.size else 0 for part in parts]
    ends = [begin + part.nbytes for begin, part in zip(begins, parts, strict=True)]
    if min(begins) >= 0 and max(ends) <= file.size and not any(begin % size for begin in begins):
        return np.frombuffer(file, parts[0].dtype, count=file.size // size), np.array(begins, dtype=np.int64) // size
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    return np.concatenate(parts), np.cumsum(lengths) - lengths


def show_pairs(folder: Path, n: int) -> Iterator[str]:
    """Yield text, pieces and ids of n random training pairs, or of all if there are fewer. Each call picks the same.

    The text is decoded from the ids, so that it is what a model learns from.
    """
    data = Prepared.open(folder)
    n_pair, codecs = data.train.n_pair, (data.subwords.src, data.subwords.trg)
    for number in sorted(random.Random(0).sample(range(n_pair), min(n, n_pair))):
        yield f"pair {number + 1:,} of {n_pair:,}"
        for side, codec, (row,) in zip(SIDES, codecs, data.train.pairs([number]), strict=True):
            ids = row.tolist()
            yield f"  {side} text    {codec.decode(ids)}"
            yield f"  {side} pieces  {' '.join(codec.pieces(ids))}"
            yield f"  {side} ids     {' '.join(map(str, ids))}"


# Encoded pairs as Arrow tables, and as a file of the `datasets` library.
def dtype_of_ids(subwords: Subwords) -> np.dtype[Any]:
    """uint16 if every id fits, else int32."""
    fits = max(subwords.src.n_vocab, subwords.trg.n_vocab) <= 1 << 16
    return np.dtype(np.uint16 if fits else np.int32)


def table_of(src: Ragged, trg: Ragged) -> pa.Table:
    """A table of pairs with the columns src, trg, src_len, trg_len."""
    columns: dict[str, pa.Array] = {}
    for name, rows in zip(SIDES, (src, trg), strict=True):
        offsets = np.concatenate(([0], np.cumsum(rows.lengths, dtype=np.int64)))
        assert offsets[-1] < 2**31, "a block holds too many ids for offsets of 32 bits"
        columns[name] = pa.ListArray.from_arrays(as_arrow(offsets.astype(np.int32)), as_arrow(rows.values))
        columns[f"{name}_len"] = as_arrow(rows.lengths)
    return pa.table({name: columns[name] for name in ("src", "trg", "src_len", "trg_len")})


def in_batches(blocks: Iterable[tuple[Ragged, Ragged]], n_row: int) -> Iterator[pa.Table]:
    """Tables of n_row pairs each, the last of fewer. blocks: sources and targets of any number of pairs."""
    pending, n_pending = list[pa.Table](), 0
    for block in blocks:
        pending.append(table_of(*block))
        n_pending += len(pending[-1])
        if n_pending >= n_row:
            table = pa.concat_tables(pending)
            n = n_pending // n_row * n_row
            yield from (table.slice(start, n_row) for start in range(0, n, n_row))
            pending, n_pending = [table.slice(n)], n_pending - n
    if n_pending:
        yield pa.concat_tables(pending)


def write_arrow(path: Path, tables: Iterable[pa.Table]) -> int:
    """Write an Arrow file of the `datasets` library, one record batch for each table; return the number of rows."""
    n_row = 0
    writer: pa.RecordBatchStreamWriter | None = None
    with path.open("wb") as file:
        for table in tables:
            table = table.replace_schema_metadata(_metadata(table.schema))
            if writer is None:
                writer = pa.RecordBatchStreamWriter(file, table.schema)
            writer.write_table(table.combine_chunks(), max(len(table), 1))
            n_row += len(table)
        if writer is not None:
            writer.close()
    return n_row


def _metadata(schema: pa.Schema) -> dict[str, str]:
    """Description of the columns for the `datasets` library, written by hand: its import takes a second."""
    features: dict[str, Any] = {}
    for column in schema:
        is_list = pa.types.is_list(column.type)
        value = {"dtype": str(column.type.value_type if is_list else column.type), "_type": "Value"}
        features[column.name] = {"feature": value, "_type": "List"} if is_list else value
    return {"huggingface": json.dumps({"info": {"features": features}})}
