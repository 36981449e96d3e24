"""Loss: equal to torch's, with kernels and in plain torch; its gradient equals autograd's."""

import pytest
import torch
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from nmt import ops
from nmt.ops import consistency, smoothed_cross_entropy
from nmt.training import validate

PAD = 0


@pytest.fixture(params=["by kernels", "plain"], autouse=True)
def implementation(request, monkeypatch):
    if request.param == "plain":
        for name in ("smoothed_cross_entropy", "consistency"):
            monkeypatch.setattr(ops.cross_entropy, name, lambda *args: None)


def example(dtype=torch.float64, b=4, t=5, v=11, d=6):
    """Return hidden states of two passes, an output matrix, and gold with padding."""
    torch.manual_seed(0)
    tensors = [torch.randn(size, dtype=dtype, requires_grad=True) for size in ((b, t, d), (b, t, d), (v, d))]
    gold = torch.randint(1, v, (b, t))
    gold[1, 3:] = PAD
    gold[-1, 1:] = PAD
    return *tensors, gold


def by_definition(p, q, gold, *, ce, kl, smoothing=0.1):
    """Return loss and its cross-entropies, summed over gold tokens, from the logits (B, T, V) of two passes."""
    real, n_class = gold != PAD, p.size(-1)
    logits = p[real], q[real]
    target = torch.full_like(logits[0], smoothing / (n_class - 1))
    target[:, PAD] = 0
    target.scatter_add_(1, gold[real].unsqueeze(1), torch.full_like(target[:, :1], 1 - smoothing))
    entropies = sum(part * cross_entropy(z, target, reduction="sum") for part, z in zip(ce, logits, strict=True))
    log_p, log_q = (log_softmax(z, -1) for z in logits)
    # torch's kl_div(log Q, log P) is KL(P || Q).
    kl_pq = kl_div(log_q, log_p, log_target=True, reduction="sum")
    kl_qp = kl_div(log_p, log_q, log_target=True, reduction="sum")
    return entropies + kl[0] * kl_pq + kl[1] * kl_qp, entropies


def assert_same(found, expected, tensors, bound=1e-12):
    """Assert that two losses and their gradients are equal."""
    torch.testing.assert_close(found, expected, rtol=0, atol=bound)
    for a, b in zip(torch.autograd.grad(found / 3, tensors), torch.autograd.grad(expected / 3, tensors), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=bound)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("scale", "n_gold"), [(1.0, None), (0.3, 14)])
def test_loss_and_gradients_are_those_of_the_definition(smoothing, scale, n_gold):
    hidden, _, weight, gold = example()
    assert n_gold in (None, (gold != PAD).sum())
    logits = scale * hidden @ weight.t()
    expected, _ = by_definition(logits, logits, gold, ce=(1, 0), kl=(0, 0), smoothing=smoothing)
    found = smoothed_cross_entropy(hidden, weight, gold, smoothing=smoothing, scale=scale, n_gold=n_gold, pad_idx=PAD)
    assert_same(found, expected, (hidden, weight))


@pytest.mark.parametrize("kl", [(1.0, 0.0), (0.0, 1.0), (0.75, 0.75), (3.0, 0.5)])
@pytest.mark.parametrize("ce", [(0.0, 0.0), (1.0, 0.0), (0.5, 0.5), (0.0, 2.0)])
@pytest.mark.parametrize(("scale", "smoothing"), [(1.0, 0.0), (0.3, 0.1)])
def test_consistency_and_gradients_are_those_of_the_definition(ce, kl, scale, smoothing):
    *tensors, gold = example()
    p, q = (scale * hidden @ tensors[2].t() for hidden in tensors[:2])
    expected, expected_entropies = by_definition(p, q, gold, ce=ce, kl=kl, smoothing=smoothing)
    found, entropies = consistency(*tensors, gold, ce=ce, kl=kl, scale=scale, smoothing=smoothing)
    torch.testing.assert_close(entropies, expected_entropies.detach(), rtol=0, atol=1e-12)
    assert_same(found, expected, tensors)


LOSSES = {
    "cross-entropy": lambda p, _, weight, gold: smoothed_cross_entropy(p, weight, gold, smoothing=0.1),
    "consistency": lambda *args: consistency(*args, ce=(0.5, 0.3), kl=(1.0, 0.5), smoothing=0.1)[0],
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_bf16_autocast_is_close_to_fp32_with_gradients_in_the_weights_type(loss):
    p_hidden, q_hidden, weight, gold = example(torch.float32)
    expected = loss(p_hidden, q_hidden, weight, gold)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = loss(p_hidden.bfloat16(), q_hidden.bfloat16(), weight, gold)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=3e-2, atol=0)
    assert torch.autograd.grad(found, weight)[0].dtype == torch.float32


def test_validation_of_a_batch_in_chunks_equals_validation_at_once(monkeypatch):
    torch.manual_seed(1)
    logits, gold = torch.randn(5, 7, 11), torch.randint(0, 11, (5, 7))
    loss, hits = validate._loss_and_hits(logits, gold)
    monkeypatch.setattr(validate, "_AT_ONCE", 3 * 11)  # three rows at a time, which do not divide 35
    loss_in_chunks, hits_in_chunks = validate._loss_and_hits(logits, gold)
    real = gold != PAD
    assert int(hits) == int(hits_in_chunks) == int((logits.argmax(-1) == gold)[real].sum()) > 0
    expected = cross_entropy(logits[real].double(), gold[real], reduction="sum")
    torch.testing.assert_close(
        torch.stack([loss, loss_in_chunks]), torch.stack([expected, expected]), rtol=1e-6, atol=0
    )
