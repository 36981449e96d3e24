"""Search gives the same results with and without our own kernels."""

import pytest
import torch
from fake_model import HashModel

from nmt.data.arrays import Ragged
from nmt.data.batches import pad
from nmt.data.subwords import EOS, PAD
from nmt.decoding.beam import BeamSettings, search
from nmt.decoding.scorer import score_tokens
from nmt.models.build import build_model
from nmt.models.int8 import prepacked
from nmt.recipe.model_options import ModelConfig

products = pytest.importorskip("nmt.kernels.products")
switch = pytest.importorskip("nmt.kernels.switch")

if why_not := switch.why_not():
    pytest.skip(f"no kernels here: {why_not}", allow_module_level=True)

PENALTY = {"length_penalty": "wu", "alpha": 0.6}


@pytest.mark.parametrize("n_vocab", [7, 64, 150])
@pytest.mark.parametrize("beam", [1, 4])
def test_search_with_kernels_finds_the_same_hypotheses(beam, n_vocab, kernels_asked):
    model = HashModel(n_vocab=n_vocab, seed=3, sharpness=2.0).float()
    src_seq, max_len = torch.arange(20).unsqueeze(1) + 4, torch.full((20,), 9)
    settings = BeamSettings(beam=beam, n_best=beam, n_real=n_vocab - 1, **PENALTY)
    found = []
    for is_used in (True, False):
        switch.use(is_used)
        found.append(search(model, src_seq, settings, max_len))
        assert bool(kernels_asked.pop("choose", 0)) == is_used
    for by_kernels, without in zip(*found, strict=True):
        assert [a.ids for a in by_kernels] == [a.ids for a in without]
        assert all(abs(a.score - b.score) < 1e-4 for a, b in zip(by_kernels, without, strict=True))


@pytest.mark.skipif(not products.fp32_in_kernels(), reason="no kernels multiply fp32 on this processor")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": "pre", "position": "rotary", "n_kv_head": 1, "ffn": "relu2", "qk_norm": True, "norm_kind": "rms"},
        {"ffn": "swiglu", "d_inner": 304},  # torch computes the tail of other widths by another formula
        {"lexical_attn": True, "prj_transform": True, "position": "rotary", "rotary_enc_attn": True, "enc_conv": 3},
    ],
)
def test_scores_are_bit_identical_in_every_batch(options):
    torch.manual_seed(5)
    switch.use(True)
    sizes = {"d_model": 64, "d_inner": 300, "n_head": 4, "n_enc_layer": 2, "n_dec_layer": 2}
    model = prepacked(build_model(ModelConfig(**{**sizes, **options}), 203, 203, PAD).eval())
    rows = [torch.randint(4, 203, (1 + 3 * n % 40,)).tolist() for n in range(14)]

    def search_batch(batch):
        src_seq, settings = pad(Ragged.of(batch), after=(EOS,)), BeamSettings(beam=5, n_best=5, n_real=203, **PENALTY)
        return search(model, src_seq, settings, torch.tensor([len(row) + 5 for row in batch]))

    expected = search_batch(rows)
    assert [search_batch([row])[0] for row in rows] == expected
    assert [*search_batch(rows[9:]), *search_batch(rows[:9])] == expected[9:] + expected[:9]
    with torch.inference_mode():
        single, batched = (score_tokens(model, rows, rows[::-1], max_tokens=n) for n in (1, 8192))
    assert single == batched
