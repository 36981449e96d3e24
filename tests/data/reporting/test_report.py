"""Data report: counts equal a plain reference count. Also: overlap, examples, alarms and notes."""

import json
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from nmt.data import dedup, keep
from nmt.data.corpus import Prepared, show_pairs
from nmt.data.dedup import PAIR, Leaks, count_duplicates, hits, overlap_keys
from nmt.data.letters import normalised
from nmt.data.prepare import overlap_with_bases, prepare
from nmt.data.report import findings, remarks
from nmt.data.subwords import large_vocabulary
from nmt.data.text import Block
from nmt.errors import DataError
from nmt.recipe.data_options import CorpusFiles, TrainingCorpus, ValidationSet
from nmt.recipe.reader import write_recipe
from tests.data.awkward import AWKWARD
from tests.data.reporting.test_shift import synthetic_corpus
from tests.data.test_prepare import NO_FILTERS, SRC, TRG, recipe_in, write
from tests.documented import documented


def report_of(folder, *sides, **options):
    """Prepare data in a folder and return its report."""
    folder.mkdir(exist_ok=True)
    prepare(recipe_in(folder, *sides, **options), folder / "out", talk=lambda line: None)
    return json.loads((folder / "out" / "report.json").read_text(encoding="utf-8"))


def test_the_report_has_the_documented_entries_and_no_others(tmp_path):
    page = documented("Data report")[""]
    assert set(report_of(tmp_path)) == {name for name, when in page.items() if when != "with several training corpora"}


def keys_of(pairs):
    return overlap_keys(*map(Block, zip(*pairs, strict=True)))


def leaks(held_out, training, parts=("src", "trg", "pair")):
    """Return the counts of one test set by level. held_out, training: lists of (src, trg)."""
    overlap = Leaks({"test": keys_of(held_out)})
    for n, pair in enumerate(training):  # one block per pair
        overlap.note(hits(overlap.known, keys_of([pair]), np.array([n])))
    (row,) = overlap.rows()
    return [tuple(row[level][part] for part in parts) for level in ("exact", "near", "numberless")]


@pytest.mark.parametrize(
    ("src", "exact", "near", "numberless"),
    [
        ("  The cat, 12 years old. ", 1, 1, 1),
        ("the cat: 12 YEARS old!", 0, 1, 1),
        ("Ｔｈｅ cat ⑫ years old", 0, 1, 1),
        ("The cat, 134 years old.", 0, 0, 1),
        ("The cat, 1,2 years old.", 0, 0, 0),
        ("The dog, 12 years old.", 0, 0, 0),
    ],
)
def test_an_overlapping_line_is_counted_at_each_level_that_matches(src, exact, near, numberless):
    found = leaks([("The cat, 12 years old.", "Die Katze, 12 Jahre.")], [("x", "y"), (src, "Die Katze, 12 Jahre.")])
    assert found == [(n, 1, n) for n in (exact, near, numberless)]


def test_overlap_of_punctuation_numbers_and_reversed_pairs():
    assert leaks([("", "..."), ("!", "?")], [("", "..."), ("?", "!")])[1] == (0, 0, 0)  # punctuation only
    assert leaks([("1/11", "a")], [("11/1", "a"), ("1/1/1", "a"), ("111", "a")])[1] == (0, 1, 0)  # other numbers
    assert leaks([("1/11", "a")], [("1-11", "a")])[1] == (1, 1, 1)
    assert leaks([("a", "b")], [("b", "a")])[0] == (0, 0, 0)  # sides are not exchangeable
    held_out = [("1 Ei", "1 egg"), ("Ein Haus am See!", "A house by the lake"), ("Nur ich", "Just me")]
    training = [("1 Ei", "1 egg"), ("a HOUSE by the lake", "ein Haus am See"), ("ich", "me")]
    assert leaks(held_out, training, ("pair", "reversed")) == [(1, 0), (1, 1), (1, 1)]  # levels are nested


def test_overlap_names_the_first_training_pair_and_includes_test_with_validation():
    sets = {"valid": "ab", "valid-2": "c", "test": "acde"}
    overlap = Leaks({name: keys_of([(line, line) for line in lines]) for name, lines in sets.items()})
    overlap.note(hits(overlap.known, keys_of([("a", "a"), ("d", "d"), ("a", "a")]), np.arange(3)), 7)
    assert [(row["split"], row["in"], row["exact"]["pair"]) for row in overlap.rows()] == [
        ("valid", "train", 1),
        ("valid-2", "train", 0),
        ("test", "train", 2),
        ("test", "valid", 2),
        ("test", "train or valid", 3),
    ]
    assert overlap.places("test")[0, 2].tolist() == [7, -1, 8, -1] and overlap.n_source == 3


