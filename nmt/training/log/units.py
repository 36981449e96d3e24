"""Seconds and bytes as people say them."""


def duration(seconds: float) -> str:
    """A length of time: 4.2 s, 42 s, 5 min 20 s, 3 h 05 min, 2 days 7 h."""
    if round(seconds, 1) < 10:
        return f"{seconds:.1f} s"
    hours, rest = divmod(round(seconds), 3600)
    minutes, left = divmod(rest, 60)
    if hours >= 48:
        return f"{hours // 24} days {hours % 24} h"
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {left:02} s" if minutes else f"{left} s"


def size(n_byte: float) -> str:
    """A number of bytes, in powers of ten as disks are sold: 1.2 kB, 3.4 MB, 5.6 GB."""
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if n_byte >= unit:
            return f"{n_byte / unit:,.1f} {name}"
    return f"{n_byte / 1000:,.1f} kB"
