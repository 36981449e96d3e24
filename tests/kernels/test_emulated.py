"""Tiles on a processor that has none: AMX worked out in C."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nmt.kernels import switch

ROOT = Path(__file__).parents[2]
# From ROOT, whose own name may have a space in it, where CC would be parted.
EMULATED = "gcc -Wno-psabi -Itests/kernels/emulated -D__AVX512F__ -D__AVX512BW__"
CC = f"{EMULATED} -D__AVX512BF16__ -D__AMX_BF16__"
# By hand, with all tests of this folder: the other processors.
OTHERS = [f"{EMULATED} -D__AVX512BF16__ -U__AMX_BF16__", f"{EMULATED} -U__AVX512BF16__ -U__AMX_BF16__"]


@pytest.mark.skipif(platform.machine() != "x86_64" or not shutil.which("gcc"), reason="no GCC for x86-64")
@pytest.mark.skipif(bool(switch.why_not()), reason="no kernels here")
@pytest.mark.skipif(not switch.why_not() and bool(switch.library().has_tiles()), reason="this processor has tiles")
def test_tiles_multiply_as_they_would_on_a_processor_that_has_them(tmp_path):
    tests = ["tests/kernels/test_products.py", "-k", "(in_tiles and (row_is_the_same or 131)) or visible_in_a_gradient"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env={**os.environ, "CC": CC, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # What a processor without tiles skips is no proof.
    assert " passed" in done.stdout and "has no tiles" not in done.stdout, done.stdout
