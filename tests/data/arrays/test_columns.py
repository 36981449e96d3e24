"""Arrow columns that share memory with numpy arrays."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from nmt.data.corpus import as_arrow, as_numpy
from nmt.data.lines import write_lines


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16, np.uint8])
def test_arrow_columns_share_memory_with_numpy_and_equal_those_of_pyarrow(dtype):
    values = np.array([0, 7, 200, 3], dtype)
    column = as_arrow(values)
    assert column.equals(pa.array(values)) and as_arrow(values[::2]).equals(pa.array(values[::2]))
    assert as_arrow(values[:0]).equals(pa.array(values[:0]))
    restored = as_numpy(column)
    assert restored.dtype == dtype and np.shares_memory(restored, values) and restored.tolist() == [0, 7, 200, 3]
    assert as_numpy(column[1:3]).tolist() == [7, 200] and as_numpy(column[4:]).tolist() == []
    chunks = pa.chunked_array([column[3:], column[:0], column])
    assert as_numpy(chunks).tolist() == [3, 0, 7, 200, 3] and as_numpy(chunks).dtype == dtype
    assert as_numpy(pa.chunked_array([], column.type)).dtype == dtype


_PREPARE_AND_OPEN = """
import json, sys
from pathlib import Path

from nmt.data.corpus import Prepared
from nmt.data.prepare import prepare
from nmt.recipe.reader import read_recipe
prepare(read_recipe(None, json.loads(sys.argv[1])), Path(sys.argv[2]), talk=lambda line: None)
prepared = Prepared.open(sys.argv[2])
print(prepared.train.n_pair, [len(rows) for rows in prepared.train.pairs([0, 1])], "pandas" in sys.modules)
"""


def test_preparing_and_opening_data_do_not_import_pandas(tmp_path):
    pytest.importorskip("pandas")
    files = dict.fromkeys(("src", "trg"), str(tmp_path / "text"))
    write_lines(tmp_path / "text", ["ein Haus", "ein Schiff"] * 20)
    options = [("name", "own"), ("data.src_lang", "de"), ("data.trg_lang", "de"), ("subwords.vocab_size", "300")]
    options += [(f"data.{split}", json.dumps(files)) for split in ("train", "valid")]
    options += [("data.drop_identical", "false"), ("data.alarms", "warn")]
    arguments = [sys.executable, "-c", _PREPARE_AND_OPEN, json.dumps(options), str(tmp_path / "prepared")]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert result.returncode == 0 and result.stdout.endswith("40 [2, 2] False\n"), result.stderr
