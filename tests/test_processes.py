"""What one process writes for another comes back, and nothing else is read."""

import io

import numpy as np
import pytest

from nmt.processes import read_packed, write_packed


def test_what_was_packed_comes_back_and_nothing_else_is_read():
    file = io.BytesIO()
    content = {"n": 1, "text": "\ud800ü", "bytes": b"ab", "array": np.arange(6, dtype=np.uint16).reshape(2, 3)}
    write_packed(file, content)
    file.seek(0)
    found = read_packed(file.read)
    assert {**found, "array": None} == {**content, "array": None} and np.array_equal(found["array"], content["array"])
    assert found["array"].dtype == np.uint16 and read_packed(file.read) is None
    with pytest.raises(ValueError, match="nothing that was packed"):
        read_packed(io.BytesIO(b"Warning: a library wants to say something").read)
