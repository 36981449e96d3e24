"""Bytes in, lines out: the only reader and writer of text.

A line ends at a line feed and nowhere else: not at a carriage return, form feed, U+0085 or U+2028, so our counts are
those of `wc -l`. Which lines are worth keeping is decided in `filters.py`.
"""

import contextlib
import gzip
import hashlib
import io
import lzma
import re
import stat
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, NamedTuple

from nmt.errors import DataError
from nmt.files import replacing, sha256_of

if TYPE_CHECKING:
    import pyarrow as pa
    from _typeshed import WriteableBuffer

# Compressed files as streams of bytes.
# Of which none begins a text in UTF-8.
_GZIP, _ZSTD, _XZ = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00"
# What pzstd writes before its frames: a frame that is to be skipped.
_ZSTD_SKIPPED = b"P*M\x18"
_KINDS = {_GZIP: "gzip", _ZSTD: "zstd", _ZSTD_SKIPPED: "zstd", _XZ: "xz"}
# What others compress with, and is not read here.
_OTHERS = {rb"BZh[1-9]1AY&SY": "bzip2", rb"PK\x03\x04": "zip", rb"7z\xbc\xaf\x27\x1c": "7-Zip", rb"Rar!\x1a\x07": "RAR"}
_ENDINGS = {".gz": "gzip", ".zst": "zstd", ".xz": "xz"}
_PACKED_CHUNK = 1 << 18
# `xz -9` needs 65 MiB; a file may ask for 4 GiB. (zstd by itself refuses over 128 MiB.)
_XZ_MEMORY = 1 << 28

# What reading a damaged file raises, beside an OSError where the disk is at fault.
DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error)


def kind_of(head: bytes) -> str | None:
    """gzip, zstd or xz, by the first bytes of a file; None for anything else."""
    return next((kind for magic, kind in _KINDS.items() if head.startswith(magic)), None)


def other_kind(head: bytes) -> str | None:
    """Kind of compression that is not read here, by the first bytes of a file."""
    return next((kind for magic, kind in _OTHERS.items() if re.match(magic, head)), None)


def promised_kind(name: Path | str) -> str | None:
    """Kind of compression by the ending of a name: .gz, .zst, .xz."""
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
        return io.BufferedReader(raw, _PACKED_CHUNK) if raw is not None else file


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
    """File over a function `read(at most n bytes)`; closing it closes the file below."""

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
                elif not (rest := self._file.read(_PACKED_CHUNK)):
                    raise EOFError("it ends in the middle")
                if data := self._decoder.decompress(rest, most):
                    return data
        except lzma.LZMAError as error:
            raise EOFError(str(error)) from None

    def _after_padding(self) -> bytes:
        """The bytes of the next stream, which zeros may precede; none at the end of the file."""
        while chunk := self._file.read(_PACKED_CHUNK):
            if rest := chunk.lstrip(b"\0"):
                return rest
        return b""

    @staticmethod
    def _new() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)


BOM = b"\xef\xbb\xbf"
# Bytes of a line to translate that are read: a thick book in one line. Whoever has more has lost the line feeds.
LONGEST_LINE = 1 << 20
_NEAR = 1 << 10  # bytes before that in which a blank is looked for
_CHUNK = 1 << 20
_WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")


def read_lines(
    path: Path | str,
    *,
    bad_utf8: Literal["refuse", "drop"] | None = None,
    longest: int | None = None,
    notes: Counter[str] | None = None,
) -> Iterator[str | None]:
    """The lines of a text file, plain or compressed by gzip, zstd or xz, one by one.

    A byte order mark at the start of the file and one carriage return at the end of a line are removed; everything
    else inside a line stays. A line that is not UTF-8 raises a DataError, or is None with bad_utf8="drop". Whoever has
    no such option gives none, and the error advises none.
    longest: bytes of a line that are read; what comes after them up to the line feed is skipped, so that no line can
    fill the memory. The line that comes out then is longer than `longest - 4` bytes.
    notes: counts what is odd but harmless, under the keys "bom" and "crlf".
    """
    with open_text(path) as file:
        for number, raw in enumerate(_split(file, longest), start=1):
            yield _line(raw, path, number, bad_utf8, longest, notes)


def lines_of_block(
    raw: bytes,
    path: Path | str,
    first: int,
    *,
    bad_utf8: Literal["refuse", "drop"],
    longest: int,
    notes: Counter[str],
) -> list[str | None]:
    """Decode consecutive lines of a file as `read_lines` does. raw: the lines, each ended by a line feed.

    first: the number of the first of them in the file.
    """
    if is_plain(raw, first, longest):
        return [*raw.decode("utf-8").split("\n")[:-1]]
    pieces = raw.split(b"\n")[:-1]
    return [
        _line(piece[:longest], path, number, bad_utf8, longest, notes) for number, piece in enumerate(pieces, first)
    ]


