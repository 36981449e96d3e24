"""Tables of a few kilobytes that unpack to gigabytes are refused by name, before they are unpacked."""

import random
import re
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nmt.cli.preprocess import main
from nmt.data.reading import tables, unpacking
from nmt.data.reading.fields import Reading
from nmt.data.reading.tables import count_rows, read_rows
from nmt.errors import DataError

MB = 1 << 20
LINES = {"de": ["ein Hund", "zwei Hunde", None, "x" * 5000] * 700, "en": ["a dog", "two dogs", "y" * 3000, ""] * 700}


@pytest.fixture
def small(monkeypatch):
    """Bounds that a test can go over in no time."""
    for name, value in (("MOST_OF_PAGE", MB), ("MOST_OF_BATCH", MB), ("FREE_ROWS", 1 << 15), ("FREE_BYTES", 20 * MB)):
        monkeypatch.setattr(unpacking, name, value)
    monkeypatch.setattr(tables, "_AT_ONCE", 2 * MB)


def peak():
    """Bytes of memory that this process had at most since `forget_peak`."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1])


def forget_peak():
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def repeated(text, n):
    """A column that has one text n times, and holds it once."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), pa.array([text]))


def views(text, n):
    """The same, of views."""
    each = np.array([len(text), 0, 0, 0], np.int32)
    each[1:2].view("S4")[0] = text[:4].encode()
    buffers = [None, pa.py_buffer(np.tile(each, n)), pa.py_buffer(text.encode())]
    return pa.Array.from_buffers(pa.string_view(), n, buffers)


def pair(src, trg=None):
    return pa.table({"de": src, "en": pa.array(["b"] * len(src)) if trg is None else trg})


def parquet(path, table, **how):
    pq.write_table(table, path, **{"compression": "zstd", "use_dictionary": False} | how)


def arrow(path, table, *, stream=False, compression="zstd", **how):
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with (
        path.open("wb") as file,
        (pa.ipc.new_stream if stream else pa.ipc.new_file)(file, table.schema, options=options) as writer,
    ):
        writer.write_table(table, **how)


def read(path):
    reading = Reading("refuse", "drop", 100)
    assert count_rows(path) >= 0
    return list(read_rows(path, ("de", "en"), reading))


