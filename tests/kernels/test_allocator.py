"""Large blocks that were freed are used again without a page fault, and lie in large pages."""

import functools
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import resource, sys
import torch
from nmt.kernels.allocator import keep_freed_blocks

def resident(line):
    with open("/proc/self/smaps_rollup") as told:
        return next(int(row.split()[1]) for row in told if row.startswith(line + ":")) // 1024

before = resident("Rss")
if not keep_freed_blocks(in_large_pages=True):
    sys.exit(77)
reserved, faults = resident("Rss") - before, [resource.getrusage(resource.RUSAGE_SELF).ru_minflt]
for _ in range(6):
    a = torch.ones(10_000_000)
    b = a + a  # two blocks of 40 MB, which glibc by itself would return to the system
    del a, b
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
kept = resident("Rss") - before
print(faults[1] - faults[0], faults[-1] - faults[-2], reserved, kept, resident("AnonHugePages"))
"""


@functools.cache
def told(attempt: int) -> tuple[int, ...]:
    """Of a process: page faults of the first and the last time, and megabytes: taken at once, kept, in large pages."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, encoding="utf-8", check=False)
    if done.returncode == 77:
        pytest.skip("this C library cannot be told to keep freed blocks")
    return tuple(map(int, done.stdout.split()))


def test_a_block_that_was_freed_costs_no_page_faults_again():
    seen = []
    # glibc may look for a little more than an aligned block takes, and so pass by the one that was freed, unless that
    # has joined a neighbour: small blocks in between decide it, differently in each process.
    for attempt in range(9):
        first, last, _, kept, _ = told(attempt)
        seen.append((first, last))
        if last * 8 < first:
            break
    assert last * 8 < first and kept > 70, seen


def test_memory_is_taken_as_it_is_used_and_in_large_pages_where_the_system_has_them():
    _, _, reserved, kept, large = told(0)
    assert reserved < 20 and kept < 1000  # of 8 GB of addresses
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("this system has no transparent huge pages")
    assert large > 60
