"""What one rank leaves for another: a file of what `pack.py` writes, and a manifest that tells it is whole.

The manifest is written last. A file without it, or with other bytes than it says, is not used.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from nmt.errors import MachineError
from nmt.files import parse_json, write_durably
from nmt.pack import read_packed, write_packed


class PartWriter:
    """A part that is written. A context manager, which writes the manifest if all went well."""

    def __init__(self, path: Path) -> None:
        self._path, self._file, self._n = path, path.open("xb"), 0
        self._digest, self._n_byte = hashlib.sha256(), 0

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        if kind is None:
            told = {"n": self._n, "size": self._n_byte, "sha256": self._digest.hexdigest()}
            write_durably(_manifest_of(self._path), json.dumps(told).encode("utf-8"))

    def add(self, content: Mapping[str, Any]) -> None:
        """The next task or answer."""
        write_packed(cast(BinaryIO, self), content)
        self._n += 1

    def write(self, part: Any) -> None:
        """Bytes of the file."""
        self._digest.update(part)
        self._n_byte += memoryview(part).nbytes
        self._file.write(part)


def read_part(path: Path) -> Iterator[dict[str, Any]]:
    """What is in a part, one after the other, and then nothing is left of it.

    Its bytes are compared as they are read: a MachineError at the end, at the latest, says that they are others.
    """
    try:
        told = parse_json(_manifest_of(path).read_bytes())
        digest, n, n_byte = hashlib.sha256(), 0, 0
        with path.open("rb") as file:

            def read(wanted: int) -> bytes:
                nonlocal n_byte
                found = file.read(wanted)
                digest.update(found)
                n_byte += len(found)
                return found

            if file.seek(0, os.SEEK_END) != told["size"]:
                raise ValueError(f"{file.tell():,} bytes, but {told['size']:,} were written")
            file.seek(0)
            while n < told["n"] and (content := read_packed(read)) is not None:
                n += 1
                yield content
        if (n, n_byte, digest.hexdigest()) != (told["n"], told["size"], told["sha256"]):
            raise ValueError("its bytes are not those that were written")
    except (ValueError, KeyError, OSError) as error:
        raise MachineError(
            f"{path}: cannot be read as it was written by its rank: {error}. Do all machines see the same folder? "
            "Start all ranks again."
        ) from None
    path.unlink()
    _manifest_of(path).unlink()


def _manifest_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")
