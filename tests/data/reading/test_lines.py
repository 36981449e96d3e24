"""Reading and writing lines: plain and compressed files, streams, and damage, which is refused by name."""

import bz2
import gzip
import io
import lzma
import os
import zipfile
from collections import Counter

import pyarrow as pa
import pytest

from nmt.data.lines import (
    check_text,
    count_lines,
    open_text,
    read_lines,
    read_stream,
    text_lines,
    write_lines,
)
from nmt.errors import DataError
from tests.data.awkward import AWKWARD

LINES = [f"Zeile {n}, über {'so' * (n % 50)}" for n in range(3000)]
TEXT = "".join(line + "\n" for line in LINES).encode()


def zstd(content):
    return pa.Codec("zstd").compress(content, asbytes=True)


def zipped(content):
    with zipfile.ZipFile(file := io.BytesIO(), "w") as archive:
        archive.writestr("a", content)
    return file.getvalue()


COMPRESS = {"gz": lambda content: gzip.compress(content, mtime=0), "zst": zstd, "xz": lzma.compress}


def write_file(tmp_path, content, name="text"):
    path = tmp_path / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a\nb", ["a", "b"]),
        (b"a\n\nb\n\n", ["a", "", "b", ""]),
        (b"a\r\nb\r\r\nc\r", ["a", "b\r", "c"]),
        (b"a\rb\n", ["a\rb"]),
        (b"a\n\r", ["a", ""]),
        (b"\xef\xbb\xbf", [""]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        ("a\u2028b\u0085c\x0b\x0c\x1c\x1d\x1e\x00d\n".encode(), ["a\u2028b\u0085c\x0b\x0c\x1c\x1d\x1e\x00d"]),
        (f"first\n{'äx' * 2_000_000}\nlast\n".encode(), ["first", "äx" * 2_000_000, "last"]),
    ],
)
def test_only_line_feeds_end_lines_and_counts_equal_wc(tmp_path, content, lines):
    for path in (write_file(tmp_path, content), write_file(tmp_path, gzip.compress(content), "text.gz")):
        assert list(read_lines(path)) == lines
        assert (
            count_lines(path) == len(lines) == content.count(b"\n") + (not content.endswith(b"\n") and content != b"")
        )


def test_bom_and_crlf_are_counted_and_long_lines_are_cut_between_characters(tmp_path):
    notes = Counter()
    path = write_file(tmp_path, f"\ufeffa\r\n{'äx' * 90_000}\r\nlast".encode())
    for longest in range(1000, 1004):
        first, cut, last = text_lines(path, longest, notes)
        assert (first, last) == (b"a", b"last") and longest - 4 < len(cut) <= longest
        assert ("äx" * 90_000).startswith(cut.decode())
    assert notes == {"bom": 4, "crlf": 8}


def test_written_lines_read_back_equal_and_a_failed_write_keeps_the_old_file(tmp_path):
    lines = [line for line in AWKWARD if not line.startswith("\ufeff")]
    write_lines(tmp_path / "out", lines)

    def failing_lines():
        yield "new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_lines(tmp_path / "out", failing_lines())
    assert list(read_lines(tmp_path / "out")) == lines
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_files_are_read_under_any_name_and_with_many_members(tmp_path, suffix):
    for name in (f"text.{suffix}", "text", "text.zst"):
        for cut in (0, 1, len(TEXT) // 2):
            members = (TEXT[:cut], TEXT[cut:], b"", b"last")
            path = write_file(tmp_path, b"".join(map(COMPRESS[suffix], members)), name)
            assert list(read_lines(path)) == [*LINES, "last"] and count_lines(path) == len(LINES) + 1


def test_skippable_frames_of_pzstd_are_skipped(tmp_path):
    frame = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"
    assert list(read_lines(write_file(tmp_path, frame + zstd(TEXT) + frame + zstd(b"last\n")))) == [*LINES, "last"]


def test_xz_stream_padding_is_skipped_and_other_bytes_are_refused(tmp_path):
    padded = lzma.compress(TEXT) + bytes(400_000) + lzma.compress(b"last\n") + bytes(8)
    with open_text(write_file(tmp_path, padded)) as file:
        assert file.read() == TEXT + b"last\n"
    for damage in (b"garbage" + lzma.compress(b"last\n"), lzma.compress(b"last\n")[:-9]):
        path = write_file(tmp_path, lzma.compress(TEXT) + damage, "text.xz")
        with pytest.raises(DataError, match=r"text\.xz: damaged compressed file \("), open_text(path) as file:
            file.read()


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: data[:12],
        lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 255]) + data[len(data) // 2 + 1 :],
        lambda data: data + data[:20],
    ],
    ids=["last byte", "half", "head", "flipped", "second cut"],
)
def test_damaged_compressed_files_are_refused_by_name(tmp_path, suffix, damage):
    path = write_file(tmp_path, damage(COMPRESS[suffix](TEXT)), f"text.{suffix}")
    for read in (count_lines, lambda path: list(read_lines(path))):
        with pytest.raises(DataError, match=rf"text\.{suffix}: damaged compressed file \("):
            read(path)