BOMBS = {
    "one cell": (parquet, lambda: pair(["a" * 30 * MB]), {}, "a page of the column 'de' in row group 1 unpacks to 31,"),
    "many cells": (parquet, lambda: pair(["a" * 2 * MB] * 9), {}, "a page of the column 'de' in row group 1"),
    "one word for all": (
        parquet,
        lambda: pair(repeated("a" * MB, 20_000)),
        {"use_dictionary": True, "dictionary_pagesize_limit": 1 << 30},
        "a page of the column 'de'",
    ),
    "a shorter word for all": (
        parquet,
        lambda: pair(repeated("a" * (MB // 2), 20_000)),
        {"use_dictionary": True, "store_schema": False},  # or it comes back as a dictionary
        "unpack to texts of over",
    ),
    "rows": (
        parquet,
        lambda: pair(repeated("", 100_000), repeated("", 100_000)),
        {"use_dictionary": True},
        "100,000 rows in",
    ),
    "one cell, Arrow": (arrow, lambda: pair(["a" * 30 * MB]), {}, "a record batch (message 1) of 31,"),
    "one cell, stream": (arrow, lambda: pair(["a" * 30 * MB]), {"stream": True}, "a record batch (message 2) of 31,"),
    "rows, Arrow": (arrow, lambda: pair([""] * 40_000, [""] * 40_000), {"max_chunksize": 20_000}, "40,000 rows in"),
    "rows, stream": (
        arrow,
        lambda: pair([""] * 40_000, [""] * 40_000),
        {"max_chunksize": 20_000, "stream": True},
        "40,000 rows in",
    ),
    "a dictionary": (arrow, lambda: pair(repeated("a" * 30 * MB, 9)), {}, "dictionaries (message 1) of 31,"),
    "two dictionaries": (
        arrow,
        lambda: pair(repeated("a" * (MB * 2 // 3), 9), repeated("b" * (MB * 2 // 3), 9)),
        {"stream": True},
        "dictionaries (message 3) of 1,398,",
    ),
    "one word for all, Arrow": (
        arrow,
        lambda: pair(repeated("a" * (MB // 2), 20_000)),
        {"max_chunksize": 2_000},
        "unpack to texts of over",
    ),
    "views": (arrow, lambda: pair(views("a" * (MB // 2), 20_000)), {"max_chunksize": 2_000}, "unpack to texts of over"),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.skipif(sys.platform != "linux", reason="needs to know its memory")
def test_a_bomb_is_refused_by_name_before_it_goes_off(tmp_path, small, name):
    write, make, how, expected = BOMBS[name]
    path = tmp_path / "bomb"
    write(path, make(), **how)
    pa.default_memory_pool().release_unused()
    forget_peak()
    before = peak()
    with pytest.raises(DataError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}: ") and expected in str(error.value)
    assert peak() - before < 20 * MB


def test_a_cell_that_is_larger_than_any_is_refused_by_the_command(tmp_path, monkeypatch, capsys):
    """With the bounds as they are."""
    monkeypatch.chdir(tmp_path)
    parquet(tmp_path / "a.parquet", pair(["a" * 129 * MB]), write_statistics=False)
    assert (tmp_path / "a.parquet").stat().st_size < 20_000
    corpus = '{"file": "a.parquet", "src_column": "de", "trg_column": "en"}'
    flags = ["--name", "a", "--data.train", corpus, "--data.valid", corpus, "--data.out", "out"]
    (tmp_path / "recipe.yaml").write_text("name: a\ndata: {src_lang: de, trg_lang: en}\n", encoding="utf-8")
    assert main(["recipe.yaml", *flags]) == 2
    said = capsys.readouterr().err
    assert (
        "nmt-preprocess: error: " in said and "a.parquet: a page of the column 'de' in row group 1 unpacks to" in said
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "recipe.yaml"]


HONEST = [
    (parquet, {"compression": compression, "use_dictionary": words, "data_page_version": version, **pages})
    for compression in ("none", "zstd", "snappy", "gzip")
    for words in (True, False)
    for version, pages in (("1.0", {"row_group_size": 300}), ("2.0", {"data_page_size": 1000}))
] + [
    (arrow, {"compression": compression, "stream": stream, "max_chunksize": size})
    for compression in (None, "zstd", "lz4")
    for stream in (True, False)
    for size in (300, 10_000)
]


@pytest.mark.parametrize(("write", "how"), HONEST)
def test_a_table_of_text_is_read_whatever_wrote_it(tmp_path, write, how, monkeypatch):
    monkeypatch.setattr(unpacking, "MOST_OF_PAGE", 12 * MB)
    monkeypatch.setattr(unpacking, "MOST_OF_BATCH", 12 * MB)
    path = tmp_path / "table"
    write(path, pa.table(LINES), **how)
    assert count_rows(path) == 2800
    found = read(path)
    plain = tmp_path / "plain"
    arrow(plain, pa.table(LINES), compression=None)
    assert found == read(plain) and len(found) == 2800


def test_views_are_read_wherever_they_begin(tmp_path):
    both, plain = pa.table(LINES), tmp_path / "plain"
    arrow(plain, both, compression=None)
    of_views = both.cast(pa.schema([(name, pa.string_view()) for name in both.column_names]))
    arrow(tmp_path / "views", of_views, compression=None, max_chunksize=700)
    assert read(tmp_path / "views") == read(plain)


def test_dictionaries_that_take_the_place_of_others_are_not_added_up(tmp_path, small):
    path = tmp_path / "stream"
    batches = [pair(repeated(letter * (MB * 2 // 3), 5)).to_batches()[0] for letter in "abcd"]
    with path.open("wb") as file:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(file, batches[0].schema, options=options) as writer:
            for batch in batches:
                writer.write_batch(batch)
    assert len(read(path)) == 20


@pytest.mark.parametrize(
    ("write", "how"), [(parquet, {"use_dictionary": True}), (arrow, {}), (arrow, {"stream": True})]
)
def test_headers_with_wrong_bytes_are_answered_in_words(tmp_path, write, how):
    path, draw = tmp_path / "table", random.Random(1)
    write(path, pa.table({name: column[:40] for name, column in LINES.items()}), **how)
    whole = path.read_bytes()
    metadata = pq.read_metadata(path) if write is parquet else None
    n_refused = 0
    for _ in range(200):
        content = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            content[draw.randrange(8, len(content))] = draw.choice((0, 1, 127, 255, draw.randrange(256)))
        path.write_bytes(content)
        try:
            if metadata:
                unpacking.largest_page(path, metadata, ["de", "en"])
            else:
                with pa.memory_map(str(path)) as mapped:
                    (unpacking.n_row_of_stream if how else unpacking.n_row_of_file)(path, mapped)
        except (DataError, pa.ArrowException, OSError):  # as `nmt/data/reading/tables.py` expects them
            n_refused += 1
    assert n_refused > 2
