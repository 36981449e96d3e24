"""Columns of Arrow as arrays of numpy and back, over the same memory.

What pyarrow has for this loads pandas where that is installed, which takes time and memory in each process.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def as_arrow(values: NDArray[Any]) -> pa.Array:
    """A column of whole numbers."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def texts_as_arrow(texts: Sequence[str]) -> pa.Array:
    """A column of texts."""
    raw = [text.encode("utf-8") for text in texts]
    offsets = np.zeros(len(raw) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, raw), np.int64, len(raw)), out=offsets[1:])
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
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, _dtype_of(column.type)), *parts])
    dtype, values = _dtype_of(column.type), column.buffers()[1]
    if not len(column):
        return np.empty(0, dtype)
    return np.frombuffer(values, dtype, len(column), column.offset * dtype.itemsize)


def _dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    return np.dtype(str(kind))
