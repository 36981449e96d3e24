"""Bad records and unreadable files: refused with their place, or dropped and counted."""

import os
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pytest

from nmt.data import keep
from nmt.data import prepare as preparing
from nmt.errors import DataError

TABS = {"src_column": 1, "trg_column": 2}
KEYS = {"src_column": "de", "trg_column": "en"}
GOOD = {"de": "ein Hund", "en": "a dog"}
TMX = (
    '<tmx><body><tu><tuv xml:lang="de"><seg>ein Hund</seg></tuv><tuv xml:lang="en-GB"><seg>a dog</seg></tuv></tu>'
    "</body></tmx>"
)
# A text column with invalid UTF-8, which no correct writer produces.
_RAW = pa.array([b"gut", b"f\xfcr"], pa.binary())
NO_UTF8 = pa.table({"de": pa.Array.from_buffers(pa.string(), 2, _RAW.buffers()), "en": ["good", "for"]})


@pytest.mark.parametrize(
    ("name", "content", "columns", "number", "complaint"),
    [
        ("a.tsv", "ein Hund\ta dog\nein Hund\n", TABS, 2, "1 columns, but the first record has 2"),
        ("a.tsv", "ein Hund\ta dog\nein\tHund\ta dog\n", TABS, 2, "3 columns, but the first record has 2"),
        ("a.tsv", "de\ten\nein Hund\ta dog\n\n", KEYS, 3, "1 columns, but the first record has 2"),
        ("a.csv", "de,en\nein Hund,a dog\n\nx,y,z\n", KEYS, 3, "3 columns, but the first record has 2"),
        ("a.jsonl", [GOOD, {"de": 5, "en": "x"}], KEYS, 2, "under the key 'de', found a number"),
        ("a.jsonl", [GOOD, {"de": "x", "en": None}], KEYS, 2, "under the key 'en', found null"),
        ("a.jsonl", [GOOD, {"de": "x", "en": ["y"]}], KEYS, 2, "under the key 'en', found a list"),
        ("a.jsonl", [GOOD, {"de": "x", "fr": "y"}], KEYS, 2, "no key 'en'; there are 'de', 'fr'"),
        ("a.jsonl", [GOOD, '{"de": "x", "en'], KEYS, 2, "not JSON"),
        ("a.jsonl", [GOOD, "[" * 100_000], KEYS, 2, "not JSON"),
        ("a.jsonl", [GOOD, '{"de": 1' + "0" * 5000 + ', "en": "x"}'], KEYS, 2, "under the key 'de', found a number"),
        ("a.jsonl", [GOOD, " "], KEYS, 2, "not JSON"),
        ("a.jsonl", [GOOD, ["x", "y"]], KEYS, 2, "a list instead of a JSON object"),
        ("a.jsonl", [GOOD, '{"de": "\\ud800", "en": "x"}'], KEYS, 2, "half a surrogate pair"),
        ("a.parquet", [GOOD, {"de": None, "en": "x"}], KEYS, 2, "null in the column 'de'"),
        ("a.arrow", [GOOD, {"de": "x", "en": None}], KEYS, 2, "null in the column 'en'"),
        ("a.tsv", b"gut\tgood\nf\xfcr\tfor\n", TABS, 2, "invalid UTF-8 at byte 2 (0xFC)"),
        ("a.jsonl", b'{"de": "gut", "en": "good"}\n{"de": "f\xfcr", "en": "for"}\n', KEYS, 2, "invalid UTF-8 at byte "),
        *((name, NO_UTF8, KEYS, 2, "invalid UTF-8 at byte 2 (0xFC)") for name in ("a.parquet", "a.arrow")),
    ],
)
def test_a_bad_record_is_refused_with_its_place_or_dropped_and_counted(at, name, content, columns, number, complaint):
    corpus = {"file": at.write(name, content), **columns}
    option, reason = ("bad_utf8", "bad UTF-8") if "UTF-8" in complaint else ("bad_records", "bad record")
    at.refused(corpus, f"{name}:{number}: ", complaint, f"data.{option}: drop")
    report = at.prepare(corpus, **{option: "drop"})
    assert report.dropped == {reason: {"count": 1, "first": [f"{name}:{number}"]}}
    assert (report.read, report.kept) == (2, 1)
    with pytest.raises(DataError, match=f"{name}:{number}: "):  # validation pairs are never dropped
        at.prepare({"src": "v.de", "trg": "v.en"}, valid=corpus, **{option: "drop"})


