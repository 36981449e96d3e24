"""What is no text in a file of pairs, and files that do not belong together: refused, or dropped and counted."""

import io
import json
import time
from argparse import Namespace
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nmt.cli.translating.input import Line
from nmt.cli.translating.output import output_lines
from nmt.cli.translating.workers import LineResult
from nmt.data.corpus import Prepared
from nmt.data.forms import locate
from nmt.data.prepare import prepare
from nmt.decoding.beam import Hypothesis
from nmt.decoding.request import Request
from nmt.decoding.retry import Answer
from nmt.decoding.translation import Translation
from nmt.errors import DataError
from nmt.recipe.data_options import DataConfig, SubwordsConfig, TrainingCorpus, ValidationSet
from nmt.recipe.options import Recipe

TABS = {"src_column": 1, "trg_column": 2}
KEYS = {"src_column": "de", "trg_column": "en"}
TMX = (
    '<tmx><body><tu><tuv xml:lang="de"><seg>ein Hund</seg></tuv><tuv xml:lang="en-GB"><seg>a dog</seg></tuv></tu>'
    "</body></tmx>"
)


@pytest.fixture
def at(tmp_path, monkeypatch):
    """A folder to write corpora in and to prepare them: at.write(name, content), at.prepare(train, **data)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "v.de").write_bytes(b"eins zwei\n")
    (tmp_path / "v.en").write_bytes(b"one two\n")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")

    def write(name, content):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return name

    def run(train, *, valid=None, **data):
        config = DataConfig(
            train=[TrainingCorpus(**each) for each in (train if isinstance(train, list) else [train])],
            valid=[ValidationSet(**(valid or {"src": "v.de", "trg": "v.en"}))],
            alarms="warn",
            workers=1,
            **data,
        )
        said = []
        recipe = Recipe(name="test", data=config, subwords=SubwordsConfig(vocab_size=264))
        prepare(recipe, tmp_path / "out", overwrite=True, talk=said.append)
        report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
        return SimpleNamespace(said=said, recipe=recipe, **report)

    def refused(train, *expected, **more):
        with pytest.raises(DataError) as error:
            run(train, **more)
        for word in expected:
            assert word in str(error.value)
        assert not list(tmp_path.glob(".*")) and not (tmp_path / "out").exists()

    def texts():
        return Prepared.open(tmp_path / "out").valid.texts()

    return SimpleNamespace(write=write, prepare=run, refused=refused, texts=texts, folder=tmp_path)


def objects(*rows):
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


GOOD = {"de": "ein Hund", "en": "a dog"}
SURROGATE = '{"de": "\\ud800", "en": "x"}'


@pytest.mark.parametrize(
    ("name", "content", "columns", "bad", "what"),
    [
        ("a.tsv", "ein Hund\ta dog\nein Hund\n", TABS, 2, "1 columns, but the first line has 2"),
        ("a.tsv", "ein Hund\ta dog\nein\tHund\ta dog\n", TABS, 2, "3 columns, but the first line has 2"),
        ("a.tsv", "de\ten\nein Hund\ta dog\n\n", KEYS, 3, "1 columns, but the first line has 2"),
        ("a.jsonl", objects(GOOD, {"de": 5, "en": "x"}), KEYS, 2, "a number under the key 'de'"),
        ("a.jsonl", objects(GOOD, {"de": "x", "en": None}), KEYS, 2, "null under the key 'en'"),
        ("a.jsonl", objects(GOOD, {"de": "x", "en": ["y"]}), KEYS, 2, "a list under the key 'en'"),
        ("a.jsonl", objects(GOOD, {"de": "x", "fr": "y"}), KEYS, 2, "no key 'en'; there are 'de', 'fr'"),
        ("a.jsonl", objects(GOOD, '{"de": "x", "en'), KEYS, 2, "not JSON"),
        ("a.jsonl", objects(GOOD, "[" * 100_000), KEYS, 2, "nested too deeply"),
        ("a.jsonl", objects(GOOD, '{"de": 1' + "0" * 5000 + ', "en": "x"}'), KEYS, 2, "a number under the key 'de'"),
        ("a.jsonl", objects(GOOD, '{"de": "x", "de": "y", "en": "z"}'), KEYS, 2, "the key 'de' more than once"),
        ("a.jsonl", objects(GOOD, ""), KEYS, 2, "a blank line"),
        ("a.jsonl", objects(GOOD, ["x", "y"]), KEYS, 2, "a list in place of a JSON object"),
        ("a.jsonl", objects(GOOD, SURROGATE), KEYS, 2, "half a surrogate pair"),
        ("a.parquet", [GOOD, {"de": None, "en": "x"}], KEYS, 2, "null in the column 'de'"),
        ("a.arrow", [GOOD, {"de": "x", "en": None}], KEYS, 2, "null in the column 'en'"),
    ],
)
def test_what_is_no_text_is_refused_with_its_place_or_its_pair_dropped(at, name, content, columns, bad, what):
    made(at, name, content)
    at.refused({"file": name, **columns}, f"{name}:{bad}: ", what, "data.bad_records: drop")
    report = at.prepare({"file": name, **columns}, bad_records="drop")
    assert report.dropped == {"bad record": {"count": 1, "first": [f"{name}:{bad}"]}}
    assert (report.read, report.kept) == (2, 1)
    with pytest.raises(DataError, match=f"{name}:{bad}: "):  # nothing is dropped that is measured on
        at.prepare({"src": "v.de", "trg": "v.en"}, valid={"file": name, **columns}, bad_records="drop")


def made(at, name, content):
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(content), at.folder / name)
    elif name.endswith(".arrow"):
        rows = pa.Table.from_pylist(content)
        with pa.ipc.new_file(str(at.folder / name), rows.schema) as writer:
            writer.write_table(rows)
    else:
        at.write(name, content)


def test_what_stands_beside_the_keys_of_a_line_of_json_does_no_harm(at):
    beside = ('{"n": 1' + "0" * 5000 + ", ", '{"id": "de", "also": {"de": 1, "en": 2}, ', '{"n": 1, "n": 2, ')
    at.write("a.jsonl", "".join(f'{start}"de": "Hund {n}", "en": "dog"}}\n' for n, start in enumerate(beside)))
    assert at.prepare({"file": "a.jsonl", **KEYS}, valid={"file": "a.jsonl", **KEYS}).read == 3
    assert at.texts()[0] == ["Hund 0", "Hund 1", "Hund 2"]


def bytes_as_text(rows):
    """Text columns that hold bytes which are not UTF-8, as no honest writer makes them."""
    raw = pa.array(rows, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())


def test_bad_utf8_in_any_form_is_refused_with_its_place_or_its_pair_dropped(at):
    rows = pa.table({"de": bytes_as_text([b"gut", b"f\xfcr"]), "en": ["good", "for"]})
    pq.write_table(rows, at.folder / "a.parquet")
    with pa.ipc.new_stream(str(at.folder / "a.arrow"), rows.schema) as writer:
        writer.write_table(rows)
    at.write("a.tsv", b"gut\tgood\nf\xfcr\tfor\n")
    at.write("a.jsonl", b'{"de": "gut", "en": "good"}\n{"de": "f\xfcr", "en": "for"}\n')
    for name in ("a.parquet", "a.arrow", "a.tsv", "a.jsonl"):
        corpus = {"file": name, **(TABS if name == "a.tsv" else KEYS)}
        with pytest.raises(DataError, match=rf"{name}:2: invalid UTF-8 at byte \d+ .*0xFC"):
            at.prepare(corpus)
        report = at.prepare(corpus, bad_utf8="drop")
        assert report.dropped == {"bad UTF-8": {"count": 1, "first": [f"{name}:2"]}}


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.arrow"])
def test_a_field_of_several_lines_becomes_one_line_and_shifts_nothing(at, name):
    rows = [
        {"de": "a\r\nb\n\nc", "en": "\nx\n"},
        {"de": "\r\n", "en": "c\rd\r"},
        {"de": "last", "en": "LAST"},
    ]
    made(at, name, objects(*rows) if name.endswith("jsonl") else rows)
    report = at.prepare({"file": name, **KEYS}, valid={"file": name, **KEYS})
    assert at.texts() == (["a b c", "", "last"], ["x", "c\rd\r", "LAST"])
    assert report.notes["line_feed"] == 6, "three texts, in training and in validation"
    assert set(report.noted["line_feed"]) == {f"{name}:1", f"{name}:2"}
    assert any("6 texts had line feeds inside" in line and f"{name}:1, 1, 2" in line for line in report.said)


@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl", "a.parquet", "a.arrow", "a.de", "a.tsv.zst"])
def test_one_line_of_twenty_megabytes_is_dropped_as_too_long_and_costs_little(at, name):
    rows = [GOOD, {"de": "x" * 20_000_000, "en": "x"}, {"de": "y", "en": "x" * 20_000_000}, GOOD]
    columns = KEYS
    if ".tsv" in name:
        columns = TABS
        content = "".join(f"{row['de']}\t{row['en']}\n" for row in rows).encode()
        at.write(name, pa.Codec("zstd").compress(content, asbytes=True) if name.endswith("zst") else content)
    elif name == "a.de":
        at.write("a.de", "".join(row["de"] + "\n" for row in rows))
        at.write("a.en", "".join(row["en"] + "\n" for row in rows))
    else:
        made(at, name, objects(*rows) if name == "a.jsonl" else rows)
    start = time.process_time()
    report = at.prepare({"src": "a.de", "trg": "a.en"} if name == "a.de" else {"file": name, **columns})
    assert time.process_time() - start < 4
    assert report.dropped == {"too long": {"count": 2, "first": [f"{name}:2", f"{name}:3"]}}


@pytest.mark.parametrize(
    ("corpus", "expected"),
    [
        ({"file": "a.tsv", "src_column": 1, "trg_column": 3}, ["a.tsv: no column 3: its first line has 2"]),
        ({"file": "a.tsv", "src_column": "fr", "trg_column": "b"}, ["no column 'fr'", "'ein Hund', 'a dog'"]),
        ({"file": "twice.tsv", **KEYS}, ["no column 'de'", "more than once in 'de', 'de', 'en'"]),
        ({"file": "v.de", "format": "tsv", **TABS}, ["v.de: no tab in the first line: 'eins zwei'"]),
        ({"file": "a.csv", "format": "tsv", **KEYS}, ["a.csv: no tab in the first line", "CSV: format: csv"]),
        ({"file": "a.csv", "src_column": "fr", "trg_column": "en"}, ["no column 'fr'", "'de', 'en'"]),
        ({"file": "quote.csv", **KEYS}, ["quote.csv:2: not CSV", "quotes"]),
        ({"file": "a.tmx", "src_column": "fr", "trg_column": "en"}, ["no text of the language 'fr'", "'de', 'en-GB'"]),
        ({"file": "cut.tmx", **KEYS}, ["cut.tmx: after 0 units: not TMX, or damaged"]),
        ({"file": "bomb.tmx", **KEYS}, ["bomb.tmx: declares entities"]),
        ({"file": "a.xlsx"}, ["a.xlsx: is a spreadsheet. Save it as CSV"]),
        ({"file": "a.xlf"}, ["a.xlf: is XLIFF. Make CSV of it"]),
        ({"file": "a.jsonl"}, ["which of its keys are fr and en? There are 'de', 'en'"]),
        ({"file": "v.de", **TABS}, ["the name does not tell", "format: tsv"]),
        ({"src": "a.tsv", "trg": "v.en"}, ["a.tsv: tsv has columns or keys: which one is it?"]),
        ({"src": "a.tsv", "trg": "a.tsv"}, ["a.tsv is source and target. A file with both sides is named once"]),
        (
            {"file": "a.jsonl", "src_column": "fr", "trg_column": "en"},
            ["no key 'fr' in its first 1 lines", "'de', 'en'"],
        ),
        ({"file": "a.jsonl", **TABS}, ["column 1: JSONL has keys and no numbers", "'de', 'en'"]),
        ({"file": "list.jsonl", **KEYS}, ["not JSONL", "begins like one list"]),
        ({"file": "v.de", "format": "jsonl", **KEYS}, ["not JSONL", "no line of its first is a JSON object"]),
        ({"file": "a.jsonl", "header": True, **KEYS}, ["header is for TSV and CSV, and this is jsonl"]),
        ({"file": "a.parquet", "src_column": "n", "trg_column": "en"}, ["column 'n' holds int64; expected text"]),
        (
            {"file": "a.parquet", "src_column": "t", "trg_column": "en"},
            ["column 't' holds struct<x: string>; expected"],
        ),
        ({"file": "a.parquet", "src_column": "t.y", "trg_column": "en"}, ["no column 't.y': in 't' there are 'x'"]),
        ({"file": "a.parquet", "src_column": "de.x", "trg_column": "en"}, ["no column 'de.x'", "no columns inside"]),
        (
            {"file": "a.parquet", "src_column": 1, "trg_column": "en"},
            ["columns have names here", "'n', 't', 'de', 'en'"],
        ),
        ({"file": "cut.parquet", **KEYS}, ["cut.parquet: neither Parquet nor Arrow, or damaged"]),
        ({"file": "cut.arrow", **KEYS}, ["cut.arrow: neither Parquet nor Arrow, or damaged"]),
        ({"file": "page.parquet", **KEYS}, ["page.parquet: neither Parquet nor Arrow"]),
        ({"file": "none.parquet", **KEYS}, ["no file none.parquet: tried"]),
        ({"file": "folder.parquet", **KEYS}, ["folder.parquet: is a folder; expected a file"]),
        ({"file": "*.none", **KEYS}, ["no file matches *.none: tried"]),
        ({"file": "empty.tsv", **TABS}, ["no lines in empty.tsv."]),
        ({"file": "names.tsv", **KEYS}, ["no lines in names.tsv."]),
        ({"dataset": "folder.parquet", "split": "train", **KEYS}, ["dataset folder.parquet train: cannot be loaded"]),
        ({"dataset": "script", "split": "train", **KEYS}, ["cannot be loaded", "scripts of datasets are not run"]),
        ({"dataset": "data", "split": "none", **KEYS}, ["dataset data none: cannot be loaded", "none"]),
        ({"dataset": "data", "split": "train", **TABS}, ["data train: column 1: columns have names here"]),
        ({"dataset": "nobody/nothing", "split": "train", **KEYS}, ["dataset nobody/nothing train: cannot be loaded"]),
    ],
)
def test_what_cannot_be_read_is_refused_before_any_work(at, corpus, expected):
    languages = {"src_lang": "fr", "trg_lang": "en"} if "fr and en" in expected[0] else {}
    at.write("a.tsv", "ein Hund\ta dog\n")
    at.write("a.csv", "de,en\nein Hund,a dog\n")
    at.write("quote.csv", 'de,en\n"ein" Hund,a dog\n')
    at.write("a.tmx", TMX)
    at.write("cut.tmx", TMX[:40])
    at.write("bomb.tmx", '<!DOCTYPE tmx [<!ENTITY a "aa">]>' + TMX)
    at.write("a.xlsx", "PK")
    at.write("a.xlf", "<xliff/>")
    at.write("twice.tsv", "de\tde\ten\nx\ty\tz\n")
    at.write("a.jsonl", objects(GOOD))
    at.write("list.jsonl", '[\n{"de": "x", "en": "y"}\n]\n')
    at.write("page.parquet", "<html>404</html>")
    at.write("empty.tsv", "")
    at.write("names.tsv", "de\ten\n")
    made(at, "a.parquet", [{"n": 5, "t": {"x": "y"}, **GOOD}])
    made(at, "a.arrow", [GOOD])
    for name in ("parquet", "arrow"):
        whole = (at.folder / f"a.{name}").read_bytes()
        at.write(f"cut.{name}", whole[: len(whole) // 2])
    for name in ("folder.parquet", "script", "data"):
        (at.folder / name).mkdir()
    at.write("script/script.py", "open('ran', 'w').close()\n")
    pq.write_table(pa.Table.from_pylist([GOOD]), at.folder / "data" / "train.parquet")
    at.refused(corpus, *expected, **languages)
    assert not (at.folder / "ran").exists()


def test_files_by_pattern_find_their_partners_and_it_is_told_which(at):
    for year in ("2019", "2020", "b"):
        at.write(f"news.{year}.de", f"das ist {year}\nnoch eins {year}\n")
        at.write(f"news.{year}.en.txt", f"this is {year}\none more {year}\n")
    report = at.prepare(
        {"src": "news.*.de", "trg": "news.*.en.txt"}, valid={"src": "news.*.de", "trg": "news.*.en.txt"}
    )
    assert "train: news.2019.de with news.2019.en.txt" in report.said
    assert at.texts()[0] == [f"{what} {year}" for year in ("2019", "2020", "b") for what in ("das ist", "noch eins")]
    at.write("news.2021.de", "x\n")
    at.write("news.2022.en.txt", "x\n")
    with pytest.raises(DataError, match=r"no partner on the other side for news\.2021\.de, news\.2022\.en\.txt\."):
        at.prepare({"src": "news.*.de", "trg": "news.*.en.txt"})
    with pytest.raises(DataError, match=r"4 files of src \(news.2019.de, .*\) but 1 of trg \(v\.en\)"):
        at.prepare({"src": "news.*.de", "trg": "v.en"})


def test_a_name_that_looks_like_a_pattern_is_a_name_where_there_is_such_a_file(at):
    at.write("a[1].de", "das\n")
    at.write("a1.de", "dies\nund\n")
    assert at.prepare({"src": "a[1].de", "trg": "v.en"}).read == 1


def test_prepared_data_that_has_the_name_of_its_corpus_is_not_taken_for_it(at, tmp_path):
    at.write("c.tsv", "x\ty\n")
    (tmp_path / "prepared" / "c.tsv").mkdir(parents=True)
    at.write("prepared/c.tsv/manifest.json", "{}")
    (found,) = locate(["c.tsv"], "data.train", [], [tmp_path / "prepared", tmp_path])
    assert found.path == tmp_path / "c.tsv"


def test_two_files_a_side_are_refused_where_one_pair_of_them_is_unequal(at):
    at.write("1.de", "x\ny\n")
    at.write("2.de", "z\n")
    at.write("1.en", "x\n")
    at.write("2.en", "y\nz\n")  # as many on the whole
    at.refused(
        {"src": ["1.de", "2.de"], "trg": ["1.en", "2.en"]},
        "1.de has 2 lines but 1.en has 1.",
        "2.de has 1 lines but 2.en has 2.",
    )
    at.write("n.tsv", "n\tx\n1\ta\n2\tb\n")
    at.refused({"src": "n.tsv", "src_column": "x", "trg": "v.en"}, "n.tsv has 2 lines but v.en has 1.")


def test_stdin_is_read_once_kept_beside_and_removed(at, monkeypatch):
    def stdin(content):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))

    corpus = {"file": "-", "format": "tsv", **TABS}
    content = b"ein Hund\ta dog\nzwei Hunde\ttwo dogs\n"
    stdin(pa.Codec("zstd").compress(content, asbytes=True))
    report = at.prepare(corpus)
    assert "stdin: 2 lines, " in report.said[0] and report.kept == 2
    assert not list(at.folder.glob(".*"))
    again = []
    stdin(pa.Codec("zstd").compress(content, asbytes=True))
    prepare(report.recipe, at.folder / "out", talk=again.append)
    assert "nothing to do" in again[-1]
    stdin(content + b"\n")
    with pytest.raises(DataError, match=r"^stdin:3: 1 columns"):
        at.prepare(corpus)
    stdin(b"one column\n")
    with pytest.raises(DataError, match=r"^stdin: no tab in the first line"):
        at.prepare(corpus)
    assert not list(at.folder.glob(".*"))


def test_what_nmt_translate_writes_is_a_corpus(at):
    hypothesis = Hypothesis([5], -0.5, -0.25, True)
    translations = [
        Translation(text, [text], [hypothesis], [5]) for text in ("ein Hund", "zwei Hunde", "drei \t Katzen")
    ]
    sources = ["a dog", "two dogs", "three cats"]
    for kind in ("jsonl", "tsv"):
        args, written = Namespace(format=kind, score=None, retry_suspect=False), []
        for n, (source, translation) in enumerate(zip(sources, translations, strict=True), start=1):
            result = LineResult(Answer(translation, []), {"token_log_probs": [-0.5]})
            written += output_lines(args, Line(Request(source), {}, {}), n, result, [], n_best=1)
        at.write(f"out.{kind}", "".join(line + "\n" for line in written))
    at.write("mono.en", "".join(line + "\n" for line in sources))
    for corpus in (
        {"file": "out.jsonl", "src_column": "output", "trg_column": "source"},
        {"src": "out.tsv", "src_column": 5, "trg": "mono.en"},
    ):
        assert at.prepare(corpus, valid=corpus).kept == 3
        assert [line.replace("\t", " ") for line in at.texts()[0]] == ["ein Hund", "zwei Hunde", "drei   Katzen"]
        assert at.texts()[1] == sources
