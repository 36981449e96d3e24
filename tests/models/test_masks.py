"""What must not be seen is not seen: later target tokens, padding, and nothing at all."""

import pytest
import torch
from promises import check_a_source_of_padding

from nmt.masks import SharedMask
from nmt.models.transformer.Modules import ScaledDotProductAttention

KINDS = [
    {},
    {"norm": "pre", "norm_kind": "rms", "position": "rotary", "n_kv_head": 2, "qk_norm": True, "ffn": "swiglu"},
    {"norm": "pre", "position": "rotary", "rotary_enc_attn": True, "lexical_attn": True},
    {"norm": "post", "position": "sinusoid", "lexical_attn": True},
    {"norm": "pre", "position": "learned", "n_kv_head": 1, "scale_emb_or_prj": "emb", "enc_conv": 3},
]


@pytest.mark.parametrize("n_query", [1, 3])
@pytest.mark.parametrize("n_kv_head", [1, 2, 4])
@pytest.mark.parametrize("return_attns", [False, True])
def test_a_mask_that_layers_share_hides_what_it_hides_from_each(n_query, n_kv_head, return_attns):
    torch.manual_seed(5)
    mask = torch.rand(2, 1, n_query, 5) < 0.5
    mask[1, :, 0] = False  # a query that may look nowhere
    shared, attention = SharedMask(mask), ScaledDotProductAttention(2.0, 0.0)
    for dtype in (torch.float64, torch.float32, torch.float64):
        q = torch.randn(2, 4, n_query, 4, dtype=dtype)
        k, v = torch.randn(2, 2, n_kv_head, 5, 4, dtype=dtype)
        found, attn = attention(q, k, v, shared, return_attns)
        exact, exact_attn = attention(q, k, v, mask, return_attns)
        assert torch.equal(found, exact) and not found[1, :, 0].any()
        assert attn is exact_attn is None or torch.equal(attn, exact_attn)
    assert shared.made(torch.sum) is shared.made(torch.sum)


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


@pytest.mark.parametrize("options", KINDS)
def test_padding_changes_no_logit_and_no_gradient(make, batch, options):
    model = make(**options)
    src_seq, trg_seq = batch
    real = trg_seq != 0

    def logits_and_gradient(n_src_pad, n_trg_pad):
        model.zero_grad()
        src, trg = torch.nn.functional.pad(src_seq, (0, n_src_pad)), torch.nn.functional.pad(trg_seq, (0, n_trg_pad))
        logits = model(src, trg)[:, : trg_seq.size(1)][real]
        logits.square().sum().backward()
        return logits.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])

    logits, gradient = logits_and_gradient(0, 0)
    more_logits, more_gradient = logits_and_gradient(9, 4)
    assert (more_logits - logits).abs().max() < 1e-12
    assert (more_gradient - gradient).abs().max() < 1e-12 * gradient.abs().max()
    for i in range(4):
        n_src, n_trg = int((src_seq[i] != 0).sum()), int(real[i].sum())
        alone = model(src_seq[i : i + 1, :n_src], trg_seq[i : i + 1, :n_trg])
        assert (alone[0] - model(src_seq, trg_seq)[i, :n_trg]).abs().max() < 1e-12


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