def test_validation_pairs_reversed_in_training_raise_an_alarm(tmp_path):
    de, en = ([f"{word} {'abcdefgh'[n % 8] * (2 + n // 8)}" for n in range(80)] for word in ("Haus", "house"))
    reversed_pairs = [TrainingCorpus(src=write(tmp_path / "u.en", en[:40]), trg=write(tmp_path / "u.de", de[:40]))]
    valid = [line.upper() for line in de[:40]], en[:40]
    files = [TrainingCorpus(src=write(tmp_path / "t.de", de[40:]), trg=write(tmp_path / "t.en", en[40:]))]
    report = report_of(tmp_path, valid=valid, train=[*files, *reversed_pairs])
    (row,) = report["leaks"]["rows"]
    assert (row["near"]["reversed"], row["near"]["pair"], row["exact"]["reversed"]) == (40, 0, 0)
    assert any(
        "40 of 40 valid pairs (100 %" in alarm["found"] and "exchanged" in alarm["found"] for alarm in report["alarms"]
    )


def test_the_report_lists_overlapping_pairs_with_both_places(tmp_path):
    valid = ([SRC[3], "neu", SRC[5].upper()], [TRG[3], "new", TRG[5]])
    report = report_of(tmp_path, valid=valid)
    (row,) = report["leaks"]["rows"]
    assert (row["split"], row["in"], row["lines"]) == ("valid", "train", 3)
    assert row["exact"] == {"src": 1, "trg": 2, "pair": 1, "reversed": 0}
    assert row["near"] == {"src": 2, "trg": 2, "pair": 2, "reversed": 0}
    places = [(example["level"], example["place"], example["train_place"]) for example in report["leaks"]["examples"]]
    de, train = tmp_path / "v.de", tmp_path / "t.de"
    assert places == [("exact", f"{de}:1", f"{train}:4"), ("near", f"{de}:3", f"{train}:6")]
    assert report["leaks"]["examples"][1]["train_src"] == SRC[5] and report["source_in_valid_or_test"] == 1
    assert any("2 of 3 valid pairs (66.7 %; alarm above 1 %)" in alarm["found"] for alarm in report["alarms"])


@pytest.mark.parametrize("place", ["train", "train of runs/one or two"])
@pytest.mark.parametrize(
    ("n_duplicate", "n_leaked", "n_alarm"),
    [(0, 0, 0), (0, 1, 0), (0, 10, 0), (0, 11, 1), (300, 496, 0), (300, 620, 1), (1000, 901, 1)],
)
def test_overlap_raises_an_alarm_only_above_the_share_that_duplicates_explain(place, n_duplicate, n_leaked, n_alarm):
    part = {"src": n_leaked, "trg": n_leaked, "pair": n_leaked}
    row = {"split": "valid", "in": place, "lines": 1000, "exact": part, "near": part}
    facts = {"read": 1000, "kept": 1000, "dropped": {}, "leaks": {"rows": [row]}, "duplicates": {"again": n_duplicate}}
    assert sum(bool(advice) for _, advice in findings(facts, ("de", "en"))) == n_alarm


def test_places_name_the_right_file_of_a_set_of_several(tmp_path):
    known = [(SRC[k], TRG[k]) for k in (3, 8)]
    files = {
        lang: [write(tmp_path / f"{name}.{lang}", lines) for name, lines in (("one", lines[:2]), ("two", lines[2:]))]
        for lang, lines in zip(("de", "en"), zip(("neu", "new"), *known, ("x", "y"), strict=True), strict=True)
    }
    rows = [f"{src}\t{trg}" for src, trg in [("a", "b"), ("neu", "new"), (SRC[40], TRG[40])]]
    valid = [
        ValidationSet(src=files["de"], trg=files["en"]),
        ValidationSet(file=write(tmp_path / "four.tsv", rows), src_column="a", trg_column="b", name="tsv"),
    ]
    report = report_of(tmp_path, valid=valid, test=CorpusFiles(src=files["de"][::-1], trg=files["en"][::-1]))
    for example in report["leaks"]["examples"]:
        file, _, line = example["place"].rpartition(":")
        text = Path(file).read_text(encoding="utf-8").split("\n")[int(line) - 1]
        assert text == (f"{example['src']}\t{example['trg']}" if file.endswith("tsv") else example["src"])
    places = [Path(example["place"]).name for example in report["leaks"]["examples"]]
    assert places == ["one.de:2", "two.de:1", "four.tsv:3", "two.de:1", "one.de:2"]
    splits = [(entry["split"], Path(entry["src"]).name, entry["pairs"]) for entry in report["alignment"]]
    assert splits == [
        *[("valid", "one.de", 2), ("valid", "two.de", 2), ("valid-tsv", "four.tsv", 2)],
        *[("test", "two.de", 2), ("test", "one.de", 2), ("train", "t.de", 200)],
    ]
    assert any("4 of 4 test pairs are in the validation pairs" in text for text in report["warnings"])


