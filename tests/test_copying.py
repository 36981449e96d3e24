"""The whole road: small models learn to copy, alike in any batch, and bring back items that they have never seen."""

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

PROTECT = (*KINDS, "/[A-Z]{2}-[0-9]{3}/")
MODEL = {
    "d_model": 64, "d_inner": 128, "n_enc_layer": 1, "n_head": 4, "dropout": 0.0, "norm": "pre", "position": "rotary",
    "rotary_enc_attn": True, "scale_emb_or_prj": "emb",
}  # fmt: skip


def trained(folder, made, **sections):
    """A run of 100 updates on pairs. made: {split: pairs}."""
    files = {split: {side: str(folder / f"{split}.{side}") for side in ("src", "trg")} for split in made}
    for split, pairs in made.items():
        for side, lines in zip(("src", "trg"), zip(*pairs, strict=True), strict=True):
            (folder / f"{split}.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    tree = {
        "name": "copy",
        "data": {**files, "out": str(folder / "prepared"), "workers": 1, **sections["data"]},
        "subwords": sections["subwords"],
        "model": {**MODEL, **sections["model"]},
        "batch": sections["batch"],
        "optim": {"lr": 3e-3, "clip": 1.0, **sections["optim"]},
        "train": {"out": str(folder / "run"), "updates": 100, "precision": "fp32", "threads": 1},
        "valid": {"every": 1000, "translate": False, "metric": "loss"},
    }
    recipe = Recipe.model_validate(tree)
    prepare(recipe, recipe.data_folder, talk=lambda _: None)
    assert launch(recipe) == "done"
    return Run(recipe.run_folder)


def translate(run, lines, **decode):
    model, _ = run.load_model(torch.device("cpu"))
    config = run.recipe().decode.model_copy(update=decode)
    return [one.text for one in Translator(model, run.subwords(), config).translate(lines)]


def some_lines(n, seed):
    draw = random.Random(seed)
    return [" ".join(draw.choices("abcdefghijklmnop", k=draw.randint(3, 9))) for _ in range(n)]


@pytest.fixture(scope="module")
def copier(tmp_path_factory):
    """A run on 35 lines or so an update: sure enough of itself that rounding decides nothing."""
    made = {split: [(line, line) for line in some_lines(n, n)] for split, n in (("train", 4000), ("valid", 20))}
    how = {"data": {"drop_identical": False}, "subwords": {"vocab_size": 296}, "batch": {"max_tokens": 300}}
    how |= {"model": {"n_dec_layer": 2, "emb_init": "normal"}, "optim": {"schedule": "cosine", "warmup": 30}}
    return trained(tmp_path_factory.mktemp("copy"), made, **how)


def test_it_learns_to_copy(copier):
    lines = some_lines(200, 3)
    assert sum(a == b for a, b in zip(translate(copier, lines, beam=1), lines, strict=True)) >= 196


@pytest.mark.parametrize("beam", [1, 4])
def test_translations_are_the_same_bytes_alone_in_batches_and_in_any_order(copier, beam):
    lines = [*some_lines(25, 4), *("q r a b", "abc abc", "a " * 14, "Ü", "a a a a a a")]
    alone = translate(copier, lines, beam=beam, max_tokens=1)
    for per_batch in (7, 64):
        # A line of letters has as many subwords and EOS, so that about so many fit.
        assert translate(copier, lines, beam=beam, max_tokens=per_batch * beam * 8) == alone
        assert translate(copier, lines[::-1], beam=beam, max_tokens=per_batch * beam * 8, window=31) == alone[::-1]


def pairs_with_items(n, seed, letters, digits):
    """Words with up to three items after them, which stand before them in the translation."""
    draw = random.Random(seed)
    for _ in range(n):
        words = draw.choices("abcdefghij", k=draw.randint(3, 6))
        places = draw.sample(range(len(words)), draw.randint(0, 3))
        beside = []
        for place in range(len(words)):
            name, number = "".join(draw.choices(letters, k=5)), "".join(draw.choices(digits, k=3))
            items = (f"http://{name}.org/{number}", f"{name}@{name}.org", f"{number} km", f"<{name}>")
            beside.append(draw.choice([*items, f"{name[:2].upper()}-{number}"]) if place in places else "")
        both = list(zip(words, beside, strict=True))
        yield (
            " ".join(f"{word} {its}".rstrip() for word, its in both),
            " ".join(f"{its} {word.upper()}".lstrip() for word, its in both),
        )


def test_items_that_never_occurred_come_back_where_the_translation_has_them(tmp_path):
    run = trained(
        tmp_path,
        {split: list(pairs_with_items(n, n, "klmnop", "1234")) for split, n in (("train", 3000), ("valid", 20))},
        data={"alarms": "warn", "protect": PROTECT},
        subwords={"vocab_size": 380},
        model={"n_dec_layer": 1, "emb_init": "cooccurrence"},
        batch={"max_tokens": 400},
        optim={"name": "muon", "muon_lr": 1e-2, "schedule": "linear", "warmup": 20},
    )
    src, trg = zip(*pairs_with_items(200, 3, "uvwxyz", "56789"), strict=True)
    found = translate(run, src, beam=1)
    wanted, there = (Counter(item for text in texts for _, item in items_in(text, PROTECT)) for texts in (trg, found))
    assert (wanted & there).total() >= 0.97 * wanted.total() > 200
    assert sum(a == b for a, b in zip(trg, found, strict=True)) >= 180