def is_plain(raw: bytes, first: int, longest: int) -> bool:
    """True if consecutive lines of a file are the text as it is, so that they need no look one by one."""
    if b"\r" in raw or (first == 1 and raw.startswith(BOM)) or max(map(len, raw.split(b"\n"))) > longest:
        return False
    with contextlib.suppress(UnicodeDecodeError):
        raw.decode("utf-8")
        return True
    return False


def _line(
    raw: bytes, path: Path | str, number: int, bad_utf8: str | None, longest: int | None, notes: Counter[str] | None
) -> str | None:
    """One line of a file, cut to `longest` bytes before."""
    is_cut = longest is not None and len(raw) >= longest
    if number == 1 and raw.startswith(BOM):
        raw = raw[len(BOM) :]
        if notes is not None:
            notes["bom"] += 1
    if raw.endswith(b"\r"):
        raw = raw[:-1]
        if notes is not None:
            notes["crlf"] += 1
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if is_cut and error.start >= len(raw) - 4:
            return raw[: error.start].decode("utf-8")  # cut inside a character: that is our doing
        if bad_utf8 == "drop":
            return None
        advice = "; pairs of training files can be dropped instead: data.bad_utf8: drop" if bad_utf8 else ""
        raise DataError(
            f"{path}:{number}: invalid UTF-8 at byte {error.start + 1} of the line (0x{raw[error.start]:02X}). "
            f"Convert the file to UTF-8{advice}."
        ) from None


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


class StreamLine(NamedTuple):
    """A line as it arrived, or the beginning of one that is longer than `LONGEST_LINE`. n_byte: of the whole line."""

    raw: bytes
    n_byte: int

    @property
    def is_cut(self) -> bool:
        """True if there was more of it."""
        return self.n_byte > len(self.raw)


def read_stream(file: BinaryIO, name: str, notes: Counter[str] | None = None) -> Iterator[StreamLine]:
    """The lines of a binary stream, each as soon as it is there, without line feed; no byte order mark at the start.

    Of a line of more than `LONGEST_LINE` bytes comes its beginning, up to a blank if there is one near, and the rest is
    read and forgotten. name: of the stream, for the DataError that is raised where the first that arrives looks like
    UTF-16. notes: as in `read_lines`; the carriage returns themselves stay.
    """
    if isinstance(file, io.BufferedReader) and (complaint := _complaint_about_text(name, file.peek(4096)[:4096])):
        raise DataError(complaint)
    is_first = True
    while raw := file.readline(LONGEST_LINE + 1):
        if is_first and (complaint := _complaint_about_ends(name, raw)):
            raise DataError(complaint)
        line, n_rest = raw.removesuffix(b"\n"), 0
        if len(line) > LONGEST_LINE:
            n_rest = _skipped(file)
        if is_marked := is_first and line.startswith(BOM):
            line = line.removeprefix(BOM)
        is_first = False
        if notes is not None:
            notes.update(bom=is_marked, crlf=line.endswith(b"\r"))
        yield StreamLine(_shortened(line) if n_rest or len(line) > LONGEST_LINE else line, len(line) + n_rest)


def _skipped(file: BinaryIO) -> int:
    """Read to the end of a line. Returns the number of bytes before it."""
    n_byte = 0
    while raw := file.readline(_CHUNK):
        n_byte += len(raw)
        if raw.endswith(b"\n"):
            return n_byte - 1
    return n_byte


def _shortened(raw: bytes) -> bytes:
    """The first LONGEST_LINE bytes at most of a line, ended before a blank or between two characters."""
    blank = max(raw.rfind(white, LONGEST_LINE - _NEAR, LONGEST_LINE + 1) for white in (b" ", b"\t"))
    if blank >= 0:
        return raw[:blank]
    end = min(LONGEST_LINE, len(raw) - 1)
    while end > LONGEST_LINE - 8 and raw[end] & 0xC0 == 0x80:  # inside a character
        end -= 1
    return raw[:end]


def count_lines(path: Path | str) -> int:
    """As many as `wc -l` says, and one more where the last line has no line feed."""
    return _count_and_digest(path)[0]


def count_and_digest(path: Path) -> tuple[int, str]:
    """Lines as `count_lines`, and the SHA-256 of the file as it lies there. Plain text is read once for both."""
    n_line, digest = _count_and_digest(path)
    with path.open("rb") as file:
        is_plain_text = kind_of(file.read(8)) is None
    return n_line, digest if is_plain_text else sha256_of(path)


