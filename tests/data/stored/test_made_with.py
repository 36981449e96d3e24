"""Stored options compared with those of a recipe."""

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
