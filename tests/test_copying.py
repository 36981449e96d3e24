"""End to end: small models learn to copy, in any batch alike, and reproduce items never seen in training."""

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


def trained(folder, pairs_of, **sections):
    """Return a run trained for 100 updates. pairs_of: {split: pairs}."""
    files = {split: {side: str(folder / f"{split}.{side}") for side in ("src", "trg")} for split in pairs_of}
    for split, pairs in pairs_of.items():
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
    return [output.text for output in Translator(model, run.subwords(), config).translate(lines)]


def some_lines(n, seed):
    rng = random.Random(seed)
    return [" ".join(rng.choices("abcdefghijklmnop", k=rng.randint(3, 9))) for _ in range(n)]


@pytest.fixture(scope="module")
def copier(tmp_path_factory):
    """Run with about 35 lines per update: confident enough that rounding changes no output."""
    pairs_of = {split: [(line, line) for line in some_lines(n, n)] for split, n in (("train", 4000), ("valid", 20))}
    sections = {"data": {"drop_identical": False}, "subwords": {"vocab_size": 296}, "batch": {"max_tokens": 300}}
    sections |= {"model": {"n_dec_layer": 2, "emb_init": "normal"}, "optim": {"schedule": "cosine", "warmup": 30}}
    return trained(tmp_path_factory.mktemp("copy"), pairs_of, **sections)


def test_model_learns_to_copy(copier):
    lines = some_lines(200, 3)
    assert sum(a == b for a, b in zip(translate(copier, lines, beam=1), lines, strict=True)) >= 196


@pytest.mark.parametrize("beam", [1, 4])
def test_translations_do_not_depend_on_batching_or_order(copier, beam):
    lines = [*some_lines(25, 4), *("q r a b", "abc abc", "a " * 14, "Ü", "a a a a a a")]
    alone = translate(copier, lines, beam=beam, max_tokens=1)
    for per_batch in (7, 64):
        # A line has one subword per letter and EOS, so that about per_batch lines fit.
        assert translate(copier, lines, beam=beam, max_tokens=per_batch * beam * 8) == alone
        assert translate(copier, lines[::-1], beam=beam, max_tokens=per_batch * beam * 8, window=31) == alone[::-1]


def pairs_with_items(n, seed, letters, digits):
    """Yield pairs: up to three source words are followed by an item, which precedes the word in the target."""
    rng = random.Random(seed)
    for _ in range(n):
        words = rng.choices("abcdefghij", k=rng.randint(3, 6))
        positions = rng.sample(range(len(words)), rng.randint(0, 3))
        items_after = []
        for position in range(len(words)):
            name, number = "".join(rng.choices(letters, k=5)), "".join(rng.choices(digits, k=3))
            items = (f"http://{name}.org/{number}", f"{name}@{name}.org", f"{number} km", f"<{name}>")
            items_after.append(rng.choice([*items, f"{name[:2].upper()}-{number}"]) if position in positions else "")
        words_and_items = list(zip(words, items_after, strict=True))
        yield (
            " ".join(f"{word} {item}".rstrip() for word, item in words_and_items),
            " ".join(f"{item} {word.upper()}".lstrip() for word, item in words_and_items),
        )


def test_unseen_items_are_copied_to_their_place_in_the_translation(tmp_path):
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
    outputs = translate(run, src, beam=1)
    expected, copied = (
        Counter(item for text in texts for _, item in items_in(text, PROTECT)) for texts in (trg, outputs)
    )
    assert (expected & copied).total() >= 0.97 * expected.total() > 200
    assert sum(a == b for a, b in zip(trg, outputs, strict=True)) >= 180
