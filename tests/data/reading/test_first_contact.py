"""One file with both sides, whatever its form: its columns are found, and validation pairs are drawn from it."""

import csv
import gzip
import io
import json
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from nmt.cli.preprocess import main
from nmt.data.corpus import Prepared, show_pairs
from nmt.data.formats import names_in_document
from nmt.data.forms import columns_by_name
from nmt.data.kept import n_to_hold_out

WORDS = ["".join(chr(97 + n // 26**k % 26) for k in range(2)) for n in range(300)]
PAIRS = [(f'Zeile {n}, "so" {word}', f"line {n} {word}") for n, word in enumerate(WORDS)]


def as_csv(pairs, head=("id", "German", "en-US")):
    text = io.StringIO()
    csv.writer(text).writerows([head, *((n, *pair) for n, pair in enumerate(pairs))])
    return "\ufeff" + text.getvalue()


def as_tmx(pairs):
    units = (
        f'<tu><prop>x</prop><tuv xml:lang="de-AT"><seg>{escape(a)}<bpt i="1">&lt;b&gt;</bpt></seg></tuv>'
        f'<tuv lang="EN"><seg>{escape(b)}</seg></tuv></tu>'
        for a, b in pairs
    )
    head = '<?xml version="1.0"?><!DOCTYPE tmx SYSTEM "tmx14.dtd"><tmx version="1.4"><header/><body>'
    return f"{head}{''.join(units)}</body></tmx>"


FORMS = {
    "c.csv": as_csv(PAIRS),
    "c.tsv": "".join(f"{a}\t{b}\n" for a, b in PAIRS),
    "h.tsv": "target\tsource\n" + "".join(f"{b}\t{a}\n" for a, b in PAIRS),
    "c.jsonl": "".join(json.dumps({"n": 1, "translation": {"en": b, "de": a}}) + "\n" for a, b in PAIRS),
    "c.tmx": as_tmx(PAIRS),
}


def texts_of(folder):
    return [line for line in show_pairs(folder, Prepared.open(folder).train.n_pair) if " text " in line]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_one_file_in_any_form_gives_the_same_data(tmp_path, monkeypatch, capsys, name, ending):
    monkeypatch.chdir(tmp_path)
    content = FORMS[name].encode("utf-8")
    Path(name + ending).write_bytes(gzip.compress(content) if ending else content)
    for side, lines in zip(("de", "en"), zip(*PAIRS, strict=True), strict=True):
        Path(f"t.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    size = ["--valid-size", "30", "--vocab-size", "300"]
    assert main([name + ending, "--langs", "de", "en", *size]) == 0
    assert "held out of training" in capsys.readouterr().err
    assert main(["--train", "t.de", "t.en", "--langs", "de", "en", "--out", "two", *size]) == 0
    found = Path("prepared") / name[0]
    assert texts_of(found) == texts_of("two") and Prepared.open(found).valid.n_pair == 30
    assert (found / "valid.arrow").read_bytes() == Path("two/valid.arrow").read_bytes()


def test_no_copy_of_a_pair_that_is_held_out_stays_in_training_on_either_side(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    again = [(a.upper() + "!", f"other {n}") for n, (a, _) in enumerate(PAIRS)] + [
        (f"anders {n}", b.upper() + " .") for n, (_, b) in enumerate(PAIRS)
    ]
    Path("c.csv").write_text(as_csv([*PAIRS, *again]), encoding="utf-8")
    assert main(["c.csv", "--langs", "de", "en", "--valid-size", "0.1", "--accept-alarms"]) == 0
    report = json.loads(Path("prepared/c/report.json").read_text(encoding="utf-8"))
    (row,) = report["leaks"]["rows"]
    assert row["lines"] == 90 and all(n == 0 for n in row["near"].values())
    assert report["dropped"]["held out"]["count"] >= 2 * 90


def test_how_many_are_held_out():
    told = [("auto", 900), ("auto", 10_000), ("auto", 100_000), ("auto", 10**7), (0.05, 1000), (50, 1000), (900, 1000)]
    assert [n_to_hold_out(*each) for each in told] == [180, 200, 1000, 2000, 50, 50, 200]


@pytest.mark.parametrize(
    ("names", "found"),
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
def test_columns_are_found_by_languages_or_sides(names, found):
    assert columns_by_name(names, ("de", "en")) == found


def test_languages_of_tmx_are_told_as_they_stand_there(tmp_path):
    (tmp_path / "c.tmx").write_text(as_tmx(PAIRS), encoding="utf-8")
    assert names_in_document(tmp_path / "c.tmx", "tmx") == ["de-AT", "EN"]
