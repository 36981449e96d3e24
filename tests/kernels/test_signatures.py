"""What kernels take is read from their sources, so that a wrong call is an error in Python."""

import ctypes
import re
from pathlib import Path

import pytest

from nmt.kernels import compiler, switch

NEEDS_COMPILER = pytest.mark.skipif(bool(switch.why_not()), reason=f"no kernels here: {switch.why_not()}")
CALLED = re.compile(r"(?:library|switched_on)\(\)\.(\w+)\(")


@NEEDS_COMPILER
def test_every_function_that_is_called_is_declared():
    library, called = compiler.library(), set()
    for path in Path(compiler.__file__).parent.glob("*.py"):
        called |= set(CALLED.findall(path.read_text(encoding="utf-8")))
    there = {name for name in called if hasattr(library, name)}
    assert {"attend", "column_sums", "has_panels", "normalise_backward", "squares"} <= there
    assert [name for name in there if getattr(library, name).argtypes is None] == []


@NEEDS_COMPILER
def test_numbers_have_the_types_of_the_definition():
    squares = compiler.library().squares
    assert squares.argtypes == [compiler.Address] * 2 + [ctypes.c_int64, compiler.Address, ctypes.c_int]
    assert squares.restype is None and compiler.library().lanes.restype is ctypes.c_int
    drop_add = compiler.library().drop_add
    assert [drop_add.argtypes[i] for i in (7, 9)] == [ctypes.c_uint64, ctypes.c_float]


@NEEDS_COMPILER
@pytest.mark.parametrize("wrong", [(0, 0, 1, 0), (0, 0.5, 1, 0, 1), ([0], 0, 1, 0, 1)])
def test_a_wrong_call_is_an_error(wrong):
    with pytest.raises((TypeError, ctypes.ArgumentError)):
        compiler.library().decide(*wrong)
