"""When memory runs out: into which pieces the batches of an update fall then.

An update whose batches are split is the same update: the loss is a sum over tokens, so the gradient of a batch is the
sum of those of its halves. Without dropout the two differ by rounding alone. With dropout each piece draws masks of its
own, for no generator can draw part of a tensor's masks: not those of the whole batch, but of the same expectation, and
always the same ones for the same pieces.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from nmt.data.batches import Batch, halves


@dataclass(frozen=True)
class Work:
    """One batch of an update on this rank. counts: False where a rank repeats one because others have more.

    seed: of its dropout, so that there is no generator state to lose. layer_seed: of what all batches of an update
    have in common, the layers that are left out.
    """

    batch: Batch
    counts: bool = True
    seed: int = 0
    layer_seed: int = 0

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
    """Memory limit of a run. too_large: cost of the smallest batch that did not fit; 0: none yet.

    n_failed: how often it was too small.
    """

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


if sys.platform != "win32":
    import resource

_MB = 1 << 20


def memory_left(device: torch.device | None = None, root: Path = Path("/")) -> int | None:
    """Bytes that may still be used, of a GPU, or else by the CPU within the limits of its control groups, if known."""
    if device is not None and device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    left = [_number_after(root / "proc/meminfo", "MemAvailable:", 1024), *_left_in_groups(root)]
    known = [number for number in left if number is not None]
    return max(0, min(known)) if known else None


def _left_in_groups(root: Path) -> list[int | None]:
    """Return the bytes left under the limit of each control group of this process, in either version of them."""
    found: list[int | None] = []
    for line in (_text(root / "proc/self/cgroup") or "").split("\n"):
        number, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        if number == "0":
            top, limit, used = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in kinds.split(","):
            top, limit, used = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = top / path.strip("/")
        # Inside a container the path may be that of the host; the group itself is then seen at the top.
        for folder in [group, *group.parents]:
            if folder.is_relative_to(top):
                found.append(_left_in_group(folder, limit, used))
    return found


def _left_in_group(folder: Path, limit: str, used: str) -> int | None:
    most, now = (_text(folder / name) for name in (limit, used))
    if most is None or now is None or not most.strip().isdigit():  # "max": no limit
        return None
    reclaimable = _number_after(folder / "memory.stat", "inactive_file", 1) or 0  # page cache: the kernel gives it back
    return int(most) - int(now) + reclaimable


def forget_peak(device: torch.device) -> None:
    """Let `peak` begin anew, where it can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif sys.platform == "linux":
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        except OSError:
            return  # some containers forbid it: then it is the peak since the process began


def peak(device: torch.device) -> int | None:
    """Most bytes that this process has held at a time; None: not known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    return _number_after(Path("/proc/self/status"), "VmHWM:", 1024)


def footprint(device: torch.device) -> dict[str, float]:
    """{"rss_mb": memory of the process now, "device_peak_mb": most that torch ever held on the GPU}, where known."""
    found = {}
    if (rss := _resident()) is not None:
        found["rss_mb"] = round(rss / _MB, 1)
    if device.type == "cuda":
        found["device_peak_mb"] = round(torch.cuda.max_memory_allocated(device) / _MB, 1)
    return found


def _resident() -> int | None:
    """Bytes in memory now; on macOS the most there ever were; None on Windows."""
    if sys.platform == "win32":
        return None
    now = _number_after(Path("/proc/self/status"), "VmRSS:", 1024)
    return now if now is not None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _number_after(path: Path, word: str, factor: int) -> int | None:
    """The number on the line of a file that begins with a word."""
    for line in (_text(path) or "").split("\n"):
        if line.split()[:1] == [word]:
            return int(line.split()[1]) * factor
    return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
