"""When memory runs out: batches fall into halves. An update whose batches are split is the same update: the loss is a
sum over tokens, so the gradient of a batch is the sum of those of its halves. With dropout each piece draws masks of
its own, always the same ones."""

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from nmt.data.batches import Batch, halves

if sys.platform != "win32":
    import resource


@dataclass(frozen=True)
class Work:
    """One batch of an update on this rank. counts: False where a rank repeats one because others have more. seed: of
    its dropout, so that there is no generator state to lose."""

    batch: Batch
    counts: bool = True
    seed: int = 0

    @property
    def cost(self) -> int:
        """Return the size that memory grows with: sentences x longest side."""
        return self.batch.src_seq.size(0) * max(self.batch.src_seq.size(1), self.batch.gold.size(1))

    def split(self) -> "list[Work]":
        """Two pieces with half the sentences each."""
        seeds = np.random.SeedSequence(self.seed).generate_state(2, np.uint64) >> np.uint64(1)
        return [replace(self, batch=half, seed=int(seed)) for half, seed in zip(halves(self.batch), seeds, strict=True)]


@dataclass
class Memory:
    """Memory limit of a run. too_large: cost of the smallest batch that did not fit; 0: none yet. n_failed: how often
    it was too small."""

    too_large: int = 0
    n_failed: int = 0

    def pieces(self, work: list[Work]) -> list[Work]:
        """The batches of an update, those halved that memory is known not to hold. A pair cannot be halved."""
        found: list[Work] = []
        for item in work:
            too_costly = self.too_large and item.cost >= self.too_large and item.batch.src_seq.size(0) > 1
            found += self.pieces(item.split()) if too_costly else [item]
        return found

    def ran_out(self, work: Work) -> None:
        """Remember that a batch was too large."""
        self.n_failed += 1
        self.too_large = min(work.cost, self.too_large or work.cost)


# How much memory the machine has left, and how much this process takes, as far as the system says so by itself.


def memory_left(device: torch.device) -> int | None:
    """Bytes that may still be used: of a GPU, or of a CPU's machine and its control groups, if known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    left = [_number_after(Path("/proc/meminfo"), "MemAvailable:", 1024)]
    group = Path("/sys/fs/cgroup", *_text(Path("/proc/self/cgroup")).strip().rpartition(":")[2].split("/"))
    for folder in (group, *group.parents):
        most, used = _text(folder / "memory.max").strip(), _text(folder / "memory.current").strip()
        if most.isdigit() and used.isdigit():
            cache = _number_after(folder / "memory.stat", "inactive_file", 1) or 0  # the kernel gives it back
            left.append(int(most) - int(used) + cache)
    return min((max(0, number) for number in left if number is not None), default=None)


def peak(device: torch.device) -> int | None:
    """Most bytes that this process has held at a time, on a CPU since it began; None: not known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    return _number_after(Path("/proc/self/status"), "VmHWM:", 1024)


def footprint(device: torch.device) -> dict[str, float]:
    """{"rss_mb": memory of the process now, "device_peak_mb": most that torch ever held on the GPU}, where known."""
    found = {}
    resident = _number_after(Path("/proc/self/status"), "VmRSS:", 1024)
    if resident is None and sys.platform != "win32":  # macOS
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if resident is not None:
        found["rss_mb"] = round(resident / (1 << 20), 1)
    if device.type == "cuda":
        found["device_peak_mb"] = round(torch.cuda.max_memory_allocated(device) / (1 << 20), 1)
    return found


def _number_after(path: Path, word: str, factor: int) -> int | None:
    """The number on the line of a file that begins with a word."""
    found = re.search(rf"^{word}\s+(\d+)", _text(path), re.MULTILINE)
    return int(found[1]) * factor if found else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
