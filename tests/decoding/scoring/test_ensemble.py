"""Ensembles: the mean of the probabilities of several models, whose caches are reordered together."""

import pytest
import torch
from fake_model import HashModel
from small_search import score_pairs

from nmt.decoding.beam import BeamSettings, search
from nmt.decoding.scorer import Ensemble

BOS, EOS, PAD = 1, 2, 0
SRC = torch.tensor([[4, 5, EOS], [5, EOS, PAD], [3, EOS, PAD], [4, 4, EOS]])


def find(model, beam=4):
    settings = BeamSettings(beam=beam, length_penalty="wu", alpha=1.0, n_best=beam)
    return search(model, SRC, settings, torch.tensor([3, 4, 5, 6]))


def test_ensemble_scores_equal_forced_decoding():
    ensemble = Ensemble([HashModel(n_vocab=8, seed=seed) for seed in (1, 2)])
    assert [[h.ids for h in found] for found in find(ensemble)] != [[h.ids for h in f] for f in find(HashModel(8, 1))]
    for row, found in zip(SRC, find(ensemble), strict=True):
        src = [row[row != PAD][:-1].tolist()] * len(found)
        assert score_pairs(ensemble, src, [h.ids for h in found]) == pytest.approx([h.score for h in found], abs=1e-12)