@pytest.mark.parametrize(
    ("content", "name", "expected"),
    [
        ("Hallo\n".encode("utf-16"), "text", "looks like UTF-16"),
        ("Hallo Welt\n".encode("utf-16-le"), "text", "looks like UTF-16"),
        (gzip.compress("Hallo\n".encode("utf-16"), mtime=0), "text.gz", "looks like UTF-16"),
        (b"<html>404</html>", "text.gz", r"named \.gz but not compressed"),
        (bz2.compress(TEXT), "text", "compressed by bzip2, which is not supported"),
        (zipped(TEXT), "text", "compressed by zip, which is not supported"),
        (b"eins\rzwei\r", "text", "carriage returns only"),
        (b"good\nf\xfcr\nlast\n", "text", r"2: invalid UTF-8 at byte 2 \(0xFC\). Convert the file to UTF-8\.$"),
    ],
    # Explicit ids: compressed bytes would be unreadable ones.
    ids=["utf-16", "utf-16-le", "gzip of utf-16", "page", "bzip2", "zip", "cr", "latin-1"],
)
def test_files_that_are_not_utf8_text_are_refused_by_name(tmp_path, content, name, expected):
    path = write_file(tmp_path, content, name)
    with pytest.raises(DataError, match=f"{name}:.*{expected}"):
        list(read_lines(path))


def test_missing_files_folders_and_pipes_are_refused_by_name(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, expected in (("none", "No such file"), ("", "Is a directory"), ("pipe", "a pipe or device")):
        for read in (count_lines, check_text):
            with pytest.raises(DataError, match=expected):
                read(tmp_path / name)


def test_a_stream_yields_every_line_even_with_invalid_bytes():
    notes = Counter()
    lines = read_stream(io.BytesIO(b"\xef\xbb\xbfa\r\n\xff\n\nno end"), "it", notes)
    assert [raw for raw, _ in lines] == [b"a", b"\xff", b"", b"no end"] and notes == {"bom": 1, "crlf": 1}
    binary = io.BufferedReader(io.BytesIO(b"Hi" + bytes(8) + b"\nEin Hund.\n"))
    assert [raw for raw, _ in read_stream(binary, "<stdin>")] == [b"Hi" + bytes(8), b"Ein Hund."]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_a_utf16_or_utf32_stream_is_refused_by_name(encoding):
    with pytest.raises(DataError, match="<stdin>: looks like UTF-16"):
        list(read_stream(io.BufferedReader(io.BytesIO("Hallo Welt\n".encode(encoding))), "<stdin>"))


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"], ids=["plain", "marked"])
def test_only_the_beginning_of_an_overlong_line_is_kept(monkeypatch, bom):
    monkeypatch.setattr("nmt.data.lines.LONGEST_LINE", 2_000)
    monkeypatch.setattr("nmt.data.lines._CHUNK", 100)
    for n in range(1_990, 2_320, 3):
        lines = [b"ab", b"x" * n, "ü".encode() * (n // 2), b"abc " * (n // 4), b"", "日".encode() * n, b"\xff" * n]
        found = list(read_stream(io.BytesIO(bom + b"\n".join(lines)), "it"))
        assert [is_cut for _, is_cut in found] == [len(line) > 2_000 for line in lines]
        assert all(line.startswith(raw) and len(raw) <= 2_000 for (raw, _), line in zip(found, lines, strict=True))
        assert all(not is_cut or len(raw) >= 1_990 for raw, is_cut in found)
        assert all(raw.decode() for raw, _ in found[:-1] if raw)