def test_duplicate_counts_equal_a_reference_count_with_little_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(dedup, "_AT_ONCE", 40)
    monkeypatch.setattr(dedup, "_READ", 17)
    rng = random.Random(1)
    pairs = [(rng.randrange(40), rng.randrange(5)) for _ in range(300)]
    scrambled = [(a * 0x9E3779B97F4A7C15 % 2**64, b) for a, b in pairs]
    (tmp_path / "pairs").write_bytes(np.array(scrambled, PAIR).tobytes())
    found = count_duplicates(tmp_path / "pairs")
    counts = Counter(pairs)
    assert found["pairs"] == 300 - len(counts)
    assert found["sources"] == sum(n > 1 for n in Counter(a for a, _ in counts).values())
    assert found["targets"] == sum(n > 1 for n in Counter(b for _, b in counts).values())
    most_frequent = sorted(((pairs.index(pair), n) for pair, n in counts.items()), key=lambda item: (-item[1], item[0]))
    assert found["most"] == most_frequent[:5]


def test_subword_statistics_count_words_only_in_languages_with_spaces(tmp_path, monkeypatch):
    monkeypatch.setattr(keep, "N_PAIR", 7)
    subwords = report_of(tmp_path, min_script=0.0, src_lang="jpn", trg_lang="en")["subwords"]
    assert not {"words", "pieces_per_word"} & subwords["src"].keys()
    assert subwords["trg"]["words"] == len(" ".join(TRG).split())
    use = subwords["joint"]
    assert use["size"] == 317 and 0 < use["occur"] < 317


def test_examples_of_dropped_pairs_are_truncated(tmp_path):
    report = report_of(tmp_path, [*SRC, "x" * 3000, "OK"], [*TRG, "y", "OK"])
    (truncated,) = report["examples"]["length ratio"]
    assert truncated["place"].endswith("t.de:201") and 100 < len(truncated["src"]) <= 200 and truncated["trg"] == "y"
    assert report["examples"]["identical sides"] == [{"place": f"{tmp_path / 't.de'}:202", "src": "OK", "trg": "OK"}]


def test_misaligned_lines_raise_alarms_with_file_and_line(tmp_path):
    src, trg = synthetic_corpus(600)
    shifted = [*trg[:300], trg[5], *trg[300:599]]
    valid_src = [write(tmp_path / f"{n}.de", src) for n in range(2)]
    valid_trg = [write(tmp_path / "0.en", trg), write(tmp_path / "1.en", shifted)]
    sets = [ValidationSet(src=valid_src, trg=valid_trg)]
    alarms = report_of(tmp_path, src, shifted, valid=sets, max_ratio=50.0)["alarms"]
    alarms = [alarm for alarm in alarms if "misaligned" in alarm["found"]]
    for alarm, name in zip(alarms, ("1.de", "t.de"), strict=True):
        assert re.search(rf"{name}:30\d: lines 30\d to 600, line n of .*{name} goes with line n\+1 of ", alarm["found"])
        assert "repair them and prepare again" in alarm["advice"]


def test_shown_pairs_are_decoded_from_stored_ids(tmp_path):
    lines = [line for line in AWKWARD if line.strip() and not line.startswith("\ufeff") and len(line) < 100] * 2
    prepare(recipe_in(tmp_path, lines, lines, **NO_FILTERS), tmp_path / "out")
    shown = list(show_pairs(tmp_path / "out", 1000))
    texts = [line.removeprefix("  src text    ") for line in shown if line.startswith("  src text    ")]
    assert texts == [normalised(line, "nfc", "unified") for line in lines]
    five = list(show_pairs(tmp_path / "out", 5))
    assert five == list(show_pairs(tmp_path / "out", 5)) and len(five) == 5 * 7


def test_an_empty_result_names_the_most_frequent_drop_reason_and_its_option(tmp_path):
    with pytest.raises(DataError) as error:
        report_of(tmp_path, [line + " und noch etwas" for line in SRC], src_lang="ru", trg_lang="en")
    de = tmp_path / "t.de"
    assert str(error.value).startswith(
        f"No training pair is left of 200: 200 dropped for another script ({de}:1, 2, 3, 4, 5): src_lang is ru, "
        f"trg_lang is en, but at {de}:1 the sides are '{SRC[0]} und noch etwas' and '{TRG[0]}'. Is --langs "
    )
    with pytest.raises(DataError) as error:
        report_of(tmp_path, ["a", "b", ""], ["a", "b", "c"])
    message = str(error.value)
    assert "left of 3: 2 dropped for identical sides (" in message and "data.drop_identical" in message
    assert "1 dropped for empty side (" in message and "\n" not in message
    assert error.value.exit_code == 3 and (tmp_path / "out.report.html").is_file() and not (tmp_path / "out").exists()
    with pytest.raises(DataError, match="left of 200: 200 dropped for too long"):
        report_of(tmp_path, max_len=1)