def _count_and_digest(path: Path | str) -> tuple[int, str]:
    n_line, last, digest = 0, b"\n", hashlib.sha256()
    with open_text(path) as file:
        while chunk := file.read(_CHUNK):
            n_line += chunk.count(b"\n")
            last = chunk[-1:]
            digest.update(chunk)
    return n_line + (last != b"\n"), digest.hexdigest()


def write_lines(path: Path | str, lines: Iterable[str]) -> None:
    """Write UTF-8 text, each line ended by a line feed. The file is there whole or not at all."""
    with replacing(Path(path)) as file:
        for line in lines:
            assert "\n" not in line, "a line feed inside a line would shift every line after it"
            file.write(line.encode("utf-8") + b"\n")


def complaint_about_stream(path: Path | str) -> str | None:
    """Complaint about a pipe or device: it cannot be read again, and opening it may wait for ever."""
    try:
        kind = Path(path).stat().st_mode
    except OSError:
        return None  # which opening it tells better
    if stat.S_ISREG(kind) or stat.S_ISDIR(kind):
        return None
    return f"{path}: a pipe or device, but what is named is read more than once. Write it to a file, or use stdin."


def complaint_about(path: Path | str) -> str | None:
    """Complaint about a file that cannot be read as text, or None. Looks at its first line only."""
    if complaint := complaint_about_stream(path):
        return complaint
    try:
        with open(path, "rb") as file:
            head = file.read(4096)
            first = head if b"\n" in head else head + file.read(LONGEST_LINE)
    except OSError as error:
        return f"{path}: {_reason(path, error)}."
    kind, promised = kind_of(head), promised_kind(path)
    if promised not in (None, kind):
        is_what = f"compressed by {kind}" if kind else f"not compressed by {promised}"
        ending = str(path).rpartition(".")[2]
        return f"{path}: named .{ending} but {is_what}. Was the download an error page? Look at its first lines."
    if other := other_kind(head):
        return f"{path}: compressed by {other}, which is not read. Unpack it, or compress it by gzip, zstd or xz."
    return None if kind else _complaint_about_text(path, head) or _complaint_about_ends(path, first)


@contextlib.contextmanager
def open_text(path: Path | str) -> Iterator[BinaryIO]:
    """The file's text as bytes, decompressed; what goes wrong while it is read becomes a DataError."""
    if complaint := complaint_about(path):
        raise DataError(complaint)
    try:
        with opened(path) as file:
            head = file.peek(4096)[:4096]
            if b"\n" not in head:
                with opened(path) as again:
                    head = again.read(LONGEST_LINE)
            if complaint := _complaint_about_text(path, head) or _complaint_about_ends(path, head):
                raise DataError(complaint)
            yield file
    except DAMAGE as error:
        raise damaged(path, error) from None
    except OSError as error:
        raise DataError(f"{path}: {_reason(path, error)}.") from None


def damaged(path: Path | str, error: Exception) -> DataError:
    """Error for a compressed file that cannot be read to its end."""
    with open(path, "rb") as file:
        kind = kind_of(file.read(8))
    return DataError(f"{path}: damaged {kind} file ({error}). Download or compress it again.")


def _split(file: BinaryIO, longest: int | None) -> Iterator[bytes]:
    """Split at line feeds only; keep the first `longest` bytes of a line."""
    start = b""
    while chunk := file.read(_CHUNK):
        lines = chunk.split(b"\n")
        lines[0] = start + lines[0]
        start = lines.pop()
        if longest is None:
            yield from lines
        else:
            for line in lines:
                yield line[:longest]
            start = start[:longest]
    if start:
        yield start


def _complaint_about_text(path: Path | str, head: bytes) -> str | None:
    # A wide character has them at the same places, and so hardly any at one of four; what is no text, anywhere.
    n_nul, least = head.count(0), min(head[place::4].count(0) for place in range(4))
    if head.startswith(_WIDE_BOMS) or (n_nul >= 8 and 3 * n_nul >= len(head) and 16 * least <= n_nul):
        return f"{path}: looks like UTF-16 or UTF-32. Convert it: iconv -f UTF-16 -t UTF-8 IN > OUT."
    return None


def _complaint_about_ends(path: Path | str, first: bytes) -> str | None:
    """first: the first line of a text, or more."""
    if b"\n" in first or b"\r" not in first[:-1]:
        return None
    return f"{path}: its lines end with carriage returns alone. Convert it: tr '\\r' '\\n' < IN > OUT."


def _reason(path: Path | str, error: OSError) -> str:
    if Path(path).is_dir():
        return "is a folder; expected a text file"
    if isinstance(error, FileNotFoundError):
        return "no such file"
    return f"cannot be read ({error.strerror or error})"
