"""Text files as lines, plain or compressed: the only reader and writer of text.

A line ends at a line feed and nowhere else: not at a carriage return, form feed, U+0085 or U+2028, so our counts are
those of `wc -l`.
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
from typing import Any, BinaryIO, NamedTuple

from nmt.errors import DataError
from nmt.files import replacing

# Compression by the first bytes of a file; the last four are not read here.
_KINDS = {
    rb"\x1f\x8b": "gzip",
    rb"\x28\xb5\x2f\xfd|P\*M\x18": "zstd",  # pzstd begins with a frame that is to be skipped
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
# Bytes of a line to translate that are read: a thick book in one line. Whoever has more has lost the line feeds.
LONGEST_LINE = 1 << 20
_NEAR = 1 << 10  # bytes before that in which a blank is looked for


def without_ending(name: str) -> str:
    """A name less the ending that says how the file is compressed."""
    return next((name.removesuffix(ending) for ending in _ENDINGS if name.endswith(ending)), name)


def _kind_of(path: Path | str) -> str | None:
    """Compression of a file by its first bytes; None for anything else."""
    with open(path, "rb") as file:
        start = file.read(16)
    return next((kind for magic, kind in _KINDS.items() if re.match(magic, start)), None)


def opened(path: Path | str) -> io.BufferedReader:
    """A file, decompressed if it is compressed. What goes wrong while it is read is for `errors_of`."""
    raw: Any
    match _kind_of(path):
        case "gzip":
            raw = gzip.GzipFile(path)
        case "xz":
            raw = _Xz(path)
        case "zstd":
            # Imported here: it takes time, and every command reads lines. Python has its own zstd from 3.14 on.
            import pyarrow as pa

            raw = pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")
        case _:
            return open(path, "rb")
    return io.BufferedReader(raw, _CHUNK)


class _Xz(io.RawIOBase):
    """Streams of xz one after another, with zeros between them. `lzma.LZMAFile` would end unseen at anything else."""

    def __init__(self, path: Path | str) -> None:
        self._file = open(path, "rb")  # noqa: SIM115
        self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            given = b""
            if self._stream.eof:
                given = self._stream.unused_data.lstrip(b"\0")
                while not given:
                    if not (read := self._file.read(_CHUNK)):
                        return 0
                    given = read.lstrip(b"\0")
                self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ)
            elif self._stream.needs_input and not (given := self._file.read(_CHUNK)):
                raise EOFError("it ends too early")
            if data := self._stream.decompress(given, len(buffer)):
                buffer[: len(data)] = data
                return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def refuse_stream(path: Path | str) -> None:
    """Raise DataError for a pipe or device: opening it may wait for ever."""
    if stat.S_IFMT(Path(path).stat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
        raise DataError(f"{path}: a pipe or device, but what is named is read more than once. Write it to a file.")


@contextlib.contextmanager
def open_text(path: Path | str) -> Iterator[io.BufferedReader]:
    """The file's text as bytes, decompressed. DataError for what is no text, and for what goes wrong in reading it."""
    with errors_of(path):
        refuse_stream(path)
        kind = _kind_of(path)
        ending = Path(path).suffix
        promised = _ENDINGS.get(ending)
        if promised not in (None, kind):
            is_what = f"compressed by {kind}" if kind else f"not compressed by {promised}"
            raise DataError(
                f"{path}: named {ending} but {is_what}. Was the download an error page? Look at its first lines."
            )
        if kind not in (None, *_ENDINGS.values()):
            raise DataError(
                f"{path}: compressed by {kind}, which is not read. Unpack it, or compress it by gzip, zstd or xz."
            )
        with opened(path) as file:
            _refuse_wide(path, file)
            yield file


