"""Whether what is committed would outlive a power cut: the order of the system calls of a run, read from its trace.

For every file: written, then fsync(file), then the rename that commits it, then fsync(folder). For a folder that a
rename commits: all its files so, and the folder itself, before the rename. Nothing is deleted in between.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from fault_lab import Lab
from fault_sweep import Fault

Event = tuple[str, str, str]  # write, sync, rename or delete; a path; where it is renamed to

_WRITES = ("write", "pwrite64", "writev", "pwritev", "sendfile", "copy_file_range", "ftruncate")
_CALL = re.compile(r"^\d+\s+(\w+)\((.*)\)\s+= (-?\d+)")
_QUOTED, _OPEN = re.compile(r'"([^"]*)"'), re.compile(r"\d+<([^>]*)>")


def faults() -> Iterator[Fault]:
    """One: the order of all calls of a run."""
    yield Fault("order", "order of calls", misordered)


def misordered(lab: Lab) -> list[str]:
    """Commits of a whole run that a power cut could undo in part."""
    trace = lab.folder / "talk" / "order"
    lab.clear()
    calls = ",".join((*_WRITES, "fsync", "fdatasync", "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir"))
    ended = lab.train().attach("-y", "-s", "0", "-e", f"trace={calls}", trace=trace).go().wait()
    events = list(_events(trace.read_text(encoding="utf-8"), lab.folder))
    return [*complaints(events, lab.run.folder), *lab.at_the_end(ended)]


def _events(text: str, folder: Path) -> Iterator[Event]:
    """The calls that succeeded."""
    for line in text.split("\n"):
        if (match := _CALL.match(line)) is None or match[3].startswith("-"):
            continue
        name, arguments = match[1], match[2]
        named = [str(folder / path) for path in _QUOTED.findall(arguments) if path]
        opened = _OPEN.findall(arguments)
        if name in _WRITES:
            yield "write", opened[0], ""
        elif name in ("fsync", "fdatasync"):
            yield "sync", opened[0], ""
        elif name.startswith("rename"):
            yield "rename", named[0], named[1]
        elif named:
            yield "delete", named[0], ""


def complaints(events: list[Event], run: Path) -> list[str]:
    """What is out of order in the commits of a run: renames that give something in the run folder its lasting name."""
    wrong, n_commit = [], 0
    past: list[Event] = []
    for place, (what, source, target) in enumerate(events):
        if what != "rename" or not target.startswith(f"{run}/"):
            past.append((what, source, target))
            continue
        if Path(target).parent.name.startswith("."):  # a file gets its name in a folder that has none yet
            past = [(kind, target if path == source else path, other) for kind, path, other in past]
            continue
        mine = [(kind, path) for kind, path, _ in past if path == source or path.startswith(f"{source}/")]
        past = [event for event in past if (event[0], event[1]) not in mine]  # the next of that name begins anew
        if Path(target).name.startswith("."):
            continue  # what is deleted loses its name first
        n_commit += 1
        written = {path for kind, path in mine if kind == "write"}
        if not written:
            wrong.append(f"{target}: nothing was seen to be written before it was committed")
        for path in sorted(written):
            last_write = max(i for i, event in enumerate(mine) if event == ("write", path))
            if ("sync", path) not in mine[last_write:]:
                wrong.append(f"{target}: {Path(path).name} was not synced between its last write and the commit")
        if written != {source} and mine[-1:] != [("sync", source)]:
            wrong.append(f"{target}: the folder was not synced last before the commit")
        following = next((event for event in events[place + 1 :] if event[0] != "write"), None)
        if following != ("sync", str(Path(target).parent), ""):
            wrong.append(f"{target}: its folder was not synced right after the commit, but {following}")
    return wrong if n_commit >= 6 else [*wrong, f"only {n_commit} commits were seen"]
