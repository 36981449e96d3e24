"""What Parquet and Arrow files unpack to, told before anything is unpacked: a few kilobytes may be gigabytes.

The sizes stand in the headers of pages and messages, which pyarrow does not show, so they are read here: Thrift's
compact protocol for Parquet, flatbuffers for Arrow. Texts themselves are read in `tables.py`.
"""

import mmap
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from nmt.errors import DataError

# Bytes that a page of Parquet may have when it is unpacked, and what of an Arrow file is unpacked at once. Writers make
# pages of a megabyte, and batches of some.
MOST_OF_PAGE, MOST_OF_BATCH = 1 << 27, 1 << 29
# Rows that a file may have however small it is; beyond that a row has a byte at least. And bytes that its texts may
# have; beyond that they are at most so many times the file: text is compressed to a tenth, or a hundredth if it repeats
# itself.
FREE_ROWS, FREE_BYTES, MOST_TIMES = 1 << 20, 1 << 30, 200

_BLOCK = struct.Struct("<qixxxxq")  # where a message of an Arrow file is, the length of its head and of its body
_DICTIONARY, _RECORD_BATCH = 2, 3


def refuse_too_many_rows(path: Path, n_row: int) -> None:
    """DataError where a file has more rows than any text."""
    if n_row > max(FREE_ROWS, size := path.stat().st_size):
        raise DataError(f"{path}: {n_row:,} rows in {size:,} bytes: that is no text. Look at how it was made.")


def refuse_too_many_bytes(path: Path, n_byte: int) -> None:
    """DataError where the texts of a file are far larger than it."""
    if n_byte > max(FREE_BYTES, MOST_TIMES * (size := path.stat().st_size)):
        raise DataError(
            f"{path}: its {size:,} bytes unpack to texts of over {n_byte:,}: that is no text of people. Look at how it "
            "was made."
        )


def refuse_shorter(path: Path, n_byte: int) -> None:
    """ArrowInvalid where a file that was mapped has lost bytes: to touch those would end the process by SIGBUS."""
    if path.stat().st_size < n_byte:
        raise pa.ArrowInvalid("it became shorter while it was read")


# -- Parquet -----------------------------------------------------------------------------------------------------------


def largest_page(path: Path, metadata: Any, columns: Sequence[str]) -> int:
    """Bytes of the largest page of some columns when it is unpacked. DataError if that is too much.

    metadata: pyarrow's FileMetaData. columns: paths as `a.b`.
    """
    largest = 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        for n_group in range(metadata.num_row_groups):
            group = metadata.row_group(n_group)
            for chunk in map(group.column, range(group.num_columns)):
                if chunk.path_in_schema in columns:
                    for n_byte in _pages(mapped, chunk):
                        largest = max(largest, n_byte)
                        refuse_shorter(path, len(mapped))
                if largest > MOST_OF_PAGE:
                    raise DataError(
                        f"{path}: a page of the column {chunk.path_in_schema!r} in row group {n_group + 1} unpacks to "
                        f"{largest:,} bytes; at most {MOST_OF_PAGE:,} are read. Write it again with smaller pages, or "
                        "without what is no sentence."
                    )
    return largest


def _pages(mapped: mmap.mmap, chunk: Any) -> Iterator[int]:
    """Unpacked bytes of each page of a column in a row group."""
    starts = [chunk.data_page_offset, chunk.dictionary_page_offset if chunk.has_dictionary_page else 0]
    try:
        at = min(start for start in starts if start and start > 0)
        end = at + chunk.total_compressed_size
        while at < end:
            header = _Thrift(mapped, at)
            fields = header.numbers()
            unpacked, packed = fields[2], fields[3]
            if unpacked < 0 or packed < 0:
                raise ValueError("a page of less than no bytes")
            yield unpacked
            at = header.at + packed
    except (IndexError, KeyError, ValueError) as error:
        raise pa.ArrowInvalid(f"the header of a page cannot be read: {error}") from None


