"""When torch's compiler is imported, which takes three times as long as torch: by who needs it, before the first
update, whose time is told. A training that compiles nothing needs it only where torch has it keep out of something.
"""

import importlib

import torch

from nmt.kernels import on_gpu
from nmt.recipe.options import Recipe


def import_compiler() -> None:
    """Import it, unless it is there."""
    importlib.import_module("torch._dynamo")


def import_early(recipe: Recipe, device: torch.device) -> None:
    """Import it where torch would within an update: to compute activations anew, and for its own attention in packed
    rows."""
    if recipe.train.checkpoint_activations:
        import_compiler()
    if recipe.batch.packed and _attends_by_torch(recipe, device):
        import_compiler()
        importlib.import_module("torch.nn.attention.varlen")


def _attends_by_torch(recipe: Recipe, device: torch.device) -> bool:
    """Whether packed rows in 16 bits go through torch's kernel: where ours take no such heads, or are not to be had."""
    if device.type != "cuda" or not on_gpu.is_new(device):
        return False
    model = recipe.model
    head = torch.empty(model.d_k or model.d_model // model.n_head, dtype=torch.bfloat16)  # as wide as those of values
    return not (on_gpu.works(device) and on_gpu.fits(head, head, head))
