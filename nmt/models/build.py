"""Build a model from the recipe's `model` section, for training, translation and export."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nmt.errors import RecipeError
from nmt.models.base import TranslationModel
from nmt.models.lstm.Models import Seq2Seq
from nmt.models.transformer.Models import Transformer
from nmt.recipe.model_options import ModelConfig


def build_model(config: ModelConfig, n_src_vocab: int, n_trg_vocab: int, pad_idx: int = 0) -> TranslationModel:
    """Return a freshly initialised model; torch's seed determines its weights."""
    assert config.preset != "auto", "resolve the recipe first"
    if config.emb_src_trg_weight_sharing and n_src_vocab != n_trg_vocab:
        raise RecipeError(
            f"model.emb_src_trg_weight_sharing is true, but the source vocabulary has {n_src_vocab:,} pieces and the "
            f"target vocabulary {n_trg_vocab:,}: one embedding cannot serve both. Set subwords.joint to true and "
            "prepare the data again, or set model.emb_src_trg_weight_sharing to false."
        )
    model_class = Seq2Seq if config.is_recurrent else Transformer
    return model_class(config, n_src_vocab, n_trg_vocab, pad_idx)


class SkipInit(TorchFunctionMode):
    """Context manager: zeros for random initial weights, for a model that gets its weights from a file."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Methods of a tensor, and functions of torch.nn.init that torch passes to a mode as a whole.
        if getattr(func, "__name__", "") in ("uniform_", "normal_", "kaiming_uniform_"):
            tensor: Tensor = args[0] if args else kwargs["tensor"]
            with torch.no_grad():
                return tensor.zero_()  # so that values computed from it are defined
        return func(*args, **(kwargs or {}))
