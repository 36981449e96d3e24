"""Selection of pairs by score: formats, `min_score` and `best_share`, and scores that are refused."""

import gzip
import json
import shutil

import pytest

from nmt.data import keep
from nmt.data.prepare import prepare
from nmt.errors import DataError
from nmt.recipe.options import Recipe

SCORES = [-1.5, -9.0, 0.5, -2.5, -7.0, -3.0]  # of six pairs: lines 2 and 5 are bad
GOOD = [
    (f"Haus {n} am See im Wald", f"house {n} by the lake", score) for n, score in zip("abcdef", SCORES, strict=True)
]
OBJECTS = [{"de": de, "en": en, "score": score, "more": {"x": str(score)}} for de, en, score in GOOD]
TEXTS = {"src": "t.de", "trg": "t.en"}
COLUMNS = {"src_column": "de", "trg_column": "en"}
FORMS = {
    "text": {**TEXTS, "scores": "s.txt.gz"},
    "number": {**TEXTS, "scores": "s.tsv", "score_column": 2},
    "name": {**TEXTS, "scores": "named.tsv", "score_column": "chrf"},
    "keys": {**TEXTS, "scores": "a.jsonl", "score_column": "score"},
    "floats": {**TEXTS, "scores": "a.parquet", "score_column": "score"},
    "own number": {"file": "a.tsv", "src_column": 1, "trg_column": 2, "score_column": 3},
    "own name": {"file": "a.csv", **COLUMNS, "score_column": "score"},
    "own head": {"file": "a.csv", "format": "csv", "src_column": 1, "trg_column": 2, "score_column": "score"},
    "found columns": {"file": "a.csv", "score_column": "score"},
    "own key": {"file": "a.jsonl", **COLUMNS, "score_column": "more.x"},
    "own floats": {"file": "a.parquet", **COLUMNS, "score_column": "score"},
    "beside one side": {"src": "a.tsv", "src_column": 1, "trg": "t.en", "score_column": 3},
    "data set": {"dataset": "folder", "split": "train", **COLUMNS, "score_column": "score"},
}


@pytest.fixture
def scored(at):
    at.write("t.de", [de for de, _, _ in GOOD])
    at.write("t.en", [en for _, en, _ in GOOD])
    at.write("s.txt.gz", gzip.compress("".join(f"{score}\n" for score in SCORES).encode()))
    at.write("s.tsv", [f"{n}\t{score}" for n, score in enumerate(SCORES, start=1)])
    at.write("named.tsv", ["bleu\tchrf", *(f"1\t{score}" for score in SCORES)])
    at.write("a.tsv", ["\t".join(map(str, row)) for row in GOOD])
    at.write("a.csv", ["de,en,score", *(",".join(map(str, row)) for row in GOOD)])
    at.write("a.jsonl", OBJECTS)
    at.write("a.parquet", OBJECTS)
    (at.folder / "folder").mkdir()
    at.write("folder/train.parquet", OBJECTS)
    return at


