"""Bytes in, lines out."""

import gzip
import io
from collections import Counter

import pytest

from nmt.data.lines import count_lines, decode_line, read_lines, read_stream, write_lines
from nmt.errors import DataError
from tests.data.awkward import AWKWARD


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
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        ("a\u2028b\u0085c\x0b\x0c\x1c\x1d\x1e\x00d\n".encode(), ["a\u2028b\u0085c\x0b\x0c\x1c\x1d\x1e\x00d"]),
    ],
)
def test_only_a_line_feed_ends_a_line_and_counts_are_those_of_wc(tmp_path, content, lines):
    for path in (made(tmp_path, content), made(tmp_path, gzip.compress(content), "text.gz")):
        assert list(read_lines(path)) == lines
        assert (
            count_lines(path) == len(lines) == content.count(b"\n") + (not content.endswith(b"\n") and content != b"")
        )


def test_a_line_longer_than_the_reading_buffer_stays_one_line(tmp_path):
    long = "äx" * 2_000_000
    path = made(tmp_path, f"first\n{long}\nlast\n".encode())
    assert list(read_lines(path)) == ["first", long, "last"]
    first, cut, last = read_lines(path, longest=1000)
    assert (first, last) == ("first", "last")
    assert long.startswith(cut) and 1000 - 4 < len(cut.encode()) <= 1000


def test_written_lines_come_back(tmp_path):
    lines = [line for line in AWKWARD if not line.startswith("\ufeff")]
    write_lines(tmp_path / "out", lines)
    assert list(read_lines(tmp_path / "out")) == lines
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path):
    def lines():
        yield "new"
        raise KeyboardInterrupt

    write_lines(tmp_path / "out", ["old"])
    with pytest.raises(KeyboardInterrupt):
        write_lines(tmp_path / "out", lines())
    assert list(read_lines(tmp_path / "out")) == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_bad_utf8_is_refused_with_its_place_or_dropped(tmp_path):
    path = made(tmp_path, b"good\nf\xfcr\nlast\n")
    with pytest.raises(DataError, match=r"text:2: invalid UTF-8 at byte 2 .*0xFC"):
        list(read_lines(path, bad_utf8="refuse"))
    assert list(read_lines(path, bad_utf8="drop")) == ["good", None, "last"]


def test_what_can_be_dropped_is_advised_to_those_alone_who_have_the_option(tmp_path):
    path = made(tmp_path, b"f\xfcr\n")
    with pytest.raises(DataError, match=r"dropped instead: data\.bad_utf8: drop\.$"):
        list(read_lines(path, bad_utf8="refuse"))
    with pytest.raises(DataError, match=r"Convert the file to UTF-8\.$"):
        list(read_lines(path))


@pytest.mark.parametrize(
    ("content", "name", "expected"),
    [
        ("Hallo\n".encode("utf-16"), "text", "UTF-16"),
        ("Hallo Welt\n".encode("utf-16-le"), "text", "UTF-16"),
        (gzip.compress("Hallo\n".encode("utf-16"), mtime=0), "text.gz", "UTF-16"),
        (b"<html>404</html>", "text.gz", "not compressed by gzip"),
        (gzip.compress(bytes(range(65, 91)) * 999, mtime=0)[:-20], "text.gz", "damaged gzip"),
    ],
    # Named, since the bytes of a gzip file hold its time and no two workers would agree on a name.
    ids=["utf-16", "utf-16-le", "gzip of utf-16", "page named gz", "cut gzip"],
)
def test_files_that_are_no_text_are_refused_by_name(tmp_path, content, name, expected):
    path = made(tmp_path, content, name)
    with pytest.raises(DataError, match=expected) as error:
        list(read_lines(path))
    assert str(path) in str(error.value)


def test_missing_files_and_folders_are_refused_by_name(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        list(read_lines(tmp_path / "none"))
    with pytest.raises(DataError, match="is a folder"):
        count_lines(tmp_path)


def test_oddities_are_counted(tmp_path):
    notes: Counter[str] = Counter()
    list(read_lines(made(tmp_path, b"\xef\xbb\xbfa\r\nb\nc\r\n"), notes=notes))
    assert notes == {"bom": 1, "crlf": 2}


def test_every_line_of_a_stream_is_answered_whatever_its_bytes():
    stream = io.BytesIO(b"\xef\xbb\xbfa\r\n\xff\n\nno end")
    notes: Counter[str] = Counter()
    assert [decode_line(line.raw) for line in read_stream(stream, "it", notes)] == [
        ("a", True),
        ("\ufffd", False),
        ("", True),
        ("no end", True),
    ]
    assert notes == {"bom": 1, "crlf": 1}


@pytest.mark.parametrize("wrap", [bytes, lambda raw: b"\xef\xbb\xbf" + raw], ids=["plain", "marked"])
def test_of_a_line_that_is_too_long_the_beginning_is_read_and_the_rest_forgotten(monkeypatch, wrap):
    monkeypatch.setattr("nmt.data.lines.LONGEST_LINE", 2_000)
    monkeypatch.setattr("nmt.data.lines._CHUNK", 100)
    for n in range(1_990, 2_320):
        lines = [b"ab", b"x" * n, "ü".encode() * (n // 2), b"abc " * (n // 4), b"", "日".encode() * n, b"\xff" * n]
        found = list(read_stream(io.BytesIO(wrap(b"\n".join(lines))), "it"))
        assert [one.n_byte for one in found] == list(map(len, lines))
        assert all(line.startswith(one.raw) and len(one.raw) <= 2_000 for one, line in zip(found, lines, strict=True))
        assert [one.is_cut for one in found] == [len(line) > 2_000 for line in lines]
        assert all(not one.is_cut or len(one.raw) >= 1_990 for one in found)
        assert all(decode_line(one.raw)[1] for one in found[:-1])
        assert not found[3].raw or found[3].raw[-2:] in (b"bc", b"c ")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_a_stream_of_wide_text_is_refused_by_name(encoding):
    with pytest.raises(DataError, match="<stdin>: looks like UTF-16"):
        list(read_stream(io.BufferedReader(io.BytesIO("Hallo Welt\n".encode(encoding))), "<stdin>"))


def test_a_stream_that_begins_with_a_few_bytes_that_are_no_text_is_read():
    lines = list(read_stream(io.BufferedReader(io.BytesIO(b"Hi" + bytes(8) + b"\nEin Hund.\n")), "<stdin>"))
    assert [one.raw for one in lines] == [b"Hi" + bytes(8), b"Ein Hund."]
