"""Run folders like those of training, made without training: for the tests of the commands."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from nmt import checkpoint
from nmt.data.subwords import PAD, Subwords
from nmt.models.build import build_model
from nmt.recipe.reader import read_recipe, write_recipe
from nmt.run import Run
from tests.learnt import learnt_subwords

OPTIONS = {
    "name": "tiny", "data.trg_lang": "en", "model.d_model": "16", "model.d_inner": "16", "model.n_head": "2",
    "model.n_enc_layer": "1", "model.n_dec_layer": "2", "subwords.vocab_size": "280", "decode.beam": "3",
    "decode.max_len_a": "0.5", "decode.max_len_b": "3",
}  # fmt: skip
# For tests that do not look at the translations: a smaller decoder and shorter outputs.
FAST_OPTIONS = {**OPTIONS, "model.n_dec_layer": "1", "decode.max_len_a": "0.3", "decode.max_len_b": "2"}
SOURCE = "the ship\n\nthe old ship left\nfür Übung\n \nin May".encode()


def save_run(folder: Path, recipe, subwords: Subwords, model, update: int = 1) -> Run:
    """Write a run folder with a chosen model."""
    run = Run(folder)
    run.folder.mkdir(exist_ok=True)
    write_recipe(recipe, run.recipe_file)
    subwords.save(run.subwords_file)
    checkpoint.save(run.model_folder, {checkpoint.MODEL: checkpoint.weights_of(model)}, {"update": update})
    return run


def make_run(folder: Path, options: Mapping[str, str] = OPTIONS, tags: Sequence[str] = (), seed: int = 0) -> Run:
    """Write a run folder with a chosen model and a checkpoint 7. Its seeded random weights translate to fixed nonsense.

    tags: tags of the training corpora, known to the model.
    """
    corpora = [
        {"src": "a", "trg": "b", **({"trg_lang": tag[2:-1]} if tag.startswith("<2") else {"tags": [tag[1:-1]]})}
        for tag in tags
    ]
    recipe = read_recipe(None, list({**options, "data.train": json.dumps(corpora)}.items()))
    lines = ["the old ship left in May"] * 9
    markers = {"tags": tags, "protect": recipe.data.protect}
    subwords = learnt_subwords(lines, lines, recipe.subwords, **markers)
    torch.manual_seed(seed)
    model = build_model(recipe.model, subwords.src.n_vocab, subwords.trg.n_vocab, PAD)
    run = save_run(folder, recipe, subwords, model, update=7)
    checkpoint.save(run.checkpoint(7), {checkpoint.MODEL: checkpoint.weights_of(model)}, {"update": 7})
    return run
