"""How much memory this process takes, as far as its system says so without another package."""

import sys
from pathlib import Path

import torch

if sys.platform != "win32":
    import resource

_MB = 1 << 20


def memory(device: torch.device) -> dict[str, float]:
    """{"rss_mb": memory of the process, "device_peak_mb": most that torch ever held on the GPU}, where known."""
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
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
