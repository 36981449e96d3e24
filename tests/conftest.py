"""What every test may rely on: one thread, no network, no GPU unless a test asks for it."""

import os
import signal
import sys
from collections import Counter

import pytest

# Before torch is imported: tests are tiny, and two processes of them share the machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

# A shell without job control starts what is in the background deaf to Ctrl-C, and nohup to the end of the terminal. The
# commands under test would rightly stay deaf, and what is tested is what they do when they hear.
for _name, _handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    if hasattr(signal, _name) and signal.getsignal(getattr(signal, _name)) == signal.SIG_IGN:
        signal.signal(getattr(signal, _name), _handler)

# What takes longest goes first: of two processes none is left alone with it at the end, when the other has no work.
_LONGEST_FIRST = (
    "test_parallel", "test_resume", "test_faults", "test_ctranslate2", "test_translate", "test_recipes_train",
    "test_prepare", "test_export", "test_translate_journal", "test_metrics", "test_copying",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    place = {name: number for number, name in enumerate(_LONGEST_FIRST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


@pytest.fixture(autouse=True)
def kernels_as_in_a_new_process():
    """Whoever trains switches the kernels on for the process, and a test is not to know of those before it."""
    if "nmt.kernels.switch" in sys.modules:
        sys.modules["nmt.kernels.switch"].use(False)


class Watched:
    """The library of kernels, counting how often each is asked for."""

    def __init__(self, library, asked):
        self._library, self._asked = library, asked

    def __getattr__(self, name):
        self._asked[name] += 1
        return getattr(self._library, name)


@pytest.fixture
def kernels_asked(monkeypatch):
    """How often each kernel was asked for, by its name: that what is compared with torch is not torch."""
    compiler, switch = map(pytest.importorskip, ("nmt.kernels.compiler", "nmt.kernels.switch"))
    asked = Counter()
    if not switch.why_not():
        watched = Watched(compiler.library(), asked)
        monkeypatch.setattr(compiler, "_library", lambda: watched)
    return asked
