"""Input formats give the same data for the same pairs. Also: column names, file patterns and held-out pairs."""

import csv
import gzip
import io
import json
import lzma
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from xml.sax.saxutils import escape

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nmt.cli.preprocess import main
from nmt.data.corpus import Prepared
from nmt.data.formats import Text
from nmt.data.keep import n_to_hold_out
from nmt.data.prepare import prepare
from nmt.data.sources import columns_by_name
from nmt.errors import DataError
from tests.data.awkward import AWKWARD
from tests.data.test_prepare import NO_FILTERS

PLAIN = [(f'Satz "{n}", über {n % 7} Hunde', f"sentence '{n}' about {n % 7} dogs") for n in range(60)]
AWKWARD_PAIRS = [(f"{n} {line}", f"{line} {n}") for n, line in enumerate(AWKWARD) if "\t" not in line]
PAIRS = PLAIN + AWKWARD_PAIRS  # a line with U+FEFF must not be the first of a file
SRC, TRG = ([pair[side] for pair in PAIRS] for side in (0, 1))
WORDS = [f"{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(300)]
MANY = [(f"Zeile {n} {word}", f"line {n} {word}") for n, word in enumerate(WORDS)]


def lines_of(lines):
    return "".join(line + "\n" for line in lines).encode()


def tsv(rows, *header):
    return lines_of(["\t".join(row) for row in [*([header] if header else []), *rows]])


def jsonl(pairs):
    return lines_of([json.dumps({"de": src, "x": {"en": trg}, "n": 1.5}, ensure_ascii=False) for src, trg in pairs])


def as_csv(pairs, head=("id", "German", "en-US")):
    csv.writer(text := io.StringIO()).writerows([head, *((n, *pair) for n, pair in enumerate(pairs))])
    return b"\xef\xbb\xbf" + text.getvalue().encode()


def as_tmx(pairs):
    units = (
        f'<tu><prop>x</prop><tuv xml:lang="de-AT"><seg>{escape(src)}<bpt i="1">&lt;b&gt;</bpt></seg></tuv>'
        f'<tuv lang="EN"><seg>{escape(trg)}</seg></tuv></tu>'
        for src, trg in pairs
    )
    head = '<?xml version="1.0"?><!DOCTYPE tmx SYSTEM "tmx14.dtd"><tmx version="1.4"><header/><body>'
    return f"{head}{''.join(units)}</body></tmx>".encode()


def table(text_type=None):
    src, trg = (pa.array(side, text_type or pa.string()) for side in (SRC, TRG))
    nested = pa.StructArray.from_arrays([src, trg], ["de", "en"])
    return pa.table({"id": pa.array(range(len(SRC))), "translation": nested, "x.de": src})


def write_arrow(path, rows, new_writer=pa.ipc.new_file):
    with new_writer(str(path), rows.schema) as writer:
        writer.write_table(rows, max_chunksize=17)


BY_NUMBER, BY_KEY = {"src_column": 1, "trg_column": 2}, {"src_column": "de", "trg_column": "x.en"}
NESTED = {"src_column": "translation.de", "trg_column": "translation.en"}
# One corpus in each format. Those that start with "found in" hold only the lines of plain.de and plain.en.
FORMATS = {
    "list": {"src": ["part.1.de", "part.2.de.gz"], "trg": ["part.1.en", "part.2.en.xz"]},
    "pattern": {"src": "part.*.de*", "trg": "part.*.en*"},
    "crlf and mark": {"src": "crlf.de", "trg": "no-end.en"},
    "tsv": {"file": "a.tsv", **BY_NUMBER},
    "tsv, more columns": {"file": "b.tsv.gz", "src_column": 3, "trg_column": 1},
    "tsv, header": {"file": "h.txt", "format": "tsv", "src_column": "de", "trg_column": "en"},
    "tsv, one side": {"src": "a.tsv", "src_column": 1, "trg": "a.en"},
    "jsonl": {"file": "a.jsonl", **BY_KEY},
    "jsonl, two files": {"file": ["1.jsonl", "2.jsonl"], **BY_KEY},
    "json": {"file": "a.json.gz", **NESTED},
    "parquet": {"file": "a.parquet", **NESTED},
    "parquet, dot in a name": {"src": "a.parquet", "src_column": "x.de", "trg": "a.en"},
    "parquet, bytes": {"file": "y.parquet", **NESTED},
    "arrow file": {"file": "a.arrow", **NESTED},
    "arrow stream": {"file": "s.arrow", **NESTED},
    "arrow stream, old": {"file": "o.arrow", **NESTED},
    "arrow, views": {"file": "v.arrow", **NESTED},
    "arrow, dictionaries": {"file": "d.arrow", "src_column": "a", "trg_column": "b"},
    "dataset": {"dataset": "set", "split": "train", **NESTED},
    "found in csv": {"file": "c.csv.gz"},
    "found in tsv": {"file": "c.tsv"},
    "found in json": {"file": "c.json"},
    "found in jsonl": {"file": "c.jsonl"},
    "found in tmx": {"file": "c.tmx"},
}


def write_all(folder):
    half = len(PAIRS) // 2
    for name, content in {
        "a.de": lines_of(SRC),
        "a.en": lines_of(TRG),
        "plain.de": lines_of([src for src, _ in PLAIN]),
        "plain.en": lines_of([trg for _, trg in PLAIN]),
        "part.1.de": lines_of(SRC[:half]),
        "part.1.en": lines_of(TRG[:half]),
        "part.2.de.gz": gzip.compress(lines_of(SRC[half:])),
        "part.2.en.xz": lzma.compress(lines_of(TRG[half:])),
        "crlf.de": b"\xef\xbb\xbf" + lines_of(SRC).replace(b"\n", b"\r\n"),
        "no-end.en": lines_of(TRG)[:-1],
        "a.tsv": tsv(PAIRS),
        "b.tsv.gz": gzip.compress(tsv([(t, "0.5", s) for s, t in PAIRS])),
        "h.txt": b"\xef\xbb\xbf" + tsv(PAIRS, "de", "en"),
        "a.jsonl": jsonl(PAIRS),
        "1.jsonl": jsonl(PAIRS[:9]),
        "2.jsonl": jsonl(PAIRS[9:]),
        "a.json.gz": gzip.compress(json.dumps([{"translation": {"de": s, "en": t}} for s, t in PAIRS]).encode()),
        "c.json": json.dumps([{"n": None, "English": trg, "deu": src} for src, trg in PLAIN]).encode(),
        "c.csv.gz": gzip.compress(as_csv(PLAIN)),
        "c.tsv": tsv([(trg, src) for src, trg in PLAIN], "target", "source"),
        "c.jsonl": lines_of([json.dumps({"n": 1, "translation": {"en": trg, "de": src}}) for src, trg in PLAIN]),
        "c.tmx": as_tmx(PLAIN),
    }.items():
        (folder / name).write_bytes(content)
    pq.write_table(table(), folder / "a.parquet", row_group_size=23)
    pq.write_table(table(pa.binary()), folder / "y.parquet")
    (folder / "set").mkdir()
    pq.write_table(table(), folder / "set" / "train.parquet")
    write_arrow(folder / "a.arrow", table())
    write_arrow(folder / "s.arrow", table(), pa.ipc.new_stream)
    old = pa.ipc.IpcWriteOptions(use_legacy_format=True)
    write_arrow(folder / "o.arrow", table(), partial(pa.ipc.new_stream, options=old))
    write_arrow(folder / "v.arrow", table(pa.string_view()))
    columns = {"a": pa.array(SRC).dictionary_encode(), "b": pa.array(TRG).dictionary_encode()}
    write_arrow(folder / "d.arrow", pa.table(columns))


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """A folder with all the files, and a cache of the data prepared from the plain text files."""
    write_all(folder := tmp_path_factory.mktemp("forms"))
    return SimpleNamespace(folder=folder, prepared={})


@pytest.mark.parametrize("case", FORMATS)
def test_all_formats_of_the_same_pairs_give_the_same_data(at, corpora, case, monkeypatch):
    monkeypatch.chdir(corpora.folder)
    name = "plain" if case.startswith("found") else "a"

    def prepared(corpus):
        options = {"src_lang": "de", "trg_lang": "en", "vocab_size": 300, **NO_FILTERS}
        report = at.prepare(corpus, valid=corpus, **options)
        files = ("train.arrow", "valid.arrow", "subwords.json")
        return [(at.folder / "out" / name).read_bytes() for name in files], report.recipe

    if name not in corpora.prepared:
        corpora.prepared[name], _ = prepared({"src": f"{name}.de", "trg": f"{name}.en"})
    found, recipe = prepared(FORMATS[case])
    assert found == corpora.prepared[name]
    assert at.texts() == tuple(map(list, zip(*(PLAIN if name == "plain" else PAIRS), strict=True)))
    messages = []
    prepare(recipe, at.folder / "out", talk=messages.append)
    assert "nothing to do" in messages[-1] and not list(at.folder.glob(".*"))


def test_a_changed_column_requires_overwrite(at):
    at.write("a.tsv", b"ein Hund\ta dog\tun chien\n" * 9)
    report = at.prepare({"file": "a.tsv", **BY_NUMBER})
    for change in ({"trg_column": 3}, {"header": True}):
        (corpus,) = report.recipe.data.train
        recipe = report.recipe.with_options(data={"train": [corpus.model_copy(update=change)]})
        with pytest.raises(DataError, match=r"a\.tsv is new.*--overwrite"):
            prepare(recipe, at.folder / "out")


def test_the_command_holds_out_pairs_and_drops_their_near_copies_from_training(at, capsys):
    near_copies = [(src.upper() + "!", f"other {number}") for number, (src, _) in enumerate(MANY)] + [
        (f"anders {number}", trg.upper() + " .") for number, (_, trg) in enumerate(MANY)
    ]
    at.write("c.csv", as_csv([*MANY, *near_copies]))
    assert main(["c.csv", "--langs", "de", "en", "--valid-size", "0.1", "--accept-alarms"]) == 0
    assert "source and target are 'German' and 'en-US'" in (stderr := capsys.readouterr().err)
    assert "90 pairs held out of training" in stderr and Prepared.open(Path("prepared/c")).valid.n_pair == 90
    report = json.loads(Path("prepared/c/report.json").read_text(encoding="utf-8"))
    (row,) = report["leaks"]["rows"]
    assert row["lines"] == 90 and all(n == 0 for n in row["near"].values())
    assert report["dropped"]["held out"]["count"] >= 2 * 90


def test_number_of_held_out_pairs():
    cases = [("auto", 900), ("auto", 10_000), ("auto", 100_000), ("auto", 10**7), (0.05, 1000), (50, 1000), (900, 1000)]
    assert [n_to_hold_out(*case) for case in cases] == [180, 200, 1000, 2000, 50, 50, 200]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["id", "en", "de"], ("de", "en")),
        (["English", "German"], ("German", "English")),
        (["eng", "deu"], ("deu", "eng")),
        (["de", "de-AT", "en"], ("de", "en")),
        (["en-US", "de_DE"], ("de_DE", "en-US")),
        (["translation.de", "translation.en"], ("translation.de", "translation.en")),
        (["Source", "Target", "score"], ("Source", "Target")),
        (["tgt", "src"], ("src", "tgt")),
        (["fr", "en"], None),
    ],
)
def test_columns_are_found_by_language_or_side(names, expected):
    assert columns_by_name(names, ("de", "en")) == expected


