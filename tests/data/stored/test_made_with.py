"""Data that was prepared with other options, or the same options written otherwise."""

from nmt.data.manifest import changed_settings, settings_of
from nmt.recipe.options import Recipe

FILES = [{"src": f"{n}.de", "trg": f"{n}.en"} for n in range(3)]


def recipe_of(train, **data):
    """A recipe of as many corpora as there are options of their own."""
    data["train"] = [{**files, **own} for files, own in zip(FILES, train, strict=False)]
    return Recipe.model_validate({"name": "t", "data": data})


def test_an_option_of_a_corpus_counts_where_it_differs_from_that_of_all():
    plain, same = (settings_of(recipe_of([{}, own])) for own in ({}, {"max_ratio": 4.0, "src_lang": "und"}))
    assert changed_settings(plain, same) == []
    assert not [name for name in same["data"] if name.startswith("train")], "as before corpora had their own"
    other = settings_of(recipe_of([{}, {"max_ratio": 3.0, "src_lang": "ru", "tags": ["bt"]}]))
    tags, *changed = changed_settings(plain, other)
    assert tags.startswith("data.tags.train: ")
    assert changed == ["data.train.1.max_ratio: None there, 3.0 here", "data.train.1.src_lang: None there, 'ru' here"]


def test_data_made_with_other_codes_of_its_languages_are_the_same():
    recipe = recipe_of(train=[{"src_lang": "nl"}, {"trg_lang": "ja"}], src_lang="de", trg_lang="und")
    there = settings_of(recipe)
    data = {**there["data"], "src_lang": "german", "trg_lang": "trg", "train.0.src_lang": "nld_Latn"}
    data["tags"] = {split: [[tag.replace("und", "trg").replace("ja", "jpn") for tag in each] for each in corpora]
                    for split, corpora in data["tags"].items()}  # fmt: skip
    assert "<2jpn>" in str(data["tags"]) and changed_settings({**there, "data": data}, there) == []
    gone = {"max_ratio_spread": 6.0, "train.0.max_ratio_spread": 5.0}  # it filtered what is there already
    assert changed_settings({**there, "data": {**data, **gone}}, there) == []
    assert changed_settings({**there, "data": {**data, "src_lang": "jp"}}, there) == [
        "data.src_lang: 'jp' there, 'de' here"
    ]
