"""The filters in nmt-preprocess: what it drops and tells, and folders that were made before there were filters."""

import json

import numpy as np
import pytest

from nmt.data.manifest import changed_settings, later_filters, settings_of
from nmt.data.prepare import prepare
from nmt.errors import DataError
from nmt.recipe.data_options import DataConfig, FilterConfig, SubwordsConfig, TrainingCorpus, ValidationSet
from nmt.recipe.options import Recipe

NEW = FilterConfig.model_fields.keys() - {"max_ratio", "drop_identical", "drop_duplicates"}


def write(path, lines):
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    return str(path)


def recipe_in(folder, corpora, valid=(("gültig",), ("valid",)), **data):
    train = [
        TrainingCorpus(src=write(folder / f"{name}.de", src), trg=write(folder / f"{name}.en", trg))
        for name, (src, trg) in corpora.items()
    ]
    sets = [ValidationSet(src=write(folder / "v.de", valid[0]), trg=write(folder / "v.en", valid[1]))]
    config = DataConfig(src_lang="de", trg_lang="en", train=train, valid=sets, alarms="warn", workers=1, **data)
    return Recipe(name="test", data=config, subwords=SubwordsConfig(vocab_size=300))


GOOD = [
    f"Satz {word} über Hunde" for word in ("eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun")
]
BAD = ["ein\x00Hund", "fÃ¼r", "собаки громко лают", "12 34 56 78 90 12 34 56 78 90", "ja " * 20]
REASONS = ["control characters", "damaged text", "another script", "mostly symbols", "repeats itself"]


def report_of(folder):
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))


def test_every_drop_has_its_reason_and_place_and_held_out_lines_stay(tmp_path):
    trg = [f"{line} in English" for line in GOOD]
    recipe = recipe_in(tmp_path, {"t": ([*GOOD, *BAD], [*trg, *(["a rather short line of text"] * 5)])}, (BAD, BAD))
    manifest = prepare(recipe, tmp_path / "out", talk=lambda line: None)
    assert manifest["n_pair"] == {"train": len(GOOD), "valid": len(BAD)}
    dropped = report_of(tmp_path / "out")["dropped"]
    assert report_of(tmp_path / "out")["notes"] == {"control": 2}, "of the two held-out lines: only those were kept"
    expected = {reason: [f"{tmp_path / 't.de'}:{len(GOOD) + n}"] for n, reason in enumerate(REASONS, start=1)}
    assert {reason: of["first"] for reason, of in dropped.items()} == expected


def test_each_corpus_has_a_usual_ratio_of_its_own(tmp_path):
    """A pair that is usual in one corpus is dropped from the other."""
    rng = np.random.default_rng(1)

    def texts(n):
        return ["".join(rng.choice(list("abcdefghij klm"), size=length)) for length in n]

    lengths = rng.integers(60, 120, 50)
    short, long = (texts(lengths), texts(lengths)), (texts(lengths), texts(3 * lengths))
    odd = texts([80]), texts([240])
    corpora = {"short": (short[0] + odd[0], short[1] + odd[1]), "long": (long[0] + odd[0], long[1] + odd[1])}
    said: list[str] = []
    prepare(recipe_in(tmp_path, corpora, max_ratio_spread=6.0, max_len=999), tmp_path / "out", talk=said.append)
    report = report_of(tmp_path / "out")
    assert report["dropped"] == {"length ratio": {"count": 1, "first": [f"{tmp_path / 'short.de'}:51"]}}
    medians = {name: round(of["median"]) for name, of in report["usual_ratio"].items()}
    assert medians == {str(tmp_path / "short.de"): 1, str(tmp_path / "long.de"): 3}
    assert any("long.de: the target has 3.0" in line for line in said)


def test_duplicates_are_found_across_corpora(tmp_path):
    trg = [f"{line} in English" for line in GOOD]
    corpora = {"a": (GOOD, trg), "b": ([GOOD[3].upper(), "Neu"], [trg[3], "new"])}
    prepare(recipe_in(tmp_path, corpora, drop_near_duplicates=True), tmp_path / "out", talk=lambda line: None)
    assert report_of(tmp_path / "out")["dropped"]["near duplicate"]["first"] == [f"{tmp_path / 'b.de'}:1"]


def older(settings):
    """Settings as they were before there were these filters."""
    return {**settings, "data": {name: value for name, value in settings["data"].items() if name not in NEW}}


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({}, []),
        ({"min_script": 0.0, "drop_control": False, "max_repeats": 0}, []),
        ({"min_script": 0.5}, ["data.min_script: 0.0 there, 0.5 here"]),
        ({"drop_near_duplicates": True}, ["data.drop_near_duplicates: False there, True here"]),
        ({"max_ratio": 3.0}, ["data.max_ratio: 4.0 there, 3.0 here"]),
    ],
)
def test_a_filter_that_was_not_known_is_a_change_where_somebody_asks_for_it(options, changed):
    there = older(settings_of(Recipe(name="test")))
    assert changed_settings(there, settings_of(Recipe(name="test", data=DataConfig(**options)))) == changed


def test_between_folders_that_know_the_filters_every_difference_counts():
    there = settings_of(Recipe(name="test"))
    here = settings_of(Recipe(name="test", data=DataConfig(min_script=0.0)))
    assert changed_settings(there, here) == ["data.min_script: 0.2 there, 0.0 here"]
    assert later_filters(there, here) == []


def test_an_older_folder_is_left_as_it_is_and_told_what_it_could_have(tmp_path):
    recipe = recipe_in(tmp_path, {"t": (GOOD, [f"{line} in English" for line in GOOD])})
    prepare(recipe, tmp_path / "out", talk=lambda line: None)
    path = tmp_path / "out" / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["settings"] = older(manifest["settings"])
    path.write_text(json.dumps(manifest), encoding="utf-8")
    said: list[str] = []
    prepare(recipe, tmp_path / "out", talk=said.append)
    assert "nothing to do" in said[0] and "data.min_script" in said[1] and "max_translations" not in said[1]
    with pytest.raises(DataError, match=r"data\.max_translations: 0 there, 5 here"):
        prepare(recipe_in(tmp_path, {"t": (GOOD, GOOD)}, max_translations=5), tmp_path / "out")