def test_a_held_out_set_has_the_columns_of_its_own_target_language(at):
    at.write("a.csv", "de,en,fr\neins zwei,one two,un deux\ndrei vier,three four,trois quatre\n")
    train, valid = [{"file": "a.csv"}, {"file": "a.csv", "trg_lang": "fr"}], {"file": "a.csv", "trg_lang": "fr"}
    at.prepare(train, valid=valid, vocab_size=300, src_lang="de", trg_lang="en")
    assert at.texts() == (["eins zwei", "drei vier"], ["un deux", "trois quatre"])


def test_file_patterns_pair_the_files_and_report_the_pairs(at):
    for year in ("2019", "2020", "b"):
        at.write(f"news.{year}.de", f"das ist {year}\nnoch eins {year}\n")
        at.write(f"news.{year}.en.txt", f"this is {year}\none more {year}\n")
    corpus = {"src": "news.*.de", "trg": "news.*.en.txt"}
    assert "train: news.2019.de with news.2019.en.txt" in at.prepare(corpus, valid=corpus).said
    assert at.texts()[0] == [f"{start} {year}" for year in ("2019", "2020", "b") for start in ("das ist", "noch eins")]
    at.write("news.2021.de", "x\n")
    at.write("news.2022.en.txt", "x\n")
    with pytest.raises(DataError, match=r"no partner for news\.2021\.de, news\.2022\.en\.txt\."):
        at.prepare(corpus)
    with pytest.raises(DataError, match=r"4 files of src and 1 of trg, but no partner for news\.2020\.de, "):
        at.prepare({**corpus, "trg": "v.en"})


