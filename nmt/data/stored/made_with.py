"""The flags by which a recipe asks for the data that a folder was made with, for whoever wants to train on it."""

import json
import shlex
from collections.abc import Iterator
from typing import Any

from nmt.data.stored.manifest import changes_of_settings, settings_known, settings_of
from nmt.data.text.split_names import split_of
from nmt.data.text.tags import told_language
from nmt.recipe.data_options import DataConfig, TrainingCorpus
from nmt.recipe.fields import all_fields
from nmt.recipe.filter_options import FilterConfig
from nmt.recipe.options import Recipe
from nmt.recipe.tag_options import Tagged

# An option of a corpus beside its files, and its value; None: as the section `data` has it.
_Own = Iterator[tuple[str, Any]]


def flags_of_settings(there: dict[str, Any], recipe: Recipe) -> tuple[str, set[str]]:
    """The flags that make `settings_of` a recipe what is `there`, as one gives them to a shell; and those names of
    `changed_settings` that they settle. No flag settles what belongs to a corpus that the recipe does not have.
    """
    here = settings_of(recipe)
    changed, data = changes_of_settings(there, here), settings_known(there, here)["data"]
    have_flags = {field.name for field in all_fields() if not field.inner}
    settled = {name for name in changed if name in have_flags}
    found = {name: changed[name][0] for name in changed if name in settled}
    for n, own in enumerate(recipe.data.train):
        place = f"data.train.{n}"
        settled |= {f"{place}.{option}" for option in TrainingCorpus.model_fields} & changed.keys()
        found |= {f"{place}.{option}": value for option, value in _own(own, data, f"train.{n}.")}
    n_lang = len({own.trg_lang or data["trg_lang"] for own in recipe.data.train})
    for split, places, wanted in _tagged(recipe.data, data["tags"]):
        settled |= {f"data.tags.{split}"} & changed.keys()
        # Where no tag tells a language, there was one.
        one_lang = split == "train" and n_lang > 1 and not any(map(_languages, wanted))
        for (place, files), tags in zip(places, wanted, strict=True):
            found |= {f"{place}.{option}": value for option, value in _tags(files, tags, data["trg_lang"], one_lang)}
    return " ".join(f"--{name} {shlex.quote(_written(value))}" for name, value in found.items()), settled


def _own(own: TrainingCorpus, data: dict[str, Any], place: str) -> _Own:
    """Yield what a training corpus has to say otherwise. data: the section as it was there; place: its corpus."""
    for name in FilterConfig.model_fields:
        mine, wanted = getattr(own, name), data.get(place + name)
        if (data[name] if mine is None else mine) != (data[name] if wanted is None else wanted):
            yield name, wanted
    src_lang = data.get(f"{place}src_lang", data["src_lang"])
    if (own.src_lang or data["src_lang"]) != src_lang:
        yield "src_lang", src_lang
    if own.drop_flagged != (drops := data.get(f"{place}drop_flagged", False)):
        yield "drop_flagged", drops


def _tagged(
    data: DataConfig, there: dict[str, list[list[str]]]
) -> Iterator[tuple[str, list[tuple[str, Tagged]], list[list[str]]]]:
    """Each split of a recipe, its corpora by their places, and the tags that each had there.

    A split that was not there, or had other corpora, is left out.
    """
    splits: dict[str, list[tuple[str, Tagged]]] = {
        "train": [(f"data.train.{n}", files) for n, files in enumerate(data.train)],
        **{split_of(files.name): [(f"data.valid.{n}", files)] for n, files in enumerate(data.valid)},
    }
    if data.test:
        splits["test"] = [("data.test", data.test)]
    for split, places in splits.items():
        wanted = there.get(split, []) if there else [[]] * len(places)
        if len(wanted) == len(places):
            yield split, places, wanted


def _tags(files: Tagged, wanted: list[str], trg_lang: str, one_lang: bool) -> _Own:
    """Yield what a corpus has to say to have these tags. one_lang: all corpora have to be in the usual language."""
    if files.tags != (tags := [tag.strip("<>") for tag in wanted if not told_language(tag)]):
        yield "tags", tags
    for lang in [trg_lang] if one_lang else _languages(wanted):
        if (files.trg_lang or trg_lang) != lang:
            yield "trg_lang", lang


def _languages(tags: list[str]) -> list[str]:
    return [lang for tag in tags if (lang := told_language(tag))]


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
