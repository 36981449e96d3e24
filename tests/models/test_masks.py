"""What must not be seen is not seen: later target tokens, padding, and nothing at all."""

import pytest
import torch
from promises import check_a_source_of_padding

KINDS = [
    {},
    {"norm": "pre", "norm_kind": "rms", "position": "rotary", "n_kv_head": 2, "qk_norm": True, "ffn": "swiglu"},
    {"norm": "pre", "position": "rotary", "rotary_enc_attn": True, "lexical_attn": True},
    {"norm": "post", "position": "sinusoid", "lexical_attn": True},
    {"norm": "pre", "position": "learned", "n_kv_head": 1, "scale_emb_or_prj": "emb", "enc_conv": 3},
]


@torch.no_grad()
@pytest.mark.parametrize("options", KINDS)
def test_a_target_token_changes_no_logit_before_it(make, options):
    model = make(**options)
    src_seq, trg_seq = torch.randint(3, 24, (2, 5)), torch.randint(3, 24, (2, 8))
    logits = model(src_seq, trg_seq)
    for t in range(8):
        other = trg_seq.clone()
        other[:, t] = 3 + (other[:, t] - 2) % 21
        changed = model(src_seq, other)
        assert torch.equal(changed[:, :t], logits[:, :t])
        assert not torch.equal(changed[:, t], logits[:, t])


@pytest.mark.parametrize("train", [False, True])
def test_a_source_of_padding_alone_gives_finite_logits_and_gradients(make, batch, train):
    check_a_source_of_padding(make().train(train), batch)


@torch.no_grad()
def test_attention_weights_sum_to_one_and_are_zero_at_padding_and_at_what_comes_later(make, batch):
    src_seq, trg_seq = batch
    _, attns = make(n_kv_head=2, n_dec_layer=3)(src_seq, trg_seq, return_attns=True)
    shapes = [tuple(weights.shape) for weights in attns]
    assert shapes == [(2, 4, 4, 7, 7), (3, 4, 4, 6, 6), (3, 4, 4, 6, 7)]
    of_src, of_trg = (src_seq != 0).view(1, 4, 1, 1, 7), (trg_seq != 0).view(1, 4, 1, 1, 6)
    past = torch.ones(6, 6, dtype=torch.bool).tril()
    for weights, visible in zip(attns, (of_src, of_trg & past, of_src), strict=True):
        assert torch.allclose(weights.sum(-1), torch.ones(weights.shape[:-1]).double())
        visible = visible.expand_as(weights)
        assert weights[~visible].eq(0).all()
        assert weights[visible].gt(0).all()
