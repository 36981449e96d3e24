"""The whole road once: a small model learns to copy, and its translations do not depend on how they are batched."""

import random

import pytest
import torch

from nmt.data.prepare import prepare
from nmt.decoding.translator import Translator
from nmt.recipe.options import Recipe
from nmt.run import Run
from nmt.training.launch import launch

LETTERS = "abcdefghijklmnop"


def some_lines(n, seed):
    draw = random.Random(seed)
    return [" ".join(draw.choices(LETTERS, k=draw.randint(3, 9))) for _ in range(n)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of 100 updates of 35 lines or so: sure enough of itself that rounding decides nothing."""
    folder = tmp_path_factory.mktemp("copy")
    files = {}
    for name, n, seed in (("train", 4000, 1), ("valid", 20, 2)):
        text = "".join(line + "\n" for line in some_lines(n, seed))
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
        files[name] = {"src": str(folder / name), "trg": str(folder / name)}
    recipe = Recipe.model_validate(
        {
            "name": "copy",
            "seed": 1,
            "data": {**files, "drop_identical": False, "out": str(folder / "prepared")},
            "subwords": {"vocab_size": 296},
            "model": {
                "d_model": 64,
                "d_inner": 128,
                "n_enc_layer": 1,
                "n_dec_layer": 2,
                "n_head": 4,
                "dropout": 0.0,
                "norm": "pre",
                "position": "rotary",
                "rotary_enc_attn": True,
                "scale_emb_or_prj": "emb",
                "emb_init": "normal",
            },
            "batch": {"max_tokens": 300},
            "optim": {"lr": 3e-3, "schedule": "cosine", "warmup": 30, "clip": 1.0},
            "train": {"out": str(folder / "run"), "updates": 100, "precision": "fp32", "threads": 1},
            "valid": {"every": 1000, "translate": False, "metric": "loss"},
        }
    )
    prepare(recipe, recipe.data_folder)
    assert launch(recipe) == "done"
    return Run(recipe.run_folder)


def translate(run, lines, **decode):
    model, _ = run.load_model(torch.device("cpu"))
    config = run.recipe().decode.model_copy(update=decode)
    return [one.text for one in Translator(model, run.subwords(), config).translate(lines)]


def test_it_learns_to_copy(run):
    lines = some_lines(200, 3)
    right = sum(a == b for a, b in zip(translate(run, lines, beam=1), lines, strict=True))
    assert right >= 196


@pytest.mark.parametrize("beam", [1, 4])
def test_translations_are_the_same_bytes_alone_in_batches_and_in_any_order(run, beam):
    lines = [*some_lines(25, 4), *("q r a b", "abc abc", "a " * 14, "Ü", "a a a a a a")]
    alone = translate(run, lines, beam=beam, max_tokens=1)
    for per_batch in (7, 64):
        # A line of letters has as many subwords and EOS, so that about so many fit.
        assert translate(run, lines, beam=beam, max_tokens=per_batch * beam * 8) == alone
        assert translate(run, lines[::-1], beam=beam, max_tokens=per_batch * beam * 8, window=31) == alone[::-1]
