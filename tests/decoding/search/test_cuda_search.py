"""What only a GPU can show: steps that are recorded as CUDA graphs find what steps find that are ordered one by one."""

import pytest
import torch
from small_search import tiny_model
from test_fixed_search import MODELS, V, batch, how

from nmt.decoding.beam import search
from nmt.decoding.fixed_search import FixedSearch
from nmt.device import set_up

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("options", MODELS)
def test_what_is_replayed_is_what_is_searched(options):
    set_up("cuda")
    model = tiny_model(V, **options).float().cuda()
    fixed = FixedSearch(model)
    for seed in (1, 2, 1, 2):
        src_seq, max_len = batch(40, 11, seed)
        found = fixed(src_seq.cuda(), how(), max_len)
        wanted = search(model, src_seq.cuda(), how(), max_len)
        # In fp32 the order of sums decides between hypotheses that are nearly as good.
        scores = [its[0].normalised for its in found]
        assert scores == pytest.approx([its[0].normalised for its in wanted], abs=1e-4)
        same = sum(a[0].ids == b[0].ids for a, b in zip(found, wanted, strict=True))
        assert same >= 38
    assert any(recording is not None for recording in fixed._recorder._recordings.values())
