"""Data that was prepared with other options: the flags that nmt-train is told are those that it takes."""

import shlex

import pytest

from nmt.data.manifest import changed_settings, flags_of_settings, settings_of
from nmt.recipe.options import Recipe
from nmt.recipe.reader import read_recipe, write_recipe

FILES = [{"src": f"{n}.de", "trg": f"{n}.en"} for n in range(3)]
JSON = {"src": None, "trg": None, "file": "some.jsonl", "src_column": "translation", "trg_column": "source"}
TAGGED = {"train": [{"tags": ["bt", "news"], "trg_lang": "fr"}, {}], "valid": {"trg_lang": "fr"}, "test": {}}


def recipe_of(train=(), valid=None, test=None, subwords=None, **data):
    """A recipe of as many corpora as there are options of their own."""
    data["train"] = [{**files, **own} for files, own in zip(FILES, train, strict=False)]
    data |= {name: {**FILES[0], **own} for name, own in (("valid", valid), ("test", test)) if own is not None}
    return Recipe.model_validate({"name": "t", "data": data, "subwords": subwords or {}})


@pytest.mark.parametrize(
    ("there", "here", "told"),
    [
        (
            {"subwords": {"vocab_from": "runs/my mine"}, "min_script": 0.5, "src_lang": "de"},
            {"src_lang": "no"},
            "--data.src_lang de --data.min_script 0.5 --subwords.vocab_from 'runs/my mine'",
        ),
        ({}, {"subwords": {"vocab_from": "runs/mine"}}, "--subwords.vocab_from ''"),
        ({"train": [{}, {"max_ratio": 3.0}]}, {"train": [{}, {}]}, "--data.train.1.max_ratio 3.0"),
        ({"train": [{}]}, {"train": [{"max_ratio": 3.0}]}, "--data.train.0.max_ratio null"),
        ({"train": [{"drop_identical": False}]}, {"train": [{}]}, "--data.train.0.drop_identical false"),
        ({"train": [{**JSON, "drop_flagged": True}]}, {"train": [JSON]}, "--data.train.0.drop_flagged true"),
        ({"train": [JSON]}, {"train": [{**JSON, "drop_flagged": True}]}, "--data.train.0.drop_flagged false"),
        ({"train": [{"src_lang": "nl"}]}, {"train": [{}]}, "--data.train.0.src_lang nl"),
        ({"train": [{}], "src_lang": "de"}, {"train": [{"src_lang": "no"}]}, None),
        # A corpus's own option that only differs from that of all once that is another.
        ({"train": [{}], "max_ratio": 5.0}, {"train": [{"max_ratio": 4.0}]}, None),
        ({"train": [{"max_ratio": 4.0}, {}], "max_ratio": 5.0}, {"train": [{}, {"max_ratio": 5.0}]}, None),
        ({"train": [{"max_ratio": 4.0}]}, {"train": [{}], "max_ratio": 3.0}, None),
        (TAGGED, {"train": [{}, {}], "valid": {}, "test": {}}, None),
        ({"train": [{}, {}], "valid": {}, "test": {}}, TAGGED, None),
        ({"train": [{"trg_lang": "fr"}] * 2, "trg_lang": "en"}, {"train": [{"trg_lang": "no"}, {}]}, None),
        ({**TAGGED, "trg_lang": "no"}, {**TAGGED, "trg_lang": "en"}, None),
        ({"train": [{"tags": ["bt"]}]}, {"train": [{"tags": ["other"]}]}, "--data.train.0.tags '[\"bt\"]'"),
    ],
)
def test_with_the_flags_that_are_told_a_recipe_asks_for_the_data_that_is_there(there, here, told, tmp_path):
    there, recipe = settings_of(recipe_of(**there)), recipe_of(**here)
    names = {one.partition(": ")[0] for one in changed_settings(there, settings_of(recipe))}
    flags, settled = flags_of_settings(there, recipe)
    assert names and settled == names
    assert told is None or flags == told
    write_recipe(recipe, tmp_path / "recipe.yaml")
    words = shlex.split(flags)
    overrides = [(flag.removeprefix("--"), value) for flag, value in zip(words[::2], words[1::2], strict=True)]
    assert changed_settings(there, settings_of(read_recipe(tmp_path / "recipe.yaml", overrides))) == []


def test_what_belongs_to_corpora_that_the_recipe_does_not_have_is_settled_by_no_flag():
    there = settings_of(recipe_of(train=[{}, {"max_ratio": 3.0, "tags": ["bt"]}], max_len=99))
    recipe = recipe_of(train=[{}])
    assert flags_of_settings(there, recipe) == ("--data.max_len 99", {"data.max_len"})
    assert flags_of_settings({**there, "data": {**there["data"], "train.0.unknown": 1}}, recipe)[1] == {"data.max_len"}


def test_data_made_with_other_codes_of_its_languages_are_the_same():
    recipe = recipe_of(train=[{"src_lang": "nl"}, {"trg_lang": "ja"}], src_lang="de", trg_lang="und")
    there = settings_of(recipe)
    data = {**there["data"], "src_lang": "german", "trg_lang": "trg", "train.0.src_lang": "nld_Latn"}
    data["tags"] = {split: [[tag.replace("und", "trg").replace("ja", "jpn") for tag in each] for each in corpora]
                    for split, corpora in data["tags"].items()}  # fmt: skip
    assert "<2jpn>" in str(data["tags"]) and changed_settings({**there, "data": data}, there) == []
    assert changed_settings({**there, "data": {**data, "src_lang": "jp"}}, there) == [
        "data.src_lang: 'jp' there, 'de' here"
    ]
