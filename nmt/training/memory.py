"""When memory runs out: batches are halved. The update stays the same: the loss is a sum over tokens, so the gradient
of a batch is the sum of the gradients of its halves. With dropout each piece has its own, reproducible masks."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from nmt.data.batches import Batch
from nmt.data.subwords import PAD
from nmt.processes import system_text


@dataclass(frozen=True)
class Work:
    """One batch of an update on this rank. counts: False if the rank only repeats a batch because other ranks have
    more. seed: of its dropout, so there is no generator state to save."""

    batch: Batch
    counts: bool = True
    seed: int = 0

    @property
    def cost(self) -> int:
        """Size that memory grows with: sentences x longest side."""
        return self.batch.src_seq.size(0) * max(self.batch.src_seq.size(1), self.batch.gold.size(1))

    def split(self) -> "list[Work]":
        """Two pieces with half of the sentences each, padded to their own longest sentences."""
        seeds = np.random.SeedSequence(self.seed).generate_state(2, np.uint64) >> np.uint64(1)
        batch, middle, pieces = self.batch, self.batch.src_seq.size(0) // 2, list[Work]()
        for rows, seed in zip((slice(middle), slice(middle, None)), seeds, strict=True):
            n_src, n_trg = (int((seq[rows] != PAD).sum(1).max()) for seq in (batch.src_seq, batch.gold))
            gold = batch.gold[rows, :n_trg]
            n_gold = int((gold != PAD).sum())
            half = Batch(batch.src_seq[rows, :n_src], batch.trg_seq[rows, :n_trg], gold, n_gold)
            pieces.append(replace(self, batch=half, seed=int(seed)))
        return pieces


@dataclass
class Memory:
    """Memory limit of a run. too_large: cost of the smallest batch that did not fit; 0: none yet. n_failed: number of
    times that memory ran out."""

    too_large: int = 0
    n_failed: int = 0

    def pieces(self, work: list[Work]) -> list[Work]:
        """The batches of an update, halved where they are known not to fit. A single pair cannot be halved."""
        pieces: list[Work] = []
        for item in work:
            is_too_large = self.too_large and item.cost >= self.too_large and item.batch.src_seq.size(0) > 1
            pieces += self.pieces(item.split()) if is_too_large else [item]
        return pieces

    def ran_out(self, work: Work) -> None:
        """Record that a batch did not fit."""
        self.n_failed += 1
        self.too_large = min(work.cost, self.too_large or work.cost)


# Memory that the machine has left and that this process takes, as the operating system reports it.


def memory_left(device: torch.device) -> int | None:
    """Free bytes of a GPU, or for a CPU of the machine and its control groups; None: not known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = [_number_after(Path("/proc/meminfo"), "MemAvailable:", 1024)]
    group = Path("/sys/fs/cgroup", *system_text(Path("/proc/self/cgroup")).strip().rpartition(":")[2].split("/"))
    for folder in (group, *group.parents):
        limit, used = system_text(folder / "memory.max").strip(), system_text(folder / "memory.current").strip()
        if limit.isdigit() and used.isdigit():
            cache = _number_after(folder / "memory.stat", "inactive_file", 1) or 0  # the kernel frees it on demand
            free.append(int(limit) - int(used) + cache)
    return min((max(0, number) for number in free if number is not None), default=None)


def peak(device: torch.device) -> int | None:
    """Peak memory of this process in bytes, on a CPU since its start; None: not known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    return _number_after(Path("/proc/self/status"), "VmHWM:", 1024)


def footprint(device: torch.device) -> dict[str, float]:
    """{"rss_mb": current memory of the process, "device_peak_mb": peak memory of torch on the GPU}, where known."""
    megabytes = {}
    resident = _number_after(Path("/proc/self/status"), "VmRSS:", 1024)
    if resident is None:  # macOS
        import resource

        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if resident is not None:
        megabytes["rss_mb"] = round(resident / (1 << 20), 1)
    if device.type == "cuda":
        megabytes["device_peak_mb"] = round(torch.cuda.max_memory_allocated(device) / (1 << 20), 1)
    return megabytes


def _number_after(path: Path, word: str, factor: int) -> int | None:
    """The number after a word at the start of a line of a file, times a factor; None if there is none."""
    match = re.search(rf"^{word}\s+(\d+)", system_text(path), re.MULTILINE)
    return int(match[1]) * factor if match else None
