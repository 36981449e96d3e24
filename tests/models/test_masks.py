"""Masks hide later target tokens and padding, even in a source of nothing but padding."""

import pytest
import torch
from promises import check_all_padding_source

KINDS = [
    {},
    {"norm": "pre", "norm_kind": "rms", "position": "rotary", "n_kv_head": 2, "qk_norm": True, "ffn": "swiglu"},
    {"norm": "pre", "position": "rotary", "rotary_enc_attn": True, "lexical_attn": True},
    {"norm": "post", "position": "sinusoid", "lexical_attn": True},
    {"norm": "pre", "position": "learned", "n_kv_head": 1, "scale_emb_or_prj": "emb", "enc_conv": 3},
]


@torch.no_grad()
@pytest.mark.parametrize("options", KINDS)
def test_target_token_changes_no_earlier_logit(make, options):
    model = make(**options)
    src_seq, trg_seq = torch.randint(3, 24, (2, 5)), torch.randint(3, 24, (2, 8))
    logits = model(src_seq, trg_seq)
    for t in range(8):
        changed_seq = trg_seq.clone()
        changed_seq[:, t] = 3 + (changed_seq[:, t] - 2) % 21
        changed = model(src_seq, changed_seq)
        assert torch.equal(changed[:, :t], logits[:, :t])
        assert not torch.equal(changed[:, t], logits[:, t])


@pytest.mark.parametrize("train", [False, True])
def test_padding_only_source_gives_finite_logits_and_gradients(make, batch, train):
    check_all_padding_source(make().train(train), batch)


@torch.no_grad()
def test_attention_weights_sum_to_one_without_padding_and_later_tokens(make, batch):
    src_seq, trg_seq = batch
    _, attns = make(n_kv_head=2, n_dec_layer=3)(src_seq, trg_seq, return_attns=True)
    shapes = [tuple(weights.shape) for weights in attns]
    assert shapes == [(2, 4, 4, 7, 7), (3, 4, 4, 6, 6), (3, 4, 4, 6, 7)]
    src_mask, trg_mask = (src_seq != 0).view(1, 4, 1, 1, 7), (trg_seq != 0).view(1, 4, 1, 1, 6)
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    for weights, visible in zip(attns, (src_mask, trg_mask & causal, src_mask), strict=True):
        assert torch.allclose(weights.sum(-1), torch.ones(weights.shape[:-1]).double())
        visible = visible.expand_as(weights)
        assert weights[~visible].eq(0).all()
        assert weights[visible].gt(0).all()
