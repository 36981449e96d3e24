"""Searches small enough for exhaustive checks: sources, length penalties, models and reference scores."""

import math

import torch
from torch import Tensor

from nmt.data.subwords import BOS, EOS, PAD, Subwords
from nmt.decoding.beam import BeamSettings, Hypothesis, search
from nmt.decoding.scorer import score_tokens
from nmt.models.base import TranslationModel
from nmt.models.build import build_model
from nmt.recipe.data_options import SubwordsConfig
from nmt.recipe.model_options import ModelConfig
from tests.learnt import learnt_subwords

SRC = torch.tensor([[5, 4, 3, 2], [4, 2, 0, 0], [3, 3, 5, 2], [2, 0, 0, 0], [5, 3, 4, 2], [4, 4, 2, 0]])
PENALTIES = [("wu", 0.0), ("wu", 0.6), ("wu", 1.0), ("average", 1.0), ("average", 0.5), ("none", 1.0)]


def run(model: TranslationModel, src: Tensor = SRC, max_len=None, rules=None, **changes) -> list[list[Hypothesis]]:
    settings = {"beam": 4, "length_penalty": "wu", "alpha": 1.0, **changes}
    max_len = torch.full((len(src),), 12) if max_len is None else max_len
    return search(model, src, BeamSettings(**settings), max_len, rules=rules)


def log_prob(model: TranslationModel, src: Tensor, ids: list[int]) -> float:
    """Forced decoding of one sentence, independent of the code under test."""
    with torch.no_grad():
        table = model(src[None], torch.tensor([[BOS, *ids]])).double().log_softmax(-1)[0]
    return sum(float(table[position, token]) for position, token in enumerate([*ids, EOS]))


def score_pairs(model, src_ids, trg_ids, **options) -> list[float]:
    """Log-probability of each given translation, EOS included, by forced decoding."""
    return [math.fsum(scores) for scores in score_tokens(model, src_ids, trg_ids, **options)]


def divisor(length: int, kind: str, alpha: float) -> float:
    return {"wu": ((5 + length) / 6) ** alpha, "average": length**alpha, "none": 1.0}[kind]


def tiny_model(n_vocab: int = 8, **options):
    """A Transformer in fp64, or a recurrent model where an architecture is named."""
    torch.manual_seed(3)
    sizes = {"d_inner": 16, "n_head": 2, "n_enc_layer": 2, "n_dec_layer": 2}
    sizes = {"d_model": 16, **({"n_rnn_layer": 2} if "architecture" in options else sizes)}
    model = build_model(ModelConfig(**{**sizes, **options}), n_vocab, n_vocab, PAD).double().eval()
    with torch.no_grad():  # sharper logits, as in a trained model, so that hypotheses differ
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model


def subwords_of(*lines: str, n: int = 280, protect=(), **config) -> Subwords:
    """A vocabulary of n subwords for both sides, learnt from the lines."""
    options = SubwordsConfig(vocab_size=n, **config)
    return learnt_subwords(lines * 20, lines * 20, options, protect=protect)
