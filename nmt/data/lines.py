"""Text files as lines, plain or compressed: the only reader and writer of text.

Only a line feed ends a line, not a carriage return, form feed, U+0085 or U+2028. So line counts agree with `wc -l`.
"""

import contextlib
import gzip
import io
import lzma
import re
import stat
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from nmt.errors import DataError
from nmt.files import replacing

# Compression by the first bytes of a file. The last four kinds are recognised but not supported.
_KINDS = {
    rb"\x1f\x8b": "gzip",
    rb"\x28\xb5\x2f\xfd|P\*M\x18": "zstd",  # pzstd begins with a skippable frame
    rb"\xfd7zXZ\x00": "xz",
    rb"BZh[1-9]1AY&SY": "bzip2",
    rb"PK\x03\x04": "zip",
    rb"7z\xbc\xaf\x27\x1c": "7-Zip",
    rb"Rar!\x1a\x07": "RAR",
}
_ENDINGS = {".gz": "gzip", ".zst": "zstd", ".xz": "xz"}
_CHUNK = 1 << 20
BOM = b"\xef\xbb\xbf"
_WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")
# Limit of a line to translate, or of a validation or test set, in bytes: a thick book in one line. A longer line has
# lost its line feeds.
LONGEST_LINE = 1 << 20


def without_ending(name: str) -> str:
    """Return a file name without the ending of its compression."""
    return next((name.removesuffix(ending) for ending in _ENDINGS if name.endswith(ending)), name)


def start_of(path: Path | str) -> bytes:
    """Return the first bytes of a file. Raises DataError for a pipe or device: opening one may block for ever."""
    if stat.S_IFMT(Path(path).stat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
        raise DataError(f"{path}: is a pipe or device, but this input is read more than once. Write it to a file.")
    with open(path, "rb") as file:
        return file.read(16)


def _compression_of(path: Path | str) -> str | None:
    """Return the compression of a file by its first bytes, None for no compression."""
    start = start_of(path)
    return next((kind for magic, kind in _KINDS.items() if re.match(magic, start)), None)


def open_decompressed(path: Path | str) -> io.BufferedReader:
    """Open a file for reading, decompressed. `errors_of` turns read errors into a DataError."""
    raw: Any
    match _compression_of(path):
        case "gzip":
            raw = gzip.GzipFile(path)
        case "xz":
            raw = _Xz(path)
        case "zstd":
            # Imported here: the import is slow, and every command reads lines. Python has its own zstd from 3.14 on.
            import pyarrow as pa

            raw = pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")
        case _:
            return open(path, "rb")
    return io.BufferedReader(raw, _CHUNK)


class _Xz(io.RawIOBase):
    """Reader of concatenated xz streams with zero padding. `lzma.LZMAFile` would silently stop at any other bytes."""

    def __init__(self, path: Path | str) -> None:
        self._file = io.FileIO(path)
        self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            compressed = b""
            if self._stream.eof:
                compressed = self._stream.unused_data.lstrip(b"\0")
                while not compressed:
                    if not (chunk := self._file.read(_CHUNK)):
                        return 0
                    compressed = chunk.lstrip(b"\0")
                self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ)
            elif self._stream.needs_input and not (compressed := self._file.read(_CHUNK)):
                raise EOFError("the file ends too early")
            if data := self._stream.decompress(compressed, len(buffer)):
                buffer[: len(data)] = data
                return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


@contextlib.contextmanager
def open_text(path: Path | str) -> Iterator[io.BufferedReader]:
    """Context manager: a text file opened as decompressed bytes. Raises DataError for non-text and read errors."""
    with errors_of(path):
        kind, ending = _compression_of(path), Path(path).suffix
        if kind is None and ending in _ENDINGS:
            raise DataError(f"{path}: named {ending} but not compressed. Is it an error page? Look at its first lines.")
        if kind not in (None, *_ENDINGS.values()):
            raise DataError(f"{path}: compressed by {kind}, which is not supported. Compress it by gzip, zstd or xz.")
        with open_decompressed(path) as file:
            _refuse_wide(path, file)
            yield file


_Errors = tuple[type[Exception], ...]
_CODEC_ERRORS: _Errors = (OSError, EOFError, zlib.error, lzma.LZMAError)


@contextlib.contextmanager
def errors_of(path: object, problem: str = "damaged compressed file", kinds: _Errors = _CODEC_ERRORS) -> Iterator[None]:
    """Context manager: turn errors of these kinds into a DataError. problem: the meaning of those without errno."""
    try:
        yield
    except kinds as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk: a codec sets no errno
            raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from None
        cause = str(error).partition("\n")[0][:300] or "nothing was read"
        raise DataError(f"{path}: {problem} ({cause}). Download or write it again.") from None


def _refuse_wide(name: Path | str, file: io.BufferedReader) -> None:
    """Raise DataError for UTF-16 and UTF-32, by the first bytes."""
    head = file.peek(4096)[:4096]
    # Wide characters have their zero bytes at fixed offsets modulo 4, so one offset has hardly any. Binary data has
    # zeros at all four.
    n_zero, fewest = head.count(0), min(head[offset::4].count(0) for offset in range(4))
    if head.startswith(_WIDE_BOMS) or (n_zero >= 8 and 3 * n_zero >= len(head) and 16 * fewest <= n_zero):
        raise DataError(f"{name}: looks like UTF-16 or UTF-32. Convert it: iconv -f UTF-16 -t UTF-8 IN > OUT.")


