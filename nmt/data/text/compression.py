"""Compressed files as streams of bytes: gzip, zstd and xz, told by their first bytes; several in one file go on.

Nothing is unpacked at once, so the size of what is inside does no harm. What the bytes mean is said in `lines.py`.
"""

import contextlib
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import pyarrow as pa
    from _typeshed import WriteableBuffer

# Of which none begins a text in UTF-8.
_GZIP, _ZSTD, _XZ = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00"
# What pzstd writes before its frames: a frame that is to be skipped.
_ZSTD_SKIPPED = b"P*M\x18"
_KINDS = {_GZIP: "gzip", _ZSTD: "zstd", _ZSTD_SKIPPED: "zstd", _XZ: "xz"}
# What others compress with, and is not read here.
_OTHERS = {rb"BZh[1-9]1AY&SY": "bzip2", rb"PK\x03\x04": "zip", rb"7z\xbc\xaf\x27\x1c": "7-Zip", rb"Rar!\x1a\x07": "RAR"}
_ENDINGS = {".gz": "gzip", ".zst": "zstd", ".xz": "xz"}
_CHUNK = 1 << 18
# `xz -9` needs 65 MiB; a file may ask for 4 GiB. (zstd by itself refuses over 128 MiB.)
_XZ_MEMORY = 1 << 28

# What reading a damaged file raises, beside an OSError where the disk is at fault.
DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error)


def kind_of(head: bytes) -> str | None:
    """gzip, zstd or xz, by the first bytes of a file; None for anything else."""
    return next((kind for magic, kind in _KINDS.items() if head.startswith(magic)), None)


def other_kind(head: bytes) -> str | None:
    """What a file is compressed with that is not read here, by its first bytes."""
    return next((kind for magic, kind in _OTHERS.items() if re.match(magic, head)), None)


def promised_kind(name: Path | str) -> str | None:
    """What the ending of a name says: .gz, .zst, .xz."""
    return next((kind for ending, kind in _ENDINGS.items() if str(name).endswith(ending)), None)


def without_ending(name: str) -> str:
    """A name less the ending that says how the file is compressed."""
    return next((name.removesuffix(ending) for ending in _ENDINGS if name.endswith(ending)), name)


def opened(path: Path | str) -> io.BufferedReader:
    """A file, decompressed if it is compressed. Reading it may raise what is in DAMAGE."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(path, "rb"))
        raw = _decompressed(file, kind_of(file.peek(8)))
        stack.pop_all()  # the caller closes it
        return io.BufferedReader(raw, _CHUNK) if raw is not None else file


def _decompressed(file: io.BufferedReader, kind: str | None) -> io.RawIOBase | None:
    if kind == "gzip":
        return _Stream(gzip.GzipFile(fileobj=file).read, file)
    if kind == "zstd":
        # The codec of a library that is there anyway; Python has its own from 3.14 on. Imported late: it takes time,
        # and every command reads lines.
        import pyarrow as pa

        return _Stream(_zstd(pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")), file)
    return _Stream(_Xz(file).read, file) if kind == "xz" else None


class _Stream(io.RawIOBase):
    """What `read(at most n bytes)` gives, as a file that closes the one below it."""

    def __init__(self, read: Callable[[int], bytes], below: BinaryIO) -> None:
        self._read, self._below = read, below

    def readable(self) -> bool:
        """True: io.RawIOBase asks."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Fill the buffer or a part of it; 0 at the end."""
        view = memoryview(buffer).cast("B")
        data = self._read(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """The file below is closed too."""
        self._below.close()
        super().close()


def _zstd(stream: "pa.NativeFile") -> Callable[[int], bytes]:
    def read(most: int) -> bytes:
        try:
            return bytes(stream.read(most))
        except OSError as error:
            if error.errno is not None:  # the disk
                raise
            raise EOFError(str(error)) from None

    return read


class _Xz:
    """Streams of xz one after another, with a bound on the memory, which the `lzma.LZMAFile` of Python has not."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._decoder = file, self._new()

    def read(self, most: int) -> bytes:
        """Up to so many bytes; none at the end."""
        try:
            while True:
                if self._decoder.eof:
                    rest = self._decoder.unused_data.lstrip(b"\0") or self._after_padding()
                    if not rest:
                        return b""
                    self._decoder = self._new()
                elif not self._decoder.needs_input:
                    rest = b""
                elif not (rest := self._file.read(_CHUNK)):
                    raise EOFError("it ends in the middle")
                if data := self._decoder.decompress(rest, most):
                    return data
        except lzma.LZMAError as error:
            raise EOFError(str(error)) from None

    def _after_padding(self) -> bytes:
        """The bytes of the next stream, which zeros may precede; none at the end of the file."""
        while chunk := self._file.read(_CHUNK):
            if rest := chunk.lstrip(b"\0"):
                return rest
        return b""

    @staticmethod
    def _new() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
