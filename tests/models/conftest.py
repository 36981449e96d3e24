"""A tiny model in double precision and a padded batch, for all tests of models."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.models.build import build_model
from nmt.models.transformer.Models import Transformer
from nmt.recipe.model_options import ModelConfig

N_VOCAB = 24
TINY: dict[str, Any] = {"d_model": 16, "d_inner": 24, "n_enc_layer": 2, "n_dec_layer": 2, "n_head": 4, "n_position": 8}

Make = Callable[..., Transformer]


@pytest.fixture
def make() -> Make:
    """make(option=value, …) -> a seeded tiny Transformer in evaluation mode, with random norms and biases."""

    def make(*, n_src_vocab: int = N_VOCAB, seed: int = 3, **options: Any) -> Transformer:
        torch.manual_seed(seed)
        model = build_model(ModelConfig(**(TINY | options)), n_src_vocab, N_VOCAB)
        assert isinstance(model, Transformer)
        for parameter in model.parameters():
            if parameter.dim() != 2:
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
        return model.double().eval()

    return make


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    """Four pairs of different lengths, padded with 0: (4, 7) and (4, 6)."""
    generator = torch.Generator().manual_seed(11)
    src_seq = torch.randint(3, N_VOCAB, (4, 7), generator=generator)
    trg_seq = torch.randint(3, N_VOCAB, (4, 6), generator=generator)
    for seq, lengths in ((src_seq, (7, 4, 6, 1)), (trg_seq, (3, 6, 1, 5))):
        for row, length in zip(seq, lengths, strict=True):
            row[length:] = 0
    return src_seq, trg_seq
