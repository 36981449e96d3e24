"""gzip, zstd and xz: read as the text that is in them, whole or refused."""

import gzip
import lzma
import random

import pyarrow as pa
import pytest

from nmt.data.lines import count_lines, kind_of, opened, read_lines
from nmt.errors import DataError

LINES = [f"Zeile {n}, über {'so' * (n % 50)}" for n in range(3000)]
TEXT = "".join(line + "\n" for line in LINES).encode()
# What pzstd writes before each of its frames.
SKIPPED = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"


def zstd(content):
    return pa.Codec("zstd").compress(content, asbytes=True)


WAYS = {"gz": lambda content: gzip.compress(content, mtime=0), "zst": zstd, "xz": lzma.compress}


@pytest.mark.parametrize("ending", WAYS)
def test_a_compressed_file_is_the_text_in_it_whatever_its_name(tmp_path, ending):
    for name in (f"text.{ending}", "text"):
        (tmp_path / name).write_bytes(WAYS[ending](TEXT))
        assert list(read_lines(tmp_path / name)) == LINES
        assert count_lines(tmp_path / name) == len(LINES)


@pytest.mark.parametrize("ending", WAYS)
@pytest.mark.parametrize("cut", [0, 1, 5, len(TEXT) // 2, len(TEXT)])
def test_several_members_one_after_another_are_one_text(tmp_path, ending, cut):
    path = tmp_path / f"text.{ending}"
    path.write_bytes(b"".join(map(WAYS[ending], (TEXT[:cut], TEXT[cut:], b"", b"last"))))
    assert list(read_lines(path)) == [*LINES, "last"]


def test_zeros_between_streams_of_xz_and_what_pzstd_writes_are_skipped(tmp_path):
    padded = lzma.compress(TEXT) + bytes(400_000) + lzma.compress(b"last\n") + bytes(8)
    skipping = SKIPPED + zstd(TEXT) + SKIPPED + zstd(b"last\n")
    for content in (padded, skipping):
        (tmp_path / "text").write_bytes(content)
        assert list(read_lines(tmp_path / "text")) == [*LINES, "last"]


@pytest.mark.parametrize("ending", WAYS)
@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[:-1],
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:12],
        lambda whole: whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 255]) + whole[len(whole) // 2 + 1 :],
        lambda whole: whole + whole[:20],
        lambda whole: whole + b"garbage that follows",
    ],
    ids=["last byte", "half", "head", "flipped", "second cut", "garbage"],
)
def test_damage_is_refused_by_name_and_kind(tmp_path, ending, damage):
    path = tmp_path / f"text.{ending}"
    path.write_bytes(damage(WAYS[ending](TEXT)))
    for read in (count_lines, lambda path: list(read_lines(path))):
        with pytest.raises(DataError, match=rf"text\.{ending}: damaged (gzip|zstd|xz) file \("):
            read(path)


@pytest.mark.parametrize("ending", WAYS)
def test_a_name_that_promises_what_is_not_there_is_refused(tmp_path, ending):
    path = tmp_path / f"text.{ending}"
    path.write_bytes(b"<html>404</html>")
    with pytest.raises(DataError, match=f"named .{ending} but not compressed by"):
        list(read_lines(path))
    other = "gz" if ending != "gz" else "xz"
    path.write_bytes(WAYS[other](TEXT))
    with pytest.raises(DataError, match=f"named .{ending} but compressed by {kind_of(path.read_bytes())}"):
        list(read_lines(path))


def test_xz_that_asks_for_more_memory_than_any_text_needs_is_refused(tmp_path):
    greedy = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 29}]
    content = b"x" * (1 << 16)  # so little that the memory is asked for, and never used
    (tmp_path / "text.xz").write_bytes(lzma.compress(content, filters=greedy))
    with pytest.raises(DataError, match=r"damaged xz file .*emory"):
        list(read_lines(tmp_path / "text.xz"))


@pytest.mark.parametrize("ending", WAYS)
def test_a_file_is_read_as_a_stream(tmp_path, ending):
    content = random.Random(1).randbytes(3_000_000)  # which nothing makes smaller
    (tmp_path / "noise").write_bytes(WAYS[ending](content))
    with opened(tmp_path / "noise") as file:
        below = file.raw._below
        assert file.read(1000) == content[:1000] and below.tell() < 1_000_000
        assert file.read() == content[1000:]
    assert below.closed
