"""Set-up of every test: one thread, no network, no GPU unless a test asks for it."""

import os
import signal
import sys
from collections import Counter

import pytest

# Set before torch is imported: tests are tiny, and two workers share the machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

# A shell without job control starts background jobs with SIGINT ignored, and nohup ignores SIGHUP. The commands under
# test would rightly keep ignoring these signals, but tests check how they handle them.
for _name, _handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    if hasattr(signal, _name) and signal.getsignal(getattr(signal, _name)) == signal.SIG_IGN:
        signal.signal(getattr(signal, _name), _handler)

# The longest tests run first, so that neither worker is left alone with one of them at the end.
_LONGEST_FIRST = (
    "test_parallel", "test_resume", "test_faults", "test_ctranslate2", "test_translate", "test_recipes_train",
    "test_prepare", "test_export", "test_translate_journal", "test_metrics", "test_copying",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    position = {name: number for number, name in enumerate(_LONGEST_FIRST)}
    items.sort(key=lambda item: position.get(item.path.stem, len(position)))


@pytest.fixture(autouse=True)
def kernels_off():
    """Training switches the kernels on for the whole process: switch them off before each test."""
    if "nmt.kernels.switch" in sys.modules:
        sys.modules["nmt.kernels.switch"].use(False)


class CountingLibrary:
    """Library of kernels that counts the calls of each kernel."""

    def __init__(self, library, n_calls):
        self._library, self._n_calls = library, n_calls

    def __getattr__(self, name):
        self._n_calls[name] += 1
        return getattr(self._library, name)


@pytest.fixture
def kernels_asked(monkeypatch):
    """Number of calls of each kernel by name: tests show with it that they do not compare torch with itself."""
    compiler, switch = map(pytest.importorskip, ("nmt.kernels.compiler", "nmt.kernels.switch"))
    n_calls = Counter()
    if not switch.why_not():
        library = CountingLibrary(compiler.library(), n_calls)
        monkeypatch.setattr(compiler, "_library", lambda: library)
    return n_calls