@contextlib.contextmanager
def errors_of(path: Path | str) -> Iterator[None]:
    """Context manager: what goes wrong while a file is read becomes a DataError."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: no such file.") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a folder; expected a text file.") from None
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk; a codec gives no number
            raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from None
        raise DataError(f"{path}: damaged compressed file ({error}). Download or compress it again.") from None


def _refuse_wide(name: Path | str, file: io.BufferedReader) -> None:
    """Raise DataError for UTF-16 and UTF-32, by the first bytes."""
    head = file.peek(4096)[:4096]
    # A wide character has zeros at the same places, and so hardly any at one of four; what is no text, anywhere.
    n_zero, least = head.count(0), min(head[place::4].count(0) for place in range(4))
    if head.startswith(_WIDE_BOMS) or (n_zero >= 8 and 3 * n_zero >= len(head) and 16 * least <= n_zero):
        raise DataError(f"{name}: looks like UTF-16 or UTF-32. Convert it: iconv -f UTF-16 -t UTF-8 IN > OUT.")


def check_text(path: Path | str) -> None:
    """Raise DataError for a file that cannot be read as text, as far as its first line tells."""
    next(text_lines(path, LONGEST_LINE), None)


class StreamLine(NamedTuple):
    """A line without its line feed, or the beginning of a longer one. n_byte: of the whole line."""

    raw: bytes
    n_byte: int

    @property
    def is_cut(self) -> bool:
        """True if there was more of it."""
        return self.n_byte > len(self.raw)


def text_blocks(path: Path | str, longest: int | None = None, notes: Counter[str] | None = None) -> Iterator[bytes]:
    """The lines of a text file in blocks of about a megabyte, with line feeds between them.

    A carriage return at the end of a line is left out, and a byte order mark at the start. longest: bytes of a line
    that are wanted; what comes of a longer one has more, and may differ after so many. notes: counts what is odd but
    harmless, under the keys "bom" and "crlf".
    """
    notes = Counter() if notes is None else notes
    with open_text(path) as file:
        begun, chunk = bytearray(), file.read(_CHUNK)
        if b"\n" not in chunk:
            _refuse_carriage_returns(path, chunk)
        if chunk.startswith(BOM):
            notes["bom"] += 1
            chunk = chunk.removeprefix(BOM) or b"\n"  # a mark alone is a line
        while chunk:
            lines, feed, rest = chunk.rpartition(b"\n")
            if feed:
                yield _without_returns(bytes(begun) + lines + feed, notes)
                begun = bytearray(rest)
            else:
                begun += rest
            if longest is not None:
                del begun[longest + 2 :]  # or one line could fill the memory
            chunk = file.read(_CHUNK)
        if begun:
            yield _without_returns(bytes(begun) + b"\n", notes)


def _without_returns(lines: bytes, notes: Counter[str]) -> bytes:
    """Some lines without the carriage returns and line feeds at their ends, but the line feeds between them."""
    if n_return := lines.count(b"\r\n"):
        notes["crlf"] += n_return
        lines = lines.replace(b"\r\n", b"\n")
    return lines[:-1]


def _refuse_carriage_returns(name: Path | str, begun: bytes) -> None:
    if b"\r" in begun[:-1]:
        raise DataError(f"{name}: its lines end with carriage returns alone. Convert it: tr '\\r' '\\n' < IN > OUT.")


def first_bytes(raw: bytes, most: int) -> bytes:
    """The first so many bytes of a text at most, ended between two characters."""
    if len(raw) <= most:
        return raw
    end = most
    while end > most - 4 and raw[end] & 0xC0 == 0x80:  # inside a character
        end -= 1
    return raw[:end]


def text_lines(path: Path | str, longest: int | None = None, notes: Counter[str] | None = None) -> Iterator[bytes]:
    """The lines of a text file as bytes: see `text_blocks`. Longer ones are cut, to more than `longest - 4` bytes."""
    for block in text_blocks(path, longest, notes):
        lines = block.split(b"\n")
        yield from lines if longest is None else (first_bytes(line, longest) for line in lines)


def read_lines(path: Path | str) -> Iterator[str]:
    """The lines of a text file. DataError for one that is not UTF-8."""
    for number, raw in enumerate(text_lines(path), start=1):
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}:{number}: {bad_utf8(error)} Convert the file to UTF-8.") from None


def bad_utf8(error: UnicodeDecodeError) -> str:
    """Sentence that tells the place at which bytes are not UTF-8."""
    return f"invalid UTF-8 at byte {error.start + 1} (0x{error.object[error.start]:02X})."


def decode_line(raw: bytes) -> tuple[str, bool]:
    """The text of a line, whatever its bytes, and whether it was valid UTF-8.

    For translation, where every line gets an answer: bad bytes become U+FFFD. One carriage return at the end goes.
    """
    raw = raw.removesuffix(b"\r")
    try:
        return raw.decode("utf-8"), True
    except UnicodeDecodeError:
        return raw.decode("utf-8", errors="replace"), False


def without_end(line: str) -> str:
    """A line without the line feed at its end, and the carriage return before that, if there are any."""
    return line[:-1].removesuffix("\r") if line.endswith("\n") else line


def read_stream(file: BinaryIO, name: str, notes: Counter[str] | None = None) -> Iterator[StreamLine]:
    """The lines to translate of a stream, each as soon as it is there; no byte order mark at the start.

    Of a line of more than `LONGEST_LINE` bytes comes its beginning, up to a blank if there is one near. name: of the
    stream, for the DataError that is raised where it is no text. notes: of `text_blocks`.
    """
    notes = Counter() if notes is None else notes
    most, is_first = LONGEST_LINE + len(BOM) + 1, True
    with errors_of(name):
        if isinstance(file, io.BufferedReader):
            _refuse_wide(name, file)
        while raw := file.readline(most):
            n_rest, is_whole = 0, raw.endswith(b"\n")
            while not is_whole and len(raw) == most and (rest := file.readline(_CHUNK)):
                is_whole = rest.endswith(b"\n")
                n_rest += len(rest) - is_whole
            if is_first and not is_whole:
                _refuse_carriage_returns(name, raw)
            raw = raw.removesuffix(b"\n")
            if is_first and raw.startswith(BOM):
                notes["bom"] += 1
                raw = raw.removeprefix(BOM)
            is_first = False
            notes["crlf"] += raw.endswith(b"\r")
            line = StreamLine(first_bytes(raw, LONGEST_LINE), len(raw) + n_rest)
            blank = max(line.raw.rfind(white, LONGEST_LINE - _NEAR) for white in (b" ", b"\t")) if line.is_cut else -1
            yield line if blank < 0 else line._replace(raw=line.raw[:blank])


def count_lines(path: Path | str) -> int:
    """As many as `wc -l` says, and one more where the last line has no line feed."""
    n_line, last = 0, b"\n"
    with open_text(path) as file:
        while chunk := file.read(_CHUNK):
            n_line += chunk.count(b"\n")
            last = chunk[-1:]
    return n_line + (last != b"\n")


def write_lines(path: Path | str, lines: Iterable[str]) -> None:
    """Write UTF-8 text, each line ended by a line feed. The file is there whole or not at all."""
    with replacing(Path(path)) as file:
        for line in lines:
            assert "\n" not in line, "a line feed inside a line would shift every line after it"
            file.write(line.encode("utf-8") + b"\n")