class _Thrift:
    """A struct in Thrift's compact protocol."""

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self._data, self.at = data, at

    def numbers(self) -> dict[int, int]:
        """The struct's whole numbers by the number of their field; `at` is then behind it."""
        found, number = {}, 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._whole()
            if head & 15 in (4, 5, 6):
                found[number] = self._whole()
            else:
                self._skip(head & 15, 0)
        return found

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _natural(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 128:
            value |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise ValueError("a number is too long")
        return value | byte << shift

    def _whole(self) -> int:
        value = self._natural()
        return value >> 1 ^ -(value & 1)

    def _skip(self, kind: int, depth: int, *, in_list: bool = False) -> None:
        if depth > 8:
            raise ValueError("it is nested too deeply")
        if kind in (1, 2):  # true and false, which in a struct are their own value
            self.at += in_list
        elif kind == 3:
            self.at += 1
        elif kind in (4, 5, 6):
            self._natural()
        elif kind == 7:
            self.at += 8
        elif kind == 8:
            n_byte = self._natural()  # which moves `at`
            self.at += n_byte
        elif kind in (9, 10):
            head = self._byte()
            for _ in range(head >> 4 if head >> 4 < 15 else self._natural()):
                self._skip(head & 15, depth + 1, in_list=True)
        elif kind == 12:
            while head := self._byte():
                if not head >> 4:
                    self._whole()
                self._skip(head & 15, depth + 1)
        else:
            raise ValueError(f"{kind} is no kind of value that a page has")


# -- Arrow -------------------------------------------------------------------------------------------------------------


class _Message(NamedTuple):
    """A message: `rows` of a record batch; the `number` of a dictionary, None if it is none; bytes when unpacked."""

    rows: int
    number: int | None
    adds: bool  # to a dictionary of that number
    unpacked: int


def n_row_of_file(path: Path, mapped: pa.MemoryMappedFile) -> int:
    """The rows of an Arrow file, by its headers. DataError if more is unpacked at once than may be."""
    return _n_row(path, mapped, _checked(_messages_of_file(mapped)))


def n_row_of_stream(path: Path, mapped: pa.MemoryMappedFile) -> int:
    """The rows of an Arrow stream, by its headers, from where it is. DataError as for a file."""
    return _n_row(path, mapped, _checked(pa.ipc.MessageReader.open_stream(mapped)))


def _n_row(path: Path, mapped: pa.MemoryMappedFile, messages: Iterable[_Message]) -> int:
    n_row, held = 0, dict[int, int]()
    for place, message in enumerate(messages, start=1):
        refuse_shorter(path, mapped.size())
        n_row += message.rows
        if message.number is not None:
            held[message.number] = message.unpacked + (held.get(message.number, 0) if message.adds else 0)
        most = max(message.unpacked, sum(held.values()))
        if most > MOST_OF_BATCH:
            raise DataError(
                f"{path}: {'dictionaries' if message.number is not None else 'a record batch'} (message {place}) of "
                f"{most:,} bytes when unpacked; at most {MOST_OF_BATCH:,} are unpacked at once. Write it again with "
                "fewer rows in a batch, or without what is no sentence."
            )
    return n_row


def _checked(messages: Iterable[Any]) -> Iterator[_Message]:
    try:
        for message in messages:
            yield _message(message)
    except (struct.error, IndexError, ValueError) as error:
        if isinstance(error, pa.ArrowException):
            raise
        raise pa.ArrowInvalid(f"a message cannot be read: {error}") from None


def _messages_of_file(mapped: pa.MemoryMappedFile) -> Iterator[Any]:
    size = mapped.size()
    n_byte, magic = struct.unpack("<i6s", mapped.read_at(10, max(size - 10, 0)))
    if magic != b"ARROW1" or not 0 < n_byte < size - 10:
        raise pa.ArrowInvalid("its end is missing")
    footer = mapped.read_at(n_byte, size - 10 - n_byte)
    root = _Table(footer, *struct.unpack_from("<I", footer))
    for field in (2, 3):  # dictionaries, record batches
        for offset, _, _ in root.structs(field, _BLOCK):
            mapped.seek(offset)
            yield pa.ipc.read_message(mapped)


def _message(message: Any) -> _Message:
    """What is to be known of a message. message: pyarrow's."""
    head, body = bytes(message.metadata), message.body
    root = _Table(head, *struct.unpack_from("<I", head))
    kind = root.number(1, "<B")
    if kind not in (_DICTIONARY, _RECORD_BATCH):
        return _Message(0, None, False, 0)
    batch = outer = root.table(2)
    if kind == _DICTIONARY:
        batch = outer.table(1)
    unpacked = 0
    if batch.has(3):  # it is compressed, and each buffer begins with its length, or -1
        view = memoryview(body)
        for offset, length in batch.structs(2, struct.Struct("<qq")):
            if length:
                unpacked += max(length, *struct.unpack_from("<q", view, offset))
    if kind == _DICTIONARY:
        return _Message(0, outer.number(0, "<q"), bool(outer.number(2, "<B")), unpacked)
    return _Message(batch.number(0, "<q"), None, False, unpacked)


class _Table:
    """A table of flatbuffers."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        (back,) = struct.unpack_from("<i", data, at)
        self._fields = at - back
        (self._n_byte,) = struct.unpack_from("<H", data, self._fields)

    def has(self, field: int) -> bool:
        return bool(self._place(field))

    def number(self, field: int, kind: str) -> int:
        """The number in a field, 0 if it is left out."""
        place = self._place(field)
        return int(struct.unpack_from(kind, self._data, place)[0]) if place else 0

    def table(self, field: int) -> "_Table":
        place = self._place(field)
        if not place:
            raise ValueError("a table is missing")
        return _Table(self._data, place + struct.unpack_from("<I", self._data, place)[0])

    def structs(self, field: int, kind: struct.Struct) -> Iterator[tuple[int, ...]]:
        """All structs of the vector in a field, none if it is left out."""
        if place := self._place(field):
            place += struct.unpack_from("<I", self._data, place)[0]
            (n,) = struct.unpack_from("<I", self._data, place)
            yield from (kind.unpack_from(self._data, place + 4 + each * kind.size) for each in range(n))

    def _place(self, field: int) -> int:
        if 4 + 2 * field + 2 > self._n_byte:
            return 0
        (offset,) = struct.unpack_from("<H", self._data, self._fields + 4 + 2 * field)
        return self._at + offset if offset else 0
