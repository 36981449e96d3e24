"""Bytes in, lines out: plain text and compressed, whole or refused by name."""

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
    decode_line,
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


WAYS = {"gz": lambda content: gzip.compress(content, mtime=0), "zst": zstd, "xz": lzma.compress}


def made(tmp_path, content, name="text"):
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
def test_only_a_line_feed_ends_a_line_and_counts_are_those_of_wc(tmp_path, content, lines):
    for path in (made(tmp_path, content), made(tmp_path, gzip.compress(content), "text.gz")):
        assert list(read_lines(path)) == lines
        assert (
            count_lines(path) == len(lines) == content.count(b"\n") + (not content.endswith(b"\n") and content != b"")
        )


def test_what_is_odd_is_counted_and_long_lines_are_cut_between_characters(tmp_path):
    notes = Counter()
    path = made(tmp_path, f"\ufeffa\r\n{'äx' * 90_000}\r\nlast".encode())
    for longest in range(1000, 1004):
        first, cut, last = text_lines(path, longest, notes)
        assert (first, last) == (b"a", b"last") and longest - 4 < len(cut) <= longest
        assert ("äx" * 90_000).startswith(cut.decode())
    assert notes == {"bom": 4, "crlf": 8}


def test_written_lines_come_back_and_a_write_that_fails_leaves_the_old_file(tmp_path):
    lines = [line for line in AWKWARD if not line.startswith("\ufeff")]
    write_lines(tmp_path / "out", lines)

    def broken():
        yield "new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_lines(tmp_path / "out", broken())
    assert list(read_lines(tmp_path / "out")) == lines
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("ending", WAYS)
def test_a_compressed_file_is_the_text_in_it_whatever_its_name_and_however_many_members_it_has(tmp_path, ending):
    for name in (f"text.{ending}", "text"):
        for cut in (0, 1, len(TEXT) // 2):
            members = (TEXT[:cut], TEXT[cut:], b"", b"last")
            path = made(tmp_path, b"".join(map(WAYS[ending], members)), name)
            assert list(read_lines(path)) == [*LINES, "last"] and count_lines(path) == len(LINES) + 1


def test_frames_that_pzstd_writes_before_its_own_are_skipped(tmp_path):
    skipped = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"
    assert list(read_lines(made(tmp_path, skipped + zstd(TEXT) + skipped + zstd(b"last\n")))) == [*LINES, "last"]


def test_zeros_between_streams_of_xz_are_skipped_and_anything_else_there_is_refused(tmp_path):
    padded = lzma.compress(TEXT) + bytes(400_000) + lzma.compress(b"last\n") + bytes(8)
    with open_text(made(tmp_path, padded)) as file:
        assert file.read() == TEXT + b"last\n"
    for damage in (b"garbage" + lzma.compress(b"last\n"), lzma.compress(b"last\n")[:-9]):
        path = made(tmp_path, lzma.compress(TEXT) + damage, "text.xz")
        with pytest.raises(DataError, match=r"text\.xz: damaged compressed file \("), open_text(path) as file:
            file.read()


@pytest.mark.parametrize("ending", WAYS)
@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[:-1],
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:12],
        lambda whole: whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 255]) + whole[len(whole) // 2 + 1 :],
        lambda whole: whole + whole[:20],
    ],
    ids=["last byte", "half", "head", "flipped", "second cut"],
)
def test_damage_is_refused_by_name(tmp_path, ending, damage):
    path = made(tmp_path, damage(WAYS[ending](TEXT)), f"text.{ending}")
    for read in (count_lines, lambda path: list(read_lines(path))):
        with pytest.raises(DataError, match=rf"text\.{ending}: damaged compressed file \("):
            read(path)


@pytest.mark.parametrize(
    ("content", "name", "expected"),
    [
        ("Hallo\n".encode("utf-16"), "text", "looks like UTF-16"),
        ("Hallo Welt\n".encode("utf-16-le"), "text", "looks like UTF-16"),
        (gzip.compress("Hallo\n".encode("utf-16"), mtime=0), "text.gz", "looks like UTF-16"),
        (b"<html>404</html>", "text.gz", r"named \.gz but not compressed by gzip"),
        (lzma.compress(TEXT), "text.zst", r"named \.zst but compressed by xz"),
        (bz2.compress(TEXT), "text", "compressed by bzip2, which is not supported"),
        (zipped(TEXT), "text", "compressed by zip, which is not supported"),
        (b"eins\rzwei\r", "text", "carriage returns only"),
        (b"good\nf\xfcr\nlast\n", "text", r"2: invalid UTF-8 at byte 2 \(0xFC\). Convert the file to UTF-8\.$"),
    ],
    # Named, since compressed bytes make no good names.
    ids=["utf-16", "utf-16-le", "gzip of utf-16", "page", "xz named zst", "bzip2", "zip", "cr", "latin-1"],
)
def test_files_that_are_no_text_are_refused_by_name(tmp_path, content, name, expected):
    path = made(tmp_path, content, name)
    with pytest.raises(DataError, match=f"{name}:.*{expected}"):
        list(read_lines(path))


def test_missing_files_folders_and_pipes_are_refused_by_name(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, expected in (("none", "no such file"), ("", "is a folder"), ("pipe", "a pipe or device")):
        for read in (count_lines, check_text):
            with pytest.raises(DataError, match=expected):
                read(tmp_path / name)


def test_every_line_of_a_stream_is_answered_whatever_its_bytes():
    notes = Counter()
    lines = read_stream(io.BytesIO(b"\xef\xbb\xbfa\r\n\xff\n\nno end"), "it", notes)
    expected = [("a", True), ("\ufffd", False), ("", True), ("no end", True)]
    assert [decode_line(line.raw) for line in lines] == expected and notes == {"bom": 1, "crlf": 1}
    binary = io.BufferedReader(io.BytesIO(b"Hi" + bytes(8) + b"\nEin Hund.\n"))
    assert [line.raw for line in read_stream(binary, "<stdin>")] == [b"Hi" + bytes(8), b"Ein Hund."]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_a_stream_of_wide_text_is_refused_by_name(encoding):
    with pytest.raises(DataError, match="<stdin>: looks like UTF-16"):
        list(read_stream(io.BufferedReader(io.BytesIO("Hallo Welt\n".encode(encoding))), "<stdin>"))


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "marked"])
def test_of_a_line_that_is_too_long_the_beginning_is_read_and_the_rest_forgotten(monkeypatch, mark):
    monkeypatch.setattr("nmt.data.lines.LONGEST_LINE", 2_000)
    monkeypatch.setattr("nmt.data.lines._CHUNK", 100)
    for n in range(1_990, 2_320, 3):
        lines = [b"ab", b"x" * n, "ü".encode() * (n // 2), b"abc " * (n // 4), b"", "日".encode() * n, b"\xff" * n]
        found = list(read_stream(io.BytesIO(mark + b"\n".join(lines)), "it"))
        assert [one.n_byte for one in found] == list(map(len, lines))
        assert all(line.startswith(one.raw) and len(one.raw) <= 2_000 for one, line in zip(found, lines, strict=True))
        assert [one.is_cut for one in found] == [len(line) > 2_000 for line in lines]
        assert all(not one.is_cut or len(one.raw) >= 1_990 for one in found)
        assert all(decode_line(one.raw)[1] for one in found[:-1])
        assert not found[3].is_cut or found[3].raw.endswith(b"abc")
