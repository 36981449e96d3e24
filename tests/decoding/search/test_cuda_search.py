"""On a GPU: steps replayed from CUDA graphs give the same result as steps launched one by one."""

import pytest
import torch
from small_search import tiny_model
from test_fixed_search import MODELS, V, batch, beam_settings

from nmt.decoding.beam import search
from nmt.decoding.fixed_search import FixedSearch
from nmt.device import set_up

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("options", MODELS)
def test_replayed_cuda_graphs_equal_the_search(options):
    set_up("cuda")
    model = tiny_model(V, **options).float().cuda()
    fixed = FixedSearch(model)
    for seed in (1, 2, 1, 2):
        src_seq, max_len = batch(40, 11, seed)
        found = fixed(src_seq.cuda(), beam_settings(), max_len)
        expected = search(model, src_seq.cuda(), beam_settings(), max_len)
        # In fp32 the order of sums decides between hypotheses that are nearly as good.
        scores = [hypotheses[0].normalised for hypotheses in found]
        assert scores == pytest.approx([hypotheses[0].normalised for hypotheses in expected], abs=1e-4)
        n_same = sum(a[0].ids == b[0].ids for a, b in zip(found, expected, strict=True))
        assert n_same >= 38
    assert any(recording is not None for recording in fixed._recorder._recordings.values())