def test_blank_validation_pairs_are_listed_and_a_blank_set_is_refused(tmp_path):
    sides = ["ein Haus", "", "zwei", " ", *["drei"] * 3], ["a house", "b", "", "", *["three"] * 3]
    report = report_of(tmp_path, valid=sides)
    assert report["notes"]["blank"] == 3 and report["noted"]["blank"] == [f"{tmp_path / 'v.de'}:{n}" for n in (2, 3, 4)]
    assert any("3 pairs of validation or test sets have a side without text" in text for text in remarks(report))
    with pytest.raises(DataError, match=r"v\.de: none of 7 valid pairs has text on both sides"):
        report_of(tmp_path / "other", valid=(sides[0], [""] * 7))


def test_languages_without_a_known_script_are_noted(tmp_path):
    report = report_of(tmp_path, src_lang="x-made", trg_lang="und")
    assert report["notes"]["language"] == 2 and report["noted"]["language"] == ["x-made", "und"]
    assert any("no script is known for 2 languages" in text and "x-made, und" in text for text in remarks(report))
    for name, options in {"known": {"src_lang": "german"}, "off": {"src_lang": "und", "min_script": 0.0}}.items():
        assert "language" not in report_of(tmp_path / name, **options)["notes"]


def test_a_vocabulary_too_large_for_its_corpus_is_noted_unless_reused(tmp_path):
    messages = []
    prepare(recipe_in(tmp_path), tmp_path / "out", talk=messages.append)
    data = Prepared.open(tmp_path / "out")
    n_token = int(data.train.trg_len.sum()) + data.train.n_pair
    advice = [line.removeprefix("note: ") for line in messages if "vocabulary is large" in line]
    assert advice == [large_vocabulary(data.subwords.trg.size, n_token)]
    prepare(recipe_in(tmp_path, vocab_from=str(tmp_path / "out")), tmp_path / "more", talk=messages.append)
    assert sum("vocabulary is large" in line for line in messages) == 1
    assert large_vocabulary(100, 2000) is None
    assert large_vocabulary(8000, 30_000).endswith(": try --vocab-size 1000")
    assert large_vocabulary(320, 2000).endswith(" times on average"), "a larger vocabulary is no advice"


def test_overlap_with_the_data_of_the_initial_run_is_counted_or_unknown(tmp_path):
    report_of(tmp_path / "base")
    base = tmp_path / "base" / "out"
    other = [f"ganz anders {chr(97 + n % 26) * (n // 26 + 2)}" for n in range(200)]
    valid, subwords = (SRC[:40], TRG[:40]), base / "subwords.json"
    report = report_of(tmp_path / "new", other, other[::-1], vocab_from=str(subwords), valid=valid)
    (row,) = (row for row in report["leaks"]["rows"] if row["in"] == f"train of {base}")
    assert row["near"]["pair"] == 40
    (checkpoint := tmp_path / "run" / "checkpoints" / "update-00000001").mkdir(parents=True)
    write_recipe(recipe_in(tmp_path / "base", SRC, TRG), tmp_path / "run" / "recipe.yaml")
    recorded = {"folder": str(base), "train": Prepared.open(base).train.fingerprint, "subwords": ""}
    held_out = Leaks({"valid": overlap_keys(Block(SRC[:40]), Block(TRG[:40]))})
    for change, expected in (
        ({}, ""),
        ({"train": "0"}, "holds other pairs"),
        ({"train": None}, "holds other pairs"),
        ({"folder": "gone"}, "no such folder"),
    ):
        (checkpoint / "manifest.json").write_text("{}")
        (tmp_path / "run" / "data.json").write_text(json.dumps({**recorded, **change}))
        rows, unknown = overlap_with_bases([tmp_path / "run", checkpoint], held_out)
        assert [row["near"]["pair"] for row in rows] == ([] if expected else [40])
        assert [f"{tmp_path / 'run'} (" in text and expected in text for text in unknown] == (
            [True] if expected else []
        )
    assert any("40 of 40 valid pairs" in alarm["found"] and str(base) in alarm["found"] for alarm in report["alarms"])
