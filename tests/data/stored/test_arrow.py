"""Arrow files of ids: record batches and integer widths."""

import numpy as np
import pyarrow as pa
import pytest

from nmt.data.arrays import Ragged
from nmt.data.corpus import _Rows

NO_FILE = pa.py_buffer(b"")  # for columns whose arrays Arrow keeps elsewhere


def test_id_that_does_not_fit_the_dtype_is_refused():
    with pytest.raises(AssertionError, match="do not fit"):
        Ragged.of([[1 << 16]], np.dtype(np.uint16))


def test_rows_beyond_two_to_the_31_ids_are_read(tmp_path):
    n_row, n_batch, length = 1 << 10, 5, 1 << 19
    path = tmp_path / "ids"
    with path.open("wb") as file:
        file.truncate(2 * n_row * n_batch * length)  # a hole: no bytes are on the disk
    ids = np.memmap(path, np.uint16, mode="r+")
    assert len(ids) > 1 << 31
    ids[-length], ids[-1] = 11, 12
    offsets = pa.array(np.arange(n_row + 1, dtype=np.int32) * length)
    batches = [ids[k * n_row * length : (k + 1) * n_row * length] for k in range(n_batch)]
    chunks = pa.chunked_array([pa.ListArray.from_arrays(offsets, pa.array(batch)) for batch in batches])
    column = _Rows(chunks, pa.py_buffer(ids))
    last, previous = column.picked(np.array([n_row * n_batch - 1, n_row * n_batch - 2])).rows()
    assert (last[0], last[-1], previous[-1]) == (11, 12, 0) and len(last) == length


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("dtype", [pa.uint16(), pa.int32()])
def test_rows_of_all_batches_are_picked_in_any_order_without_copying(tmp_path, mapped, dtype):
    rng = np.random.default_rng(2)
    rows = [rng.integers(0, 99, n).tolist() for n in rng.integers(0, 5, 40)]
    table = pa.table({"ids": pa.chunked_array([rows[:7], rows[7:7], rows[7:8], rows[8:]], pa.list_(dtype))})
    with pa.OSFile(str(tmp_path / "ids"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    with pa.memory_map(str(tmp_path / "ids")) as source:
        file = source.read_buffer()
    column = _Rows(pa.ipc.open_stream(file).read_all()["ids"], file if mapped else NO_FILE)
    numbers = rng.integers(0, len(rows), 100)
    found = column.picked(numbers)
    assert [row.tolist() for row in found.rows()] == [rows[n] for n in numbers]
    assert found.values.dtype == dtype.to_pandas_dtype() and found.lengths.tolist() == [len(rows[n]) for n in numbers]
    assert (column._all_values.base is None) != mapped
