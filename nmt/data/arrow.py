"""Encoded pairs as Arrow tables, and as a file of the `datasets` library.

No text is read and nothing encoded here; `corpus.py` reads the files back.
"""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from nmt.data.subwords import Subwords


def dtype_of_ids(subwords: Subwords) -> np.dtype[Any]:
    """Two bytes an id where every id fits."""
    fits = max(subwords.src.n_vocab, subwords.trg.n_vocab) <= 1 << 16
    return np.dtype(np.uint16 if fits else np.int32)


def table_of(src: list[list[int]], trg: list[list[int]], subwords: Subwords) -> pa.Table:
    """The columns src, trg, src_len, trg_len of some pairs."""
    columns: dict[str, pa.Array] = {}
    for name, rows in (("src", src), ("trg", trg)):
        lengths = np.fromiter(map(len, rows), np.int32, len(rows))
        offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        assert offsets[-1] < 2**31, "a block holds too many ids for offsets of 32 bits"
        values = np.fromiter(itertools.chain.from_iterable(rows), np.int64, int(offsets[-1]))
        dtype = dtype_of_ids(subwords)
        assert not len(values) or values.max() <= np.iinfo(dtype).max, "ids do not fit"
        columns[name] = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values.astype(dtype)))
        columns[f"{name}_len"] = pa.array(lengths)
    return pa.table({name: columns[name] for name in ("src", "trg", "src_len", "trg_len")})


def write_arrow(path: Path, tables: Iterable[pa.Table], subwords: Subwords) -> int:
    """Write an Arrow file of the `datasets` library, one record batch for each table; return the number of rows."""
    # Imported here: it takes a second, and only this function needs it.
    from datasets import Features, Value
    from datasets.arrow_writer import ArrowWriter

    ids = [Value(str(dtype_of_ids(subwords)))]
    features = {"src": ids, "trg": ids, "src_len": Value("int32"), "trg_len": Value("int32")}
    writer: ArrowWriter | None = None
    n_row = 0
    for table in tables:
        if writer is None:
            texts = {name: Value("large_string") for name in table.column_names if name.endswith("_text")}
            writer = ArrowWriter(path=str(path), features=Features(features | texts))
        writer.write_table(table, writer_batch_size=len(table))
        n_row += len(table)
    if writer is not None:
        writer.finalize()
    return n_row