def check_text(path: Path | str) -> None:
    """Raise DataError for a file that cannot be read as text. Checks the first line only."""
    next(text_lines(path, LONGEST_LINE), None)


def _blocks(
    file: io.BufferedIOBase, name: Path | str, longest: int | None, notes: Counter[str] | None = None
) -> Iterator[bytes]:
    """Yield the lines of a file as soon as they arrive, in blocks of at most about a megabyte.

    A block has line feeds between its lines. A line of over `longest` bytes may be cut, but stays longer than that.
    """
    notes = Counter() if notes is None else notes
    unfinished, is_first, chunk = bytearray(), True, b"\n"
    while chunk:
        chunk = file.read1(_CHUNK)
        lines, feed, rest = chunk.rpartition(b"\n")
        if not chunk and unfinished:  # the last line has no line feed
            if is_first and b"\r" in unfinished[:-1]:
                raise DataError(
                    f"{name}: its lines end with carriage returns only. Convert it: tr '\\r' '\\n' < IN > OUT."
                )
            feed = b"\n"
        if feed:
            block = bytes(unfinished) + lines + feed
            if is_first and block.startswith(BOM):
                notes["bom"] += 1
                block = block.removeprefix(BOM)
            if n_return := block.count(b"\r\n"):
                notes["crlf"] += n_return
                block = block.replace(b"\r\n", b"\n")
            yield block[:-1]
            unfinished.clear()
            is_first = False
        unfinished += rest
        if longest is not None:
            del unfinished[longest + len(BOM) + 2 :]  # otherwise one line could fill the memory


def first_bytes(raw: bytes, most: int) -> bytes:
    """Cut a text to `most` bytes, or a few less so as not to split a character."""
    if len(raw) <= most:
        return raw
    end = most
    while end > most - 4 and raw[end] & 0xC0 == 0x80:  # inside a character
        end -= 1
    return raw[:end]


def text_lines(path: Path | str, longest: int | None = None, notes: Counter[str] | None = None) -> Iterator[bytes]:
    """Yield the lines of a text file as bytes.

    A carriage return at the end of a line and a byte order mark at the start are removed. longest: bytes of a line
    that are needed; a longer line is cut to over `longest - 4` bytes. notes: counts of harmless oddities, under the
    keys "bom" and "crlf".
    """
    with open_text(path) as file:
        for block in _blocks(file, path, longest, notes):
            lines = block.split(b"\n")
            yield from lines if longest is None else (first_bytes(line, longest) for line in lines)


def read_lines(path: Path | str) -> Iterator[str]:
    """Yield the lines of a text file. Raises DataError for a line that is not UTF-8."""
    for number, raw in enumerate(text_lines(path), start=1):
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}:{number}: {bad_utf8(error)} Convert the file to UTF-8.") from None


def bad_utf8(error: UnicodeDecodeError) -> str:
    """Return a sentence for a message, with the place of the invalid byte."""
    return f"invalid UTF-8 at byte {error.start + 1} (0x{error.object[error.start]:02X})."


def without_end(line: str) -> str:
    """Remove the line feed at the end of a line, and the carriage return before it."""
    return line[:-1].removesuffix("\r") if line.endswith("\n") else line


def read_stream(file: BinaryIO, name: str, notes: Counter[str] | None = None) -> Iterator[tuple[bytes, bool]]:
    """Yield the lines of a stream as `text_lines` does, each as soon as it arrives.

    A line comes with True if it has more than `LONGEST_LINE` bytes: it is cut there. name: name of the stream, for the
    DataError that is raised if it is no text.
    """
    with errors_of(name):
        if isinstance(file, io.BufferedReader):
            _refuse_wide(name, file)
        for block in _blocks(cast(io.BufferedIOBase, file), name, LONGEST_LINE, notes):
            for line in block.split(b"\n"):
                yield first_bytes(line, LONGEST_LINE), len(line) > LONGEST_LINE


def count_lines(path: Path | str) -> int:
    """Count the lines of a text file as `wc -l` does, plus a last line without a line feed."""
    with open_text(path) as file:
        return sum(block.count(b"\n") + 1 for block in _blocks(file, path, 0))


def check_line_counts(n_line: int, n_given: int, given: str, other: str | None) -> None:
    """Raise DataError unless `given` and `other` (None: stdin) have the same number of lines, at least one."""
    if n_line != n_given:
        raise DataError(
            f"{other or 'the input'} has {n_line:,} lines but {given} has {n_given:,}: line n of one must belong to "
            "line n of the other. Look for a truncated file, or a file of another test set."
        )
    if not n_line:
        raise DataError(f"{given}: is empty, so there is nothing to compare.")


def write_lines(path: Path | str, lines: Iterable[str]) -> None:
    """Write UTF-8 text, each line ended by a line feed. The file is written atomically."""
    with replacing(Path(path)) as file:
        for line in lines:
            assert "\n" not in line, "a line feed inside a line would shift every line after it"
            file.write(line.encode("utf-8") + b"\n")