def test_lists_of_patterns_are_matched_by_position(at):
    names = [f"{kind}.{n}" for kind in ("news", "law") for n in (1, 2)]
    for name in names:
        at.write(f"{name}.de", f"das ist {name}\n")
        at.write(f"{name}.en", f"this is {name}\n")
    corpus = {side: [f"{kind}.*.{code}" for kind in ("news", "law")] for side, code in (("src", "de"), ("trg", "en"))}
    assert at.prepare(corpus, valid=corpus, valid_size=None).read == 4
    assert at.texts() == ([f"das ist {name}" for name in names], [f"this is {name}" for name in names])
    with pytest.raises(DataError, match=r"no partner for law\.1\.de, law\.2\.de\."):
        at.prepare({**corpus, "trg": corpus["trg"][:1]})


@pytest.mark.parametrize("name", ["line\nfeed.de", "c: colon, comma.de", "a*.de", "[ab].de", " 'quoted\" #.de"])
def test_special_characters_in_a_file_name_are_literal(at, name):
    at.write("ab.de", "other\nlines\n")
    at.write(name, "eins\n")
    assert at.prepare({"src": name, "trg": "v.en"}).read == 1


def test_a_prepared_folder_is_not_read_as_the_corpus_of_that_name(at):
    (at.folder / "c.tsv").mkdir()
    at.write("c.tsv/manifest.json", "{}")
    at.refused({"file": "c.tsv", **BY_NUMBER}, "no file c.tsv: tried")


def test_the_same_file_on_both_sides_gives_a_warning(at):
    messages = at.prepare({"src": "v.de", "trg": "v.en"}, valid={"src": "v.de", "trg": "v.de"}).said
    assert "WARNING: valid: v.de is source and target, so the model would learn to copy" in messages
    assert not any("WARNING: train" in line for line in messages)


def test_records_of_a_file_are_counted_in_each_format(tmp_path):
    path, known = tmp_path / "a.csv", {}
    path.write_text('"two\nlines",x\nb,y\n', encoding="utf-8", newline="\n")
    as_text, as_csv = Text("a.csv", path), Text("a.csv", path, "csv", 1)
    assert [text.facts(known)["n_line"] for text in (as_text, as_csv, as_text)] == [3, 2, 3]
