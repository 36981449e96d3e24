"""Products of bf16 with AMX emulated in C, on a processor without instructions for them."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nmt.kernels import half_products, switch

ROOT = Path(__file__).parents[2]
# Relative to ROOT, whose path may contain a space, where CC would be split.
EMULATED = "gcc -Wno-psabi -Itests/kernels/emulated -D__AVX512F__ -D__AVX512BW__"
CC = f"{EMULATED} -D__AVX512BF16__ -D__AMX_BF16__"
# Other processors, to be emulated by hand with all tests of this folder.
OTHERS = [f"{EMULATED} -D__AVX512BF16__ -U__AMX_BF16__", f"{EMULATED} -U__AVX512BF16__ -U__AMX_BF16__"]


# Only the sources of these products: compiling all takes a minute.
CODE = """
import sys
import pytest
from nmt.kernels import compiler
needed = ("half_products.c", "weight_gradient.c", "products.c", "panels.c", "passes.c")
compiler._SOURCES = tuple(path for path in compiler._SOURCES if path.suffix == ".h" or path.name in needed)
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.skipif(platform.machine() != "x86_64" or not shutil.which("gcc"), reason="no GCC for x86-64")
@pytest.mark.skipif(bool(switch.why_not()), reason="no kernels here")
@pytest.mark.skipif(
    not switch.why_not() and half_products.in_kernels(), reason="this processor has instructions for them"
)
def test_products_of_bf16_with_emulated_tiles_are_exact(tmp_path):
    selection = "products_of_bf16_are_those or (gradient_of_a_weight and 90 and widths3)"
    tests = ["tests/kernels/test_kernels.py", "-k", selection]
    result = subprocess.run(
        [sys.executable, "-c", CODE, "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env={**os.environ, "CC": CC, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    # Skipped tests are no proof.
    assert " passed" in result.stdout and "no instructions" not in result.stdout, result.stdout
