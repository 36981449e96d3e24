"""Tiny models whose weights are large enough for every part to matter, and run folders of them."""

import torch

from nmt import checkpoint
from nmt.data.subwords import PAD
from nmt.models.build import build_model
from nmt.recipe.reader import read_recipe
from tests.cli.made_run import save_run

LINES = ["the old ship left in May", "in May", "the ship", "old", "für Übung", "x" * 90]
SMALL = {
    "name": "tiny", "model.d_model": "32", "model.d_inner": "48", "model.n_head": "4", "model.n_enc_layer": "2",
    "model.n_dec_layer": "2", "subwords.vocab_size": "300",
}  # fmt: skip


def make_model(subwords, **options):
    """Return a model and its recipe."""
    recipe = read_recipe(None, [*SMALL.items(), *((f"model.{name}", str(value)) for name, value in options.items())])
    torch.manual_seed(1)
    model = build_model(recipe.model, subwords.src.n_vocab, subwords.trg.n_vocab, PAD).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif "emb" not in name and "prj" not in name:
                parameter.mul_(2.0)
    return model, recipe


def save_model(folder, subwords, model, recipe):
    """Save a run folder with this chosen model, and a checkpoint of another one."""
    run = save_run(folder, recipe, subwords, model)
    other = {name: tensor * 1.01 for name, tensor in checkpoint.weights_of(model).items()}
    tensors = {checkpoint.MODEL: other, checkpoint.OPTIMIZER: {"moment": torch.ones(3)}}
    checkpoint.save(run.checkpoint(7), tensors, {"update": 7})
    return run