def test_other_keys_of_a_json_line_are_ignored(at):
    other_keys = ('{"n": 1' + "0" * 5000 + ", ", '{"id": "de", "also": {"de": 1, "en": 2}, ', '{"n": 1, "n": 2, ')
    at.write("a.jsonl", "".join(f'{start}"de": "Hund {n}", "en": "dog"}}\n' for n, start in enumerate(other_keys)))
    assert at.prepare({"file": "a.jsonl", **KEYS}, valid={"file": "a.jsonl", **KEYS}).read == 3
    assert at.texts()[0] == ["Hund 0", "Hund 1", "Hund 2"]


def test_text_has_no_header(at):
    at.refused({"src": "v.de", "trg": "v.en", "header": True}, "v.de: header is for TSV and CSV, but this is text")


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_line_feeds_inside_a_field_become_spaces(at, name):
    rows = [{"de": "a\r\nb\n\nc", "en": "\nx\n"}, {"de": "\r\n", "en": "c\rd\r"}, {"de": "last", "en": "LAST"}]
    corpus = {"file": at.write(name, rows), **KEYS}
    report = at.prepare(corpus, valid=corpus)
    assert at.texts() == (["a b c", "", "last"], ["x", "c\rd\r", "LAST"])
    assert report.notes["line_feed"] == 6, "three texts, in training and in validation"
    assert set(report.noted["line_feed"]) == {f"{name}:1", f"{name}:2"}
    assert any("6 texts had line feeds inside" in line and f"{name}:1, 1, 2" in line for line in report.said)


def test_line_feeds_are_noted_with_the_file_that_has_them(at):
    at.write("a.jsonl", [GOOD, GOOD])
    at.write("b.jsonl", [GOOD, {"en": "a\ndog"}])
    assert at.prepare({"src": "a.jsonl", "trg": "b.jsonl", **KEYS}).noted["line_feed"] == ["b.jsonl:2"]


@pytest.mark.parametrize(("header", "number"), [(True, 2), (False, 1)])
def test_an_overlong_validation_line_is_refused_with_its_place(at, header, number):
    at.write("long.de", "eins\n")
    at.write("long.tsv", ["en"] * header + ["x" * (1 << 20)])
    valid = {"src": "long.de", "trg": "long.tsv", "trg_column": 1, "header": header}
    at.refused({"src": "v.de", "trg": "v.en"}, f"long.tsv:{number}: a valid line of over 1,048,576 bytes", valid=valid)


@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl", "a.parquet", "a.arrow", "a.de", "a.tsv.zst"])
def test_a_line_of_twenty_megabytes_is_dropped_fast_as_too_long(at, name):
    rows = [GOOD, {"de": "x" * 20_000_000, "en": "x"}, {"de": "y", "en": "x" * 20_000_000}, GOOD]
    corpus = {"file": name, **KEYS}
    if ".tsv" in name:
        corpus = {"file": name, **TABS}
        content = "".join(f"{row['de']}\t{row['en']}\n" for row in rows).encode()
        at.write(name, pa.Codec("zstd").compress(content, asbytes=True) if name.endswith("zst") else content)
    elif name == "a.de":
        corpus = {"src": "a.de", "trg": "a.en"}
        for side in ("de", "en"):
            at.write(f"a.{side}", "".join(row[side] + "\n" for row in rows))
    else:
        at.write(name, rows)
    start = time.process_time()
    report = at.prepare(corpus)
    assert time.process_time() - start < 4
    assert report.dropped == {"too long": {"count": 2, "first": [f"{name}:2", f"{name}:3"]}}


@pytest.mark.parametrize("name", ["late.jsonl", "late.tmx"])
def test_keys_missing_from_the_first_records_are_found(at, name):
    unit = "<tu>{}<tuv xml:lang='en'><seg>a dog {}</seg></tuv></tu>"
    if name.endswith("tmx"):
        units = [unit.format("<tuv xml:lang='de'><seg>ein Hund</seg></tuv>" * (n >= 150), n) for n in range(400)]
        at.write(name, f"<tmx><body>{''.join(units)}</body></tmx>")
    else:
        at.write(name, [{"de": "ein Hund" if n >= 150 else None, "en": f"a dog {n}"} for n in range(400)])
    report = at.prepare({"file": name, **KEYS}, bad_records="drop")
    assert report.kept == 250 and sum(reason["count"] for reason in report.dropped.values()) == 150


