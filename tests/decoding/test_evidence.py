"""Forced decoding with attention: one pass, independent of the batch."""

import pytest
import torch
from small_search import tiny_model

from nmt.data.subwords import BOS, EOS
from nmt.decoding.scorer import score_tokens

SRC_IDS = [[5, 4, 3], [4], [3, 3, 5, 6, 7, 3, 4], [7, 7], [6, 3, 4, 5]]
TRG_IDS = [[3, 4], [], [5], [6, 6, 6, 4, 3, 5, 7, 7, 7], [4, 5]]
OPTIONS = [{}, {"norm": "pre", "position": "rotary", "n_kv_head": 1, "lexical_attn": True}]


def attention_and_scores(model, src_ids, trg_ids, **settings):
    attention = {}
    scores = score_tokens(model, src_ids, trg_ids, on_attention=attention.__setitem__, **settings)
    return [attention[pair] for pair in range(len(src_ids))], scores


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("max_tokens", [1, 12, 4096])
def test_attention_of_a_pair_does_not_depend_on_its_batch(options, max_tokens):
    model = tiny_model(8, n_dec_layer=3, **options)
    batched, scores = attention_and_scores(model, SRC_IDS, TRG_IDS, max_tokens=max_tokens)
    assert scores == [pytest.approx(expected, abs=1e-12) for expected in score_tokens(model, SRC_IDS, TRG_IDS)]
    for pair, (src, trg) in enumerate(zip(SRC_IDS, TRG_IDS, strict=True)):
        src_seq, trg_seq = torch.tensor([[*src, EOS]]), torch.tensor([[BOS, *trg]])
        alone = model(src_seq, trg_seq, return_attns=True)[1].cross[:, 0]
        assert batched[pair].shape == (3, 2, len(trg) + 1, len(src) + 1)
        torch.testing.assert_close(batched[pair].double(), alone, rtol=0, atol=1e-6)
