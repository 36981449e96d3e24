"""Stored options compared with those of a recipe: real changes are found, other spellings are none."""

from nmt.data.manifest import changed_settings, settings_of
from nmt.recipe.options import Recipe

FILES = [{"src": f"{n}.de", "trg": f"{n}.en"} for n in range(3)]


def recipe_of(train, **data):
    """Recipe with a corpus for each dict of corpus options in `train`."""
    data["train"] = [{**files, **options} for files, options in zip(FILES, train, strict=False)]
    return Recipe.model_validate({"name": "t", "data": data})


def test_corpus_option_counts_only_where_it_differs_from_the_general_one():
    plain, same = (settings_of(recipe_of([{}, options])) for options in ({}, {"max_ratio": 4.0, "src_lang": "und"}))
    assert changed_settings(plain, same) == []
    assert not [name for name in same["data"] if name.startswith("train")], "as before corpora had their own"
    other = settings_of(recipe_of([{}, {"max_ratio": 3.0, "src_lang": "ru", "tags": ["bt"]}]))
    tags, *changed = changed_settings(plain, other)
    assert tags.startswith("data.tags.train: ")
    assert changed == [
        "data.train.1.max_ratio: None in the folder, 3.0 in the recipe",
        "data.train.1.src_lang: None in the folder, 'ru' in the recipe",
    ]


def test_other_spellings_of_language_codes_are_no_change():
    recipe = recipe_of(train=[{"src_lang": "nl"}, {"trg_lang": "ja"}], src_lang="de", trg_lang="und")
    stored = settings_of(recipe)
    data = {**stored["data"], "src_lang": "german", "trg_lang": "trg", "train.0.src_lang": "nld_Latn"}
    data["tags"] = {split: [[tag.replace("und", "trg").replace("ja", "jpn") for tag in tags] for tags in corpora]
                    for split, corpora in data["tags"].items()}  # fmt: skip
    assert "<2jpn>" in str(data["tags"]) and changed_settings({**stored, "data": data}, stored) == []
    removed = {"max_ratio_spread": 6.0, "train.0.max_ratio_spread": 5.0}  # options that no longer exist
    assert changed_settings({**stored, "data": {**data, **removed}}, stored) == []
    assert changed_settings({**stored, "data": {**data, "src_lang": "jp"}}, stored) == [
        "data.src_lang: 'jp' in the folder, 'de' in the recipe"
    ]
