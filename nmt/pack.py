"""Numbers, texts and arrays as bytes and back: what is known of a block of pairs, on the disk and between processes.

A mark, a header of JSON, then the arrays as they lie in memory. Nothing in it can be run.
"""

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import numpy as np

_MARK = b"nmt\n"
_HEAD = struct.Struct("<4sQQ")  # the mark, and the lengths of the header and of what comes after it


def write_packed(file: BinaryIO, content: Mapping[str, Any]) -> None:
    """Write a mapping of arrays, bytes, and what JSON can say."""
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
