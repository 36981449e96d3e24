"""A small model that is trained with `data.protect` brings back items that it has never seen, in another order."""

import random
from collections import Counter

import pytest
import torch

from nmt.data.placeholders import items_in
from nmt.data.prepare import prepare
from nmt.decoding.translator import Translator
from nmt.recipe.data_options import KINDS
from nmt.recipe.options import Recipe
from nmt.run import Run
from nmt.training.launch import launch

WORDS = "abcdefghij"
PROTECT = (*KINDS, "/[A-Z]{2}-[0-9]{3}/")


def item(draw, letters, digits):
    name = "".join(draw.choices(letters, k=5))
    number = "".join(draw.choices(digits, k=3))
    return draw.choice(
        [
            f"http://{name}.org/{number}",
            f"{name}@{name}.org",
            f"{number} km",
            f"<{name}>",
            f"{name[:2].upper()}-{number}",
        ]
    )


def pairs(n, seed, letters, digits):
    """Words with up to three items after them, which stand before them in the translation."""
    draw = random.Random(seed)
    for _ in range(n):
        words = draw.choices(WORDS, k=draw.randint(3, 6))
        places = draw.sample(range(len(words)), draw.randint(0, 3))
        beside = [item(draw, letters, digits) if n in places else "" for n in range(len(words))]
        src = " ".join(f"{word} {its}".rstrip() for word, its in zip(words, beside, strict=True))
        trg = " ".join(f"{its} {word.upper()}".lstrip() for word, its in zip(words, beside, strict=True))
        yield src, trg


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("items")
    files = {}
    for name, n, seed in (("train", 3000, 1), ("valid", 20, 2)):
        for side, lines in zip(("src", "trg"), zip(*pairs(n, seed, "klmnop", "1234"), strict=True), strict=True):
            (folder / f"{name}.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
        files[name] = {side: str(folder / f"{name}.{side}") for side in ("src", "trg")}
    recipe = Recipe.model_validate(
        {
            "name": "items",
            "seed": 1,
            "data": {**files, "out": str(folder / "prepared"), "alarms": "warn", "workers": 1, "protect": PROTECT},
            "subwords": {"vocab_size": 380},
            "model": {
                "d_model": 64,
                "d_inner": 128,
                "n_enc_layer": 1,
                "n_dec_layer": 1,
                "n_head": 4,
                "dropout": 0.0,
                "norm": "pre",
                "position": "rotary",
                "rotary_enc_attn": True,
                "scale_emb_or_prj": "emb",
                "emb_init": "cooccurrence",
            },
            "batch": {"max_tokens": 400, "per_update": 1},
            "optim": {"name": "muon", "muon_lr": 1e-2, "lr": 3e-3, "schedule": "linear", "warmup": 20, "clip": 1.0},
            "train": {"out": str(folder / "run"), "updates": 100, "precision": "fp32", "threads": 1},
            "valid": {"every": 1000, "translate": False, "metric": "loss"},
        }
    )
    prepare(recipe, recipe.data_folder, talk=lambda _: None)
    assert launch(recipe) == "done"
    return Run(recipe.run_folder)


def test_items_that_never_occurred_come_back_where_the_translation_has_them(run):
    made = list(pairs(200, 3, "uvwxyz", "56789"))
    model, _ = run.load_model(torch.device("cpu"))
    config = run.recipe().decode.model_copy(update={"beam": 1})
    found = [one.text for one in Translator(model, run.subwords(), config).translate([src for src, _ in made])]
    wanted, there = (
        Counter(one.text for text in texts for one in items_in(text, PROTECT))
        for texts in zip(*((trg, text) for (_, trg), text in zip(made, found, strict=True)), strict=True)
    )
    assert (wanted & there).total() >= 0.97 * wanted.total() > 200
    assert sum(trg == text for (_, trg), text in zip(made, found, strict=True)) >= 180
