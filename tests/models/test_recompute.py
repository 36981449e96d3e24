"""Recomputed activations: the same bits from less memory."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

VARIANTS = {
    "post-norm": {},
    "pre-norm, rotary": {"norm": "pre", "position": "rotary", "rotary_enc_attn": True, "enc_conv": 3},
    "every kind of dropout": {"act_dropout": 0.2, "attn_dropout": 0.3, "emb_dropout": 0.1, "lexical_attn": True},
}


def one_pass(model, batch, dtype=None):
    """Return the loss, the gradients, and the bytes that the forward pass saves for the backward pass."""
    saved = {}

    def save(tensor):
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    torch.manual_seed(7)
    model.zero_grad()
    with saved_tensors_hooks(save, lambda tensor: tensor), torch.autocast("cpu", dtype, enabled=dtype is not None):
        loss = model(*batch).float().square().mean()
    n_byte = sum(saved.values()) - sum(saved.get(p.untyped_storage().data_ptr(), 0) for p in model.parameters())
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}, n_byte


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("variant", VARIANTS)
def test_recomputed_activations_give_the_same_bits_from_less_memory(make, batch, variant, dtype):
    options = {"dropout": 0.3, "n_enc_layer": 3, "n_dec_layer": 3, **VARIANTS[variant]}
    model = make(**options).float().train()
    plain_loss, plain, plain_n_byte = one_pass(model, batch, dtype)
    model.recompute_activations()
    loss, recomputed, n_byte = one_pass(model, batch, dtype)
    assert torch.equal(loss, plain_loss)
    assert plain.keys() == recomputed.keys() and all(torch.equal(plain[name], recomputed[name]) for name in plain)
    assert n_byte < 0.5 * plain_n_byte
