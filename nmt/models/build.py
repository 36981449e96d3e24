"""From the recipe's `model` section to a model: training, translation and export all build it here."""

from nmt.errors import RecipeError
from nmt.models.base import TranslationModel
from nmt.models.lstm.Models import Seq2Seq
from nmt.models.transformer.Models import Transformer
from nmt.recipe.model_options import ModelConfig


def build_model(config: ModelConfig, n_src_vocab: int, n_trg_vocab: int, pad_idx: int = 0) -> TranslationModel:
    """A freshly initialised model; torch's seed decides its weights."""
    assert config.preset != "auto", "resolve the recipe first"
    if config.emb_src_trg_weight_sharing and n_src_vocab != n_trg_vocab:
        raise RecipeError(
            f"model.emb_src_trg_weight_sharing is true, but the source vocabulary has {n_src_vocab:,} pieces and the "
            f"target vocabulary {n_trg_vocab:,}: one embedding cannot serve both. Set subwords.joint to true and "
            "prepare the data again, or set model.emb_src_trg_weight_sharing to false."
        )
    kind = Seq2Seq if config.is_recurrent else Transformer
    return kind(config, n_src_vocab, n_trg_vocab, pad_idx)
