"""The divergence of two passes: equal to torch's, whatever the chunks; its gradient equal to autograd's."""

import pytest
import torch
from torch.nn.functional import kl_div, log_softmax

from nmt.training import loss as room
from nmt.training.consistency import divergence


def example(dtype=torch.float64, b=4, t=5, v=11, d=6):
    torch.manual_seed(0)
    p_hidden, q_hidden, weight = (
        torch.randn(size, dtype=dtype, requires_grad=True) for size in ((b, t, d), (b, t, d), (v, d))
    )
    real = torch.ones(b, t, dtype=torch.bool)
    real[1, 3:] = False
    real[-1, 1:] = False
    return p_hidden, q_hidden, weight, real


def by_definition(p_hidden, q_hidden, weight, real, *, pq, qp, scale=1.0):
    log_p, log_q = (log_softmax(scale * hidden @ weight.t(), -1)[real] for hidden in (p_hidden, q_hidden))
    # torch's kl_div(log Q, log P) is KL(P || Q).
    kl_pq = kl_div(log_q, log_p, log_target=True, reduction="sum")
    kl_qp = kl_div(log_p, log_q, log_target=True, reduction="sum")
    return pq * kl_pq + qp * kl_qp


@pytest.mark.parametrize(("pq", "qp"), [(1.0, 0.0), (0.0, 1.0), (0.75, 0.75), (3.0, 0.5)])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_value_and_gradients_are_those_of_the_definition(pq, qp, scale):
    *tensors, real = example()
    wanted = by_definition(*tensors, real, pq=pq, qp=qp, scale=scale)
    found = divergence(*tensors, real, pq=pq, qp=qp, scale=scale)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    for a, b in zip(torch.autograd.grad(found / 3, tensors), torch.autograd.grad(wanted / 3, tensors), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_the_gradient_is_that_of_finite_differences():
    *tensors, real = example(b=2, t=3, v=5, d=3)
    assert torch.autograd.gradcheck(lambda p, q, w: divergence(p, q, w, real, pq=1.0, qp=0.5), tensors)


def test_many_chunks_are_one_chunk(monkeypatch):
    *tensors, real = example(b=20, t=30)
    found = []
    for size in (1 << 30, 1):
        monkeypatch.setitem(room.CHUNK_BYTES, "cpu", size)
        value = divergence(*tensors, real, pq=1.0, qp=0.5)
        found.append((value, *torch.autograd.grad(value, tensors)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_padding_changes_neither_value_nor_gradient():
    p_hidden, q_hidden, weight, real = example()
    value = divergence(p_hidden, q_hidden, weight, real, pq=1.0, qp=0.5)
    more = torch.randn(4, 9, 6, dtype=torch.float64)
    longer = torch.cat([p_hidden.detach(), more], dim=1).requires_grad_()
    other = torch.cat([q_hidden.detach(), -more], dim=1)
    padded = divergence(longer, other, weight, torch.nn.functional.pad(real, (0, 9)), pq=1.0, qp=0.5)
    torch.testing.assert_close(padded, value, rtol=0, atol=1e-12)
    (grad,), (wanted,) = torch.autograd.grad(padded, longer), torch.autograd.grad(value, p_hidden)
    torch.testing.assert_close(grad[:, :5], wanted, rtol=0, atol=1e-12)
    assert not grad[:, 5:].any()


def test_under_bf16_autocast_it_is_close_to_fp32_and_gives_gradients_in_the_weights_type():
    p_hidden, q_hidden, weight, real = example(torch.float32)
    wanted = divergence(p_hidden, q_hidden, weight, real, pq=1.0, qp=0.5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = divergence(p_hidden.bfloat16(), q_hidden.bfloat16(), weight, real, pq=1.0, qp=0.5)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, rtol=3e-2, atol=0)
    assert torch.autograd.grad(found, weight)[0].dtype == torch.float32
