"""Attention written out: its gradient in one piece, with dropout, and rows that are made as long as a vector."""

import pytest
import torch

from nmt.models import written_out as module
from nmt.models.dropout import Dropout
from nmt.models.written_out import written_out

B, G, N, D_K, D_V = 3, 2, 5, 4, 3
KEYS = pytest.mark.parametrize("n_key", [1, 7, 8, 9])  # a vector has 8


@pytest.fixture(autouse=True)
def eight_lanes(monkeypatch):
    monkeypatch.setattr(module, "_LANES", 8)


def inputs(n_key, dtype=torch.float64):
    """q, k, v, what hides the last keys of one sentence, and a query that sees nothing."""
    generator = torch.Generator().manual_seed(n_key)
    q, k, v = (
        torch.randn(B, G, *shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in ((N, D_K), (n_key, D_K), (n_key, D_V))
    )
    bias, blind = torch.zeros(B, 1, N, n_key, dtype=torch.float64), torch.zeros(B, 1, N, 1, dtype=torch.bool)
    bias[1, :, :, n_key // 2 + 1 :] = torch.finfo(torch.float32).min / 2
    blind[2, :, 1] = True
    return q, k, v, bias.to(torch.promote_types(dtype, torch.float32)), blind


def plain(q, k, v, bias, blind, keep):
    """The same in plain torch. keep: what each weight is multiplied by."""
    attn = (0.5 * q.double() @ k.double().transpose(2, 3) + bias).softmax(-1).masked_fill(blind, 0.0)
    return (attn * keep) @ v.double(), attn


@KEYS
def test_rows_of_any_length_are_the_softmax_with_its_gradient(n_key):
    q, k, v, bias, blind = inputs(n_key)
    dropout = Dropout(0.3).eval()
    found = written_out(q, k, v, bias, blind, 0.5, dropout)
    expected = plain(q, k, v, bias, blind, 1.0)
    weight = [torch.randn_like(one) for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape and (one - other).abs().max() < 1e-14
    # By the output, by the weights, and by both.
    for pick in ([0], [1], [0, 1]):
        sums = [sum((made[i] * weight[i]).sum() for i in pick) for made in (found, expected)]
        grads = [
            torch.autograd.grad(total, (q, k, v), retain_graph=True, allow_unused=True, materialize_grads=True)
            for total in sums
        ]
        assert all((one - other).abs().max() < 1e-14 for one, other in zip(*grads, strict=True))
    with torch.no_grad():
        assert all(map(torch.equal, written_out(q, k, v, bias, blind, 0.5, dropout), found))


@KEYS
def test_dropped_weights_are_not_used_and_get_no_gradient(n_key):
    q, k, v, bias, blind = inputs(n_key)
    dropout = Dropout(0.4).train()
    torch.manual_seed(5)
    output, attn = written_out(q, k, v, bias, blind, 0.5, dropout)
    torch.manual_seed(5)
    keep = dropout.which(attn).double() * dropout.scale
    assert keep.shape == attn.shape and (keep == 0).any() and (keep > 1).any()
    expected, exact = plain(q, k, v, bias, blind, keep)
    assert (output - expected).abs().max() < 1e-14 and (attn - exact).abs().max() < 1e-14
    weight = torch.randn_like(output)
    grads = [torch.autograd.grad((made * weight).sum(), (q, k, v)) for made in (output, expected)]
    assert all((one - other).abs().max() < 1e-14 for one, other in zip(*grads, strict=True))


@KEYS
def test_between_products_in_bf16_numbers_are_fp32(n_key):
    q, k, v, bias, blind = inputs(n_key, torch.bfloat16)
    output, attn = written_out(q, k, v, bias, blind, 0.5, Dropout(0.0))
    expected, exact = plain(q, k, v, bias.double(), blind, 1.0)
    assert (output.dtype, attn.dtype) == (torch.bfloat16, torch.float32)
    seeing = attn.sum(-1)[~blind.squeeze(-1).expand(B, G, N)]
    assert (seeing - 1).abs().max() < 1e-6
    assert (attn - exact).abs().max() < 0.02 and (output - expected).abs().max() < 0.05
    grads = torch.autograd.grad(output.float().square().sum(), (q, k, v))
    exact_grads = torch.autograd.grad(expected.square().sum(), (q, k, v))
    assert all(grad.dtype == torch.bfloat16 for grad in grads)
    for grad, exact_grad in zip(grads, exact_grads, strict=True):
        assert (grad - exact_grad).abs().max() <= 0.05 * exact_grad.abs().max() + 1e-9
