"""Files between processes, how their threads wait, and their rank where torchrun started them."""

import json
import os
import struct
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NamedTuple

from nmt.errors import NmtError

# Numbers, texts and arrays as bytes and back.


_MARK = b"nmt\n"
_HEAD = struct.Struct("<4sQQ")  # the mark, and the lengths of the header and of what comes after it


def write_packed(file: BinaryIO, content: Mapping[str, Any]) -> None:
    """Write a mapping of arrays, bytes, and what JSON can say."""
    import numpy as np  # here, since the commands ask for their rank before anything slow is imported

    plain: dict[str, Any] = {}
    described, parts = [], []
    for name, value in content.items():
        if isinstance(value, bytes | np.ndarray):
            array = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else np.ascontiguousarray(value)
            kind = "bytes" if isinstance(value, bytes) else array.dtype.str
            described.append([name, kind, list(array.shape)])
            parts.append(array)
        else:
            plain[name] = value
    header = json.dumps([plain, described]).encode("utf-8")
    file.write(_HEAD.pack(_MARK, len(header), sum(array.nbytes for array in parts)) + header)
    for array in parts:
        file.write(array.data if array.nbytes else b"")


def read_packed(read: Callable[[int], bytes]) -> dict[str, Any] | None:
    """The next mapping that was written. read: gives so many bytes; none at the end, where the answer is None.

    Raises ValueError where something else stands.
    """
    import numpy as np

    head = read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    mark, n_header, n_byte = _HEAD.unpack(head)
    if mark != _MARK:  # or the lengths might be any number, and so much memory is asked for
        raise ValueError(f"{mark!r} is the beginning of nothing that was packed")
    plain, described = json.loads(read(n_header))
    content: dict[str, Any] = plain
    body, start = memoryview(read(n_byte)), 0
    for name, kind, shape in described:
        dtype = np.dtype(np.uint8 if kind == "bytes" else kind)
        stop = start + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        part = body[start:stop]
        content[name] = bytes(part) if kind == "bytes" else np.frombuffer(part, dtype).reshape(shape)
        start = stop
    return content


def sleep_while_waiting() -> None:
    """Have threads of OpenMP sleep, not spin, while they wait for each other. Call it before torch is imported.

    What the environment says stays. Spinning is faster only where nothing else runs, and there by little in a search.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


# The rank that torchrun gives a process by its environment.


ADDRESS = ("MASTER_ADDR", "MASTER_PORT")


class Place(NamedTuple):
    """A process among those that torchrun started; local_rank: among those of its machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0


def place_of(environment: Mapping[str, str] = os.environ, *, needed: tuple[str, ...] = ()) -> Place:
    """The place that the environment tells of; that of a process alone where it tells of none.

    needed: what there must be beside it where there are several. Raises NmtError for what torchrun would not leave.
    """
    if (n := environment.get("WORLD_SIZE", "1")) == "1":
        return Place()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")  # as `Place` has them
    told = {"LOCAL_RANK": "0", **environment}
    wrong = [name for name in names if not told.get(name, "").isdecimal()]
    if not wrong and not int(told["RANK"]) < int(n):
        wrong = ["RANK"]
    if wrong := [*wrong, *(name for name in needed if name not in environment)]:
        is_wrong = f"is {environment[wrong[0]]!r}" if wrong[0] in environment else "is missing"
        raise NmtError(
            f"WORLD_SIZE is {n!r} in the environment, as where torchrun starts several processes, but {wrong[0]} "
            f"{is_wrong}. Start them by torchrun, or unset WORLD_SIZE."
        )
    return Place(*(int(told[name]) for name in names))
