"""Shipped recipes: each builds at full size, and one of each kind trains when shrunk to a tiny corpus and model."""

import pathlib

import pytest
import torch

from nmt.data.prepare import prepare
from nmt.models.build import build_model
from nmt.recipe.reader import read_recipe
from nmt.run import Run
from nmt.training.launch import launch

RECIPES = sorted((pathlib.Path(__file__).parent.parent / "recipes").glob("*.yaml"))
TRANSFORMER = [("model.d_inner", "32"), ("model.n_head", "2"), ("model.d_k", "null"), ("model.d_v", "null")]
# One of each kind: the others differ in sizes and files.
KINDS = {
    *("dates", "dates-book.attention", "dates-book.peeky"),
    *("multi30k.de-en", "multi30k.de-en.upstream", "wmt14.en-de.base"),
}


def test_known_recipes_are_shipped():
    assert {path.stem for path in RECIPES} >= KINDS | {"dates-book.seq2seq", "multi30k.en-de", "wmt14.en-de.big"}


@pytest.mark.parametrize("path", [path for path in RECIPES if path.stem in KINDS], ids=lambda path: path.stem)
def test_shrunk_recipe_trains(path, tmp_path):
    lines = [f"line {n} of a corpus , with the words {' '.join('abcdefgh'[: n % 8])} in it" for n in range(60)]
    for name in ("src", "trg"):
        (tmp_path / name).write_text("".join(f"{name} {line}\n" for line in lines), encoding="utf-8", newline="\n")
    files = f"{{src: '{(tmp_path / 'src').as_posix()}', trg: '{(tmp_path / 'trg').as_posix()}'}}"
    recipe = read_recipe(
        path,
        [
            *[(f"data.{split}", files) for split in ("train", "valid", "test")],
            ("data.out", str(tmp_path / "prepared")),
            ("data.alarms", "warn"),  # all splits are one file
            ("subwords.vocab_size", "400"),
            ("model.d_model", "16"),
            *([] if read_recipe(path).model.is_recurrent else TRANSFORMER),
            ("batch.max_tokens", "600"),
            ("optim.warmup", "1"),
            ("train.updates", "2"),
            ("train.out", str(tmp_path / "run")),
            ("valid.max_sentences", "2"),
            ("decode.max_len_a", "0"),
            ("decode.max_len_b", "2"),
        ],
    )
    prepare(recipe, recipe.data_folder)
    assert launch(recipe) == "done"
    assert Run(recipe.run_folder).updates()[-1] == 2


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_builds_at_full_size(path):
    """On torch's meta device: tensors have shapes but no memory."""
    recipe = read_recipe(path)
    n_vocab = -(-recipe.subwords.vocab_size // 8) * 8
    with torch.device("meta"):
        model = build_model(recipe.model, n_vocab, n_vocab)
    n_param = sum(p.numel() for p in model.parameters())
    expected = {"wmt14.en-de.base": 65e6, "wmt14.en-de.big": 213e6}.get(path.stem)  # table 3 of the paper
    assert expected is None or abs(n_param / expected - 1) < 0.05
