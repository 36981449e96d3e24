"""A search finds by kernels of our own what it finds without them."""

import pytest
import torch
from fake_model import HashModel

from nmt.decoding.beam import search
from nmt.decoding.settings import BeamSettings
from nmt.native import kernels

if why_not := kernels.why_not():
    pytest.skip(f"no kernels here: {why_not}", allow_module_level=True)

KNOWN = {"bos": 1, "eos": 2, "pad": 0, "length_penalty": "wu", "alpha": 0.6}


@pytest.mark.parametrize("n_vocab", [7, 64, 150])
@pytest.mark.parametrize("beam", [1, 4])
def test_the_same_hypotheses_are_found(beam, n_vocab):
    model = HashModel(n_vocab=n_vocab, seed=3, sharpness=2.0).float()
    src_seq, max_len = torch.arange(20).unsqueeze(1) + 4, torch.full((20,), 9)
    how = BeamSettings(beam=beam, n_best=beam, n_real=n_vocab - 1, **KNOWN)
    found = []
    for used in (True, False):
        kernels.use(used)
        found.append(search(model, src_seq, how, max_len))
    for by_kernels, without in zip(*found, strict=True):
        assert [one.ids for one in by_kernels] == [one.ids for one in without]
        assert all(abs(one.score - other.score) < 1e-4 for one, other in zip(by_kernels, without, strict=True))