@pytest.mark.parametrize("corpus", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("selection", [{"min_score": -3}, {"best_share": 0.67}])
def test_low_scores_are_dropped_and_reported_in_every_format(scored, corpus, selection):
    report = scored.prepare({**corpus, **selection}, src_lang="de", trg_lang="en")
    name, header = (corpus.get(key) for key in ("src", "file")), str(corpus.get("file", "")).endswith(".csv")
    name = next(filter(None, name), "folder train")
    assert report.dropped == {"low score": {"count": 2, "first": [f"{name}:{n + header}" for n in (2, 5)]}}
    assert [(pair["src"], pair["trg"]) for pair in report.examples["low score"]] == [GOOD[n][:2] for n in (1, 4)]


def test_best_share_is_taken_of_each_whole_corpus(scored):
    scored.write("low", ["-9.5"] * 5 + ["-10"])
    two_files = {"src": ["t.de"] * 2, "trg": ["t.en"] * 2, "scores": ["low", "s.txt.gz"]}
    report = scored.prepare([{**two_files, "best_share": 0.5}, TEXTS, {**TEXTS, "scores": "low", "best_share": 0.2}])
    assert [entry["dropped"] for entry in report.corpora] == [{"low score": 6}, {}, {"low score": 1}], "equal ones stay"
    assert not report.alarms, "what was asked for is none"
    assert not scored.prepare({**two_files, "best_share": 1}).dropped
    two_files |= {"min_score": -9.2}
    assert scored.prepare(two_files).dropped["low score"]["count"] == 6
    assert scored.prepare({**two_files, "best_share": 0.25}).dropped["low score"]["count"] == 9
    assert scored.prepare({**two_files, "min_score": 0.0, "best_share": 0.99}).dropped["low score"]["count"] == 11


def test_alarm_ignores_the_pairs_that_best_share_drops(scored):
    for side, word in (("de", "Haus"), ("en", "house")):
        lines = [" ".join(f"{word}{n}x{k}" for k in range(20 if n < 9 else 1)) for n in range(30)]
        scored.write(f"long.{side}", lines)
    scored.write("long.s", [str(-n) for n in range(30)])
    corpus = {"src": "long.de", "trg": "long.en", "scores": "long.s", "best_share": 0.5}
    (alarm,) = scored.prepare(corpus, max_len=30).alarms
    assert "most for too long (9)" in alarm["found"] and "data.max_len" in alarm["advice"]


def test_patterns_are_paired_and_low_scores_are_never_held_out(scored):
    for n in "xy":
        scored.write(f"{n}.de", [f"Haus {n}{k}" for k in range(1000)])
        scored.write(f"{n}.en", [f"house {n}{k}" for k in range(1000)])
        scored.write(f"{n}.s", [f"{k - 500}" for k in range(1000)])
    data = {"train": {"src": "[xy].de", "trg": "[xy].en", "scores": "[xy].s", "min_score": 0}, "valid_size": 0.1}
    recipe = Recipe.model_validate({"name": "t", "data": data, "subwords": {"vocab_size": 264}})
    prepare(recipe, scored.folder / "out", talk=(messages := []).append)
    report = json.loads((scored.folder / "out" / "report.json").read_text())
    low = report["dropped"]["low score"]
    assert low["first"][:2] == ["x.de:1", "x.de:2"] and low["count"] == 1000
    assert {int(line[6:]) >= 500 for line in scored.texts()[0]} == {True}
    assert len(scored.texts()[0]) == 100, "a tenth of those without low scores"
    assert messages[:2] == ["train: x.de with x.en, scores x.s", "train: y.de with y.en, scores y.s"]
    scored.write("x.s", ["1"] * 999)
    with pytest.raises(DataError, match=r"x\.de has 1,000 lines but x\.s has 999\."):
        prepare(recipe, scored.folder / "out", overwrite=True)
    (scored.folder / "x.s").unlink()
    with pytest.raises(DataError, match=r"data\.train: 2 files of src and 1 of scores, but no partner for x\.de\."):
        prepare(recipe, scored.folder / "out", overwrite=True)


def test_scores_without_a_column_are_refused_with_the_option(scored):
    for corpus in (TEXTS, {"dataset": "folder", "split": "train", **COLUMNS}):
        scored.refused(
            {**corpus, "scores": "a.jsonl", "min_score": 0}, "data.train: a.jsonl: has the scores, but choose"
        )


BLANK = {"de": "", "en": "", "score": None, "more": {"x": None}}


@pytest.mark.parametrize("name", ["own key", "own floats", "keys", "floats"])
@pytest.mark.parametrize("selection", [{"min_score": -3}, {"best_share": 0.67}])
def test_pairs_without_a_score_are_dropped_and_count_in_no_share(scored, name, selection):
    for file in ("a.jsonl", "a.parquet"):
        scored.write(file, OBJECTS + [BLANK] * 6)
    for side, column in (("de", 0), ("en", 1)):
        scored.write(f"t.{side}", [pair[column] for pair in GOOD] + [""] * 6)
    assert scored.prepare({**FORMS[name], **selection}).dropped["low score"]["count"] == 8


def test_best_share_of_pairs_without_scores_is_empty(scored):
    scored.write("a.jsonl", [BLANK] * 12)
    scored.refused({**FORMS["own key"], "best_share": 0.5}, "No training pair is left of 12: 12 dropped for low score")


@pytest.mark.parametrize(
    ("name", "lines", "dropped"),
    [
        ("own key", [b"no JSON", b'{"de": "\xff"}', b""], {"bad UTF-8": 1, "bad record": 2, "low score": 2}),
        ("own number", [b"eins", b"\xff\tone\t9", b""], {"bad UTF-8": 1, "bad record": 2, "low score": 2}),
        ("beside one side", [b"eins", b"\xff\tone\t9", b""], {"bad UTF-8": 1, "bad record": 2, "low score": 2}),
    ],
)
def test_broken_records_with_scores_are_dropped_or_refused(scored, name, lines, dropped):
    file = next(FORMS[name][key] for key in ("src", "file") if key in FORMS[name])
    scored.write(file, (scored.folder / file).read_bytes() + b"".join(line + b"\n" for line in lines))
    scored.write("t.en", [pair[1] for pair in GOOD] + ["one"] * 3)
    for selection in ({"min_score": -3}, {"best_share": 0.67}):
        report = scored.prepare({**FORMS[name], **selection}, bad_utf8="drop", bad_records="drop")
        assert {reason: drop["count"] for reason, drop in report.dropped.items()} == dropped
    shutil.rmtree(scored.folder / "out")
    scored.refused({**FORMS[name], "min_score": -3}, f"{file}:7: ", "data.bad_records: drop")


def test_usual_ratio_is_that_of_the_pairs_selected_by_score(scored):
    scored.write("t.en", ["house by the lake"] * 3 + ["house by the lake " * 3] * 3)
    for n in (0, 1):
        scored.write(f"s{n}", [str(n)] * 3 + [str(1 - n)] * 3)
    scored.prepare([{**TEXTS, "scores": f"s{n}", "min_score": 1} for n in (0, 1)], max_ratio=9)
    manifest = json.loads((scored.folder / "out" / "manifest.json").read_text())
    long, short = (corpus["usual_ratio"] for corpus in manifest["corpora"])
    assert long > 2 * short


def test_data_is_the_same_for_any_number_of_workers(scored, monkeypatch):
    monkeypatch.setattr(keep, "N_PAIR", 2)
    monkeypatch.setattr(keep, "_WORTHWHILE", 1)
    corpus = {**TEXTS, "scores": "s.txt.gz", "best_share": 0.5, "drop_duplicates": True}
    contents = set()
    for n_worker in (1, 3):
        dropped = scored.prepare(corpus, workers=n_worker).dropped
        assert dropped == {"low score": {"count": 3, "first": ["t.de:2", "t.de:5", "t.de:6"]}}
        contents.add((scored.folder / "out" / "train.arrow").read_bytes())
    assert len(contents) == 1


def test_changed_score_file_is_noticed_when_preparing_again(scored):
    recipe = scored.prepare({**TEXTS, "scores": "s.txt.gz", "best_share": 0.5}).recipe
    manifest = json.loads((scored.folder / "out" / "manifest.json").read_text())
    assert [input_file["side"] for input_file in manifest["inputs"]][:3] == ["src", "trg", "scores"]
    prepare(recipe, scored.folder / "out")
    scored.write("s.txt.gz", gzip.compress("".join(f"{score}\n" for score in SCORES[::-1]).encode()))
    with pytest.raises(DataError, match=r"s\.txt\.gz is new"):
        prepare(recipe, scored.folder / "out")


@pytest.mark.parametrize(
    ("lines", "corpus", "expected"),
    [
        (["1"] * 5, {}, ["t.de has 6 lines but bad has 5. Line n of one must belong to line n"]),
        (["1", "nan", *"1111"], {}, ['bad:2: found "nan". Each pair needs a number']),
        (["1", "2", "", *"111"], {}, ['bad:3: found "". Each pair needs a number']),
        (["1", "high", *"1111"], {}, ['bad:2: found "high". Each pair needs a number']),
        (["1"] * 6, {"score_column": 2}, ["bad: has the scores, but text has no columns", "ends in .tsv, .csv or"]),
        ([], {"scores": None, "score_column": 2}, ["t.de: has the scores, but text has no columns"]),
        (
            ["a\tb", *["1\t2"] * 6],
            {"scores": "bad.tsv", "score_column": 2},
            [
                "t.de has 6 lines but bad.tsv has 7. ",
                "If line 1 of a file names its columns, choose them by their names.",
            ],
        ),
        (
            ["a\tb", *["1\t2"] * 3, "1", "1\t2", "1\t2"],
            {"scores": "bad.tsv", "score_column": "b"},
            ["bad.tsv:5: 1 col"],
        ),
        (["a\tb", *["1\t2"] * 6], {"scores": "bad.tsv", "score_column": "c"}, ["expected one column 'c'", "'a', 'b'"]),
        (
            ["1\t2"] * 6,
            {"scores": "bad.tsv"},
            ["bad.tsv: has the scores, but choose the column of the tsv: score_column"],
        ),
        ([{"s": 1}] * 5 + [{"t": 1}], {"scores": "bad.jsonl", "score_column": "s"}, ["bad.jsonl:6: no key 's'"]),
        (
            [{"s": True}] * 6,
            {"scores": "bad.jsonl", "score_column": "s"},
            ["bad.jsonl:1: found true. Each pair needs a number"],
        ),
        ([{"s": 1}] * 6, {"scores": "bad.parquet", "score_column": "t"}, ["expected one column 't', found 's'"]),
        (["no JSON"] * 6, {"scores": "bad.jsonl", "score_column": "s"}, ["bad.jsonl:1: not JSON"]),
        (["1"] * 6, {"scores": ["bad", "bad"]}, ["1 files of src and 2 of scores, but no partner for bad."]),
        (["1"] * 6, {"scores": "none"}, ["no file none: tried"]),
    ],
)
def test_unusable_scores_are_refused_with_file_and_line(scored, lines, corpus, expected):
    name = corpus["scores"] if "." in str(corpus.get("scores")) else "bad"
    scored.write(name, lines)
    scored.refused({**TEXTS, "scores": name, "min_score": 0, **corpus}, *expected)