@pytest.mark.parametrize(
    ("corpus", "expected"),
    [
        ({"file": "a.tsv", "src_column": 1, "trg_column": 3}, ["a.tsv: expected one column 3", "'ein Hund', 'a dog'"]),
        ({"file": "a.tsv", "src_column": "fr", "trg_column": "b"}, ["expected one column 'fr'", "'ein Hund', 'a dog'"]),
        ({"file": "twice.tsv", **KEYS}, ["expected one column 'de'", "found 'de', 'de', 'en'"]),
        (
            {"file": "v.de", "format": "tsv", **TABS},
            ["v.de: expected one column 2", "'eins zwei'", "Is its format tsv?"],
        ),
        ({"file": "a.csv", "format": "tsv", **KEYS}, ["a.csv: expected one column 'de'", "Is its format tsv?"]),
        ({"file": "a.csv", "src_column": "fr", "trg_column": "en"}, ["expected one column 'fr'", "'de', 'en'"]),
        ({"file": "quote.csv", **KEYS}, ["quote.csv:2: not CSV", "quotes"]),
        ({"file": "a.tmx", "src_column": "fr", "trg_column": "en"}, ["expected one column 'fr'", "'de', 'en-GB'"]),
        ({"file": "cut.tmx", **KEYS}, ["cut.tmx: not TMX, damaged"]),
        ({"file": "bomb.tmx", **KEYS}, ["bomb.tmx: not TMX", "EntitiesForbidden"]),
        ({"file": "japan.tmx", **KEYS}, ["japan.tmx: not TMX, damaged, or with an encoding"]),
        ({"file": "klingon.tmx", **KEYS}, ["klingon.tmx: not TMX, damaged, or with an encoding"]),
        ({"src": "f*r.de", "trg": "v.en"}, ["the file name 'f\\udcfcr.de' is not UTF-8. Rename the file."]),
        ({"file": "a.xlsx"}, ["a.xlsx: is a spreadsheet. Save it as CSV"]),
        ({"file": "a.xlf"}, ["a.xlf: is XLIFF. Make CSV of it"]),
        ({"file": "a.jsonl"}, ["which of its columns are fr and en? There are 'de', 'en'"]),
        ({"file": "v.de", **TABS}, ["the format is text, or not known", "format: tsv"]),
        ({"file": "a.tsv", "format": "text", **TABS}, ["the format is text, or not known from the name"]),
        ({"src": "a.tsv", "trg": "v.en", "format": "tsv"}, ["a.tsv: tsv has columns or keys, and none is chosen"]),
        ({"src": "v.de", "trg": "v.en", "drop_flagged": True}, ["drop_flagged is for JSONL, but this is text"]),
        ({"src": "a.tsv", "trg": "v.en"}, ["a.tsv: tsv has columns or keys, and none is chosen"]),
        ({"src": "a.tsv", "trg": "a.tsv"}, ["none is chosen", "A file with both sides is named once"]),
        ({"file": "a.jsonl", "src_column": "fr", "trg_column": "en"}, ["expected one column 'fr'", "'de', 'en'"]),
        ({"file": "a.jsonl", **TABS}, ["expected one column 1", "'de', 'en'"]),
        ({"file": "list.jsonl", **KEYS}, ["expected one column 'de'", "found none. Is its format jsonl?"]),
        ({"file": "v.de", "format": "jsonl", **KEYS}, ["expected one column 'de'", "Is its format jsonl?"]),
        ({"file": "a.jsonl", "header": True, **KEYS}, ["header is for TSV and CSV, but this is jsonl"]),
        ({"file": "a.tsv", "drop_flagged": True, **TABS}, ["drop_flagged is for JSONL, but this is tsv"]),
        (
            {"file": "a.parquet", "src_column": "n", "trg_column": "en"},
            ["expected one column 'n'", "'t.x', 'de', 'en'"],
        ),
        ({"file": "a.parquet", "src_column": "t", "trg_column": "en"}, ["expected one column 't' of text"]),
        ({"file": "a.parquet", "src_column": 1, "trg_column": "en"}, ["Columns are chosen by their names"]),
        ({"file": "cut.parquet", **KEYS}, ["cut.parquet: not Parquet, Arrow or JSON, or damaged"]),
        ({"file": "cut.arrow", **KEYS}, ["cut.arrow: not Parquet, Arrow or JSON, or damaged"]),
        ({"file": "page.parquet", **KEYS}, ["page.parquet: not Parquet, Arrow or JSON"]),
        ({"file": "cut.json"}, ["cut.json: not Parquet, Arrow or JSON, or damaged"]),
        ({"file": "no.json"}, ["no.json: not Parquet, Arrow or JSON, or damaged (nothing was read)"]),
        ({"file": "none.json", **KEYS}, ["none.json: expected one column 'de' of text, found none"]),
        ({"file": "line\nfeed.none", **KEYS}, ["no file line\\nfeed.none: tried"]),
        ({"file": "folder.parquet", **KEYS}, ["folder.parquet: cannot be read (Is a directory)"]),
        ({"file": "*.none", **KEYS}, ["no file *.none: tried"]),
        ({"file": "empty.tsv", **TABS}, ["empty.tsv: expected one column 1 of text, found none."]),
        ({"file": "names.tsv", **KEYS}, ["no lines in names.tsv."]),
        ({"file": "latin.tsv", **KEYS}, ["latin.tsv:1: invalid UTF-8 at byte 2 (0xFC)"]),
        ({"file": "latin.tsv", "header": True, **TABS}, ["latin.tsv:1: invalid UTF-8 at byte 2 (0xFC)"]),
        ({"file": "deep.jsonl", **KEYS}, ["expected one column 'de'", "found 'id'"]),
        ({"file": "twice.parquet", **KEYS}, ["expected one column 'de' of text, found 'de', 'de', 'en'"]),
        ({"file": "twice.arrow", **KEYS}, ["expected one column 'de' of text, found 'de', 'de', 'en'"]),
        ({"dataset": "folder.parquet", "split": "train", **KEYS}, ["dataset folder.parquet train: cannot be loaded"]),
        ({"dataset": "script", "split": "train", **KEYS}, ["cannot be loaded", "dataset scripts are not run"]),
        ({"dataset": "data", "split": "none", **KEYS}, ["dataset data none: cannot be loaded", "none"]),
        ({"dataset": "data", "split": "train", **TABS}, ["data train: expected one column 1", "'de', 'en'"]),
        ({"dataset": "nobody/nothing", "split": "train", **KEYS}, ["dataset nobody/nothing train: cannot be loaded"]),
        (
            {"src": ["one", "two"], "trg": ["two", "one"]},  # equal in total
            ["one has 1 lines but two has 2.", "two has 2 lines but one has 1."],
        ),
        ({"src": "twice.tsv", "src_column": 3, "trg": "v.en"}, ["twice.tsv has 2 lines but v.en has 1."]),
    ],
)
def test_unreadable_corpora_are_refused_before_any_work(at, corpus, expected):
    languages = {"src_lang": "fr", "trg_lang": "en"} if "fr and en" in expected[0] else {}
    for name, content in {
        "a.tsv": "ein Hund\ta dog\n",
        "a.csv": "de,en\nein Hund,a dog\n",
        "quote.csv": 'de,en\n"ein" Hund,a dog\n',
        "a.tmx": TMX,
        "cut.tmx": TMX[:40],
        "bomb.tmx": '<!DOCTYPE tmx [<!ENTITY a "aa">]>' + TMX,
        "japan.tmx": '<?xml version="1.0" encoding="Shift_JIS"?>' + TMX,
        "klingon.tmx": '<?xml version="1.0" encoding="klingon"?>' + TMX,
        "f\udcfcr.de": "x\n",
        "a.xlsx": "PK",
        "a.xlf": "<xliff/>",
        "twice.tsv": "de\tde\ten\nx\ty\tz\n",
        "a.jsonl": [GOOD],
        "list.jsonl": '[\n{"de": "x", "en": "y"\n}\n]\n',
        "no.json": "",
        "none.json": "[]",
        "cut.json": '[{"de": "ein Hund", "en": "a do',
        "page.parquet": "<html>404</html>",
        "empty.tsv": "",
        "names.tsv": "de\ten\n",
        "latin.tsv": b"d\xfc\ten\nein Hund\ta dog\n",
        "deep.jsonl": '{"id": "x", "a": ' + 500 * '{"a": ' + '"x"' + 501 * "}" + "\n",
        "one": "x\n",
        "two": "y\nz\n",
        "a.parquet": [{"n": 5, "t": {"x": "y"}, **GOOD}],
        "a.arrow": [GOOD],
    }.items():
        at.write(name, content)
    for name in ("parquet", "arrow"):
        whole = (at.folder / f"a.{name}").read_bytes()
        at.write(f"cut.{name}", whole[: len(whole) // 2])
        at.write(f"twice.{name}", pa.table([["x"], ["y"], ["z"]], names=["de", "de", "en"]))
    for name in ("folder.parquet", "script", "data"):
        (at.folder / name).mkdir()
    at.write("script/script.py", "open('ran', 'w').close()\n")
    at.write("data/train.parquet", [GOOD])
    at.refused(corpus, *expected, **languages, bad_utf8="drop")
    assert not (at.folder / "ran").exists()


@pytest.mark.parametrize("name", ["pipe.de", "pipe.parquet", "pipe.jsonl"])
def test_a_pipe_is_refused_without_waiting(at, name):
    os.mkfifo(name)

    def fail(*_):
        raise AssertionError("it is waited for")

    old_handler = signal.signal(signal.SIGALRM, fail)
    signal.alarm(5)
    try:
        at.refused({"src": name, "trg": "v.en"} if name == "pipe.de" else {"file": name, **KEYS}, "a pipe or device")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old_handler)


@pytest.mark.parametrize(
    ("filters", "change", "changed"),
    [
        ({}, lambda old: old + old, ("a.de", "a.en")),
        ({}, lambda old: old[:4], ("a.de",)),
        ({}, lambda old: old.replace("i", "I"), ("a.de",)),
        ({"drop_duplicates": True}, lambda old: old + old, ("a.de", "a.en")),
    ],
    ids=["longer", "shorter", "other", "read twice"],
)
def test_files_that_change_between_two_readings_are_refused(at, monkeypatch, filters, change, changed):
    content = {"a.de": "ein Hund\nzwei Hunde\n", "a.en": "one big dog\ntwo big dogs\n"}

    def facts_of(*args):
        facts = real_facts_of(*args)
        for name in changed:
            at.write(name, change(content[name]))
        return facts

    for name, text in content.items():
        at.write(name, text)
    real_facts_of = preparing.facts_of
    monkeypatch.setattr(preparing, "facts_of", facts_of)
    at.refused({"src": "a.de", "trg": "a.en"}, "changed while ", **filters)


def test_files_that_grow_after_the_search_for_duplicates_are_refused(at, monkeypatch):
    def decide(*args):
        codes = real_decide(*args)
        at.write("a.de", ["ein Hund", "zwei Hunde", "drei Hunde"])
        at.write("a.en", ["one big dog", "two big dogs", "three big dogs"])
        return codes

    at.write("a.de", ["ein Hund", "zwei Hunde"])
    at.write("a.en", ["one big dog", "two big dogs"])
    real_decide = keep._decide
    monkeypatch.setattr(keep, "_decide", decide)
    at.refused({"src": "a.de", "trg": "a.en"}, "a.de, a.en: changed while it was read", drop_duplicates=True)


CUT = """
import os, sys
from pathlib import Path
from nmt.data.formats import Reading, Text, read_columns
from nmt.errors import DataError
path = Path(sys.argv[1])
reading = Reading("refuse", "refuse", 2000)
rows = read_columns([Text("a.arrow", path, "arrow", column) for column in ("de", "en")], reading)
next(rows)
os.truncate(path, path.stat().st_size // 3)
try:
    list(rows)
except DataError as error:
    print(error)
"""


@pytest.mark.parametrize("new_writer", [pa.ipc.new_file, pa.ipc.new_stream])
def test_an_arrow_file_truncated_while_reading_is_refused(tmp_path, new_writer):
    path = tmp_path / "a.arrow"
    rows = pa.table({"de": [f"ein Hund {n} {'x' * 500}" for n in range(6000)], "en": ["a dog"] * 6000})
    with new_writer(str(path), rows.schema) as writer:
        writer.write_table(rows, max_chunksize=1000)
    done = subprocess.run([sys.executable, "-c", CUT, str(path)], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().startswith(f"{path}: not Parquet, Arrow or JSON, or damaged (")
