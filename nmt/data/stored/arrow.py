"""Encoded pairs as Arrow tables, and as a file of the `datasets` library.

No text is read and nothing encoded here; `corpus.py` reads the files back. An id has two bytes where every id fits. The
offsets within a record batch have 32 bits, which is checked, and batches are few pairs; nothing counts over them all in
less than 64.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from nmt.data.arrays.columns import as_arrow
from nmt.data.arrays.ragged import Ragged
from nmt.data.vocabulary.subwords import Subwords


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
    waiting: list[tuple[Ragged, Ragged]] = []
    n_waiting = 0
    for src, trg in blocks:
        start, n_pair = 0, len(src.lengths)
        while start < n_pair:
            stop = min(n_pair, start + n_row - n_waiting)
            waiting.append((src.part(start, stop), trg.part(start, stop)))
            n_waiting += stop - start
            start = stop
            if n_waiting == n_row:
                yield table_of(*(Ragged.joined(side) for side in zip(*waiting, strict=True)))
                waiting, n_waiting = [], 0
    if waiting:
        yield table_of(*(Ragged.joined(side) for side in zip(*waiting, strict=True)))


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
    """What `datasets` wants to be told of the columns; to import it for this would take a second."""
    value = {"_type": "Value"}
    of_ids = {"feature": {"dtype": ids} | value, "_type": "List"}
    text = {"dtype": "large_string"} | value
    features: dict[str, Any] = {"src": of_ids, "trg": of_ids}
    features |= {name: {"dtype": "int32"} | value for name in ("src_len", "trg_len")}
    features |= {name: text for name in table.column_names if name.endswith("_text")}
    return {"huggingface": json.dumps({"info": {"features": features}})}
