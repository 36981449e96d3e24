"""A tiny corpus and recipe that trains in a second."""

import random

import pytest

from nmt.data.prepare import prepare
from nmt.recipe.options import Recipe

WORDS = [
    "ein",
    "der",
    "Mann",
    "Hund",
    "rot",
    "blau",
    "läuft",
    "sitzt",
    "groß",
    "klein",
    "zwei",
    "drei",
    "Haus",
    "Ball",
    "spielt",
    "im",
    "Park",
]
ENGLISH = [
    "a",
    "the",
    "man",
    "dog",
    "red",
    "blue",
    "runs",
    "sits",
    "big",
    "small",
    "two",
    "three",
    "house",
    "ball",
    "plays",
    "in",
    "park",
]
TRANSLATION = dict(zip(WORDS, ENGLISH, strict=True))


def write_pairs(folder, name, n, seed):
    draw = random.Random(seed)
    lines = [[draw.choice(WORDS) for _ in range(draw.randint(2, 9))] for _ in range(n)]
    (folder / f"{name}.de").write_text("".join(" ".join(line) + "\n" for line in lines), encoding="utf-8", newline="\n")
    english = ("".join(" ".join(TRANSLATION[word] for word in line) + "\n") for line in lines)
    (folder / f"{name}.en").write_text("".join(english), encoding="utf-8", newline="\n")
    return {"src": str(folder / f"{name}.de"), "trg": str(folder / f"{name}.en")}


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A folder prepared from 300 training and 12 validation pairs, and the part of a recipe that made it."""
    folder = tmp_path_factory.mktemp("corpus")
    data = {
        "src_lang": "de",
        "trg_lang": "en",
        "train": [write_pairs(folder, "train", 300, 1)],
        "valid": write_pairs(folder, "valid", 12, 2),
        "out": str(folder / "prepared"),
        "max_ratio": 9.0,
    }
    subwords = {"vocab_size": 320}
    prepare(Recipe.model_validate({"name": "tiny", "data": data, "subwords": subwords}), folder / "prepared")
    return {"data": data, "subwords": subwords}


MODEL = {"d_model": 16, "d_inner": 32, "n_enc_layer": 1, "n_dec_layer": 1, "n_head": 2, "dropout": 0.2, "norm": "pre"}


def make_recipe(corpus, out, **sections):
    """A recipe for a run in the folder `out`: section={option: value}, ..."""
    tree = {
        "name": "tiny",
        "seed": 3,
        **corpus,
        "model": MODEL,
        "batch": {"max_tokens": 120, "per_update": 2},
        "optim": {"lr": 3e-3, "schedule": "constant", "warmup": 5, "clip": 1.0},
        "train": {"out": str(out), "updates": 30, "save_every": 7, "log_every": 5, "precision": "fp32"},
        "valid": {"every": 10, "max_tokens": 400},
    }
    for section, options in sections.items():
        tree[section] = {**tree.get(section, {}), **options} if isinstance(options, dict) else options
    return Recipe.model_validate(tree)


@pytest.fixture
def recipe_of(corpus, tmp_path):
    """recipe_of(run name, section={option: value}, ...) -> Recipe."""
    return lambda run="run", **sections: make_recipe(corpus, tmp_path / run, **sections)
