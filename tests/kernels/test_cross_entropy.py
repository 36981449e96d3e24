"""Cross-entropy chunk by chunk: the plain one of `ops.py`, whatever the chunks, and its gradient."""

from types import SimpleNamespace

import pytest
import torch

from nmt import ops
from nmt.kernels import cross_entropy as kernel
from nmt.kernels import products, switch
from nmt.ops import consistency, smoothed_cross_entropy

PAD = 0
NONE = SimpleNamespace(smoothed_cross_entropy=lambda *args: None, consistency=lambda *args: None)


def plain(hidden, weight, gold, **how):
    with pytest.MonkeyPatch.context() as without:
        without.setattr(ops, "cross_entropy", NONE)
        return smoothed_cross_entropy(hidden, weight, gold, **how)


@pytest.mark.parametrize("chunk_bytes", [1 << 30, 1])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_in_chunks_it_is_the_plain_loss(scale, smoothing, chunk_bytes, monkeypatch):
    monkeypatch.setitem(kernel.CHUNK_BYTES, "cpu", chunk_bytes)
    torch.manual_seed(1)
    size = (20, 30, 8), (20, 30, 8), (16, 8)
    p, q, weight = (torch.randn(one, dtype=torch.float64, requires_grad=True) for one in size)
    gold = torch.randint(0, 16, (20, 30))
    how = {"smoothing": smoothing, "scale": scale}
    two = how | {"ce": (0.5, 0.3), "kl": (1.0, 0.5)}
    for loss, tensors in (
        (lambda: smoothed_cross_entropy(p, weight, gold, **how), (p, weight)),
        (lambda: consistency(p, q, weight, gold, **two)[0], (p, q, weight)),
    ):
        found = loss()
        with monkeypatch.context() as without:
            without.setattr(ops, "cross_entropy", NONE)
            wanted = loss()
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)
        grads = (torch.autograd.grad(one / 3, tensors) for one in (found, wanted))
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@pytest.mark.skipif(bool(switch.why_not()), reason=f"no kernels here: {switch.why_not()}")
@pytest.mark.parametrize("compiled", [False, True])  # which our kernels have no need of
@pytest.mark.parametrize("n_token", [1, 31, 32, 64, 65, 150])
def test_rows_that_fill_up_the_last_chunk_change_nothing(n_token, compiled, monkeypatch, kernels_asked):
    monkeypatch.setitem(kernel.CHUNK_BYTES, "cpu", 1)  # so a chunk has 64 tokens
    torch.manual_seed(1)
    hidden, weight = (torch.randn(*size, requires_grad=True) for size in ((1, n_token, 8), (16, 8)))
    gold = torch.randint(1, 16, (1, n_token))
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    wanted = plain(*exact, gold, smoothing=0.1, scale=0.7)
    switch.use(True)
    found = smoothed_cross_entropy(hidden, weight, gold, smoothing=0.1, scale=0.7, pad_idx=PAD, compiled=compiled)
    switch.use(False)
    assert kernels_asked["exponents"] == -(-n_token // 64)
    assert bool(kernels_asked["multiply"]) == products.fp32_in_kernels()
    torch.testing.assert_close(found.double(), wanted, rtol=3e-6, atol=0)
    grads = zip(torch.autograd.grad(found, (hidden, weight)), torch.autograd.grad(wanted, exact), strict=True)
    for one, other in grads:
        torch.testing.assert_close(one.double(), other, rtol=3e-6, atol=3e-5)


@pytest.mark.skipif(bool(switch.why_not()), reason=f"no kernels here: {switch.why_not()}")
def test_with_kernels_the_gradient_is_scaled_in_place_and_asked_for_once(kernels_asked):
    torch.manual_seed(0)
    hidden, weight = (torch.randn(*size, requires_grad=True) for size in ((4, 5, 6), (11, 6)))
    gold = torch.randint(0, 11, (4, 5))
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    wanted = torch.autograd.grad(plain(*exact, gold, smoothing=0.1) / 3, exact)
    switch.use(True)
    found = smoothed_cross_entropy(hidden, weight, gold, smoothing=0.1) / 3
    switch.use(False)
    assert kernels_asked["exponents"]
    grads = torch.autograd.grad(found, (hidden, weight), retain_graph=True)
    for one, other in zip(grads, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=3e-6, atol=3e-6)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):  # and no factor twice
        torch.autograd.grad(found, (hidden, weight))


def test_chunks_of_a_gpu_grow_with_its_memory(monkeypatch):
    memory = {0: 80 << 30, 1: 8 << 30}
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=memory[device.index])
    )
    assert kernel.chunk_bytes(torch.device("cuda:0")) == (80 << 30) // 64
    assert kernel.chunk_bytes(torch.device("cuda:1")) == kernel.CHUNK_BYTES["cuda"] == 256 << 20
    assert kernel.chunk_bytes(torch.device("cpu")) == 32 << 20


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_what_the_compiler_gets_is_the_same_pass(dtype):
    torch.manual_seed(2)
    z, gold = (torch.randn(7, 30, dtype=torch.float64) * 5).to(dtype), torch.randint(1, 30, (7, 1))
    wanted = kernel.nll_and_gradient(z.clone(), gold, 0.9, torch.float64)
    for a, b in zip(kernel.nll_and_gradient_for_compiler(z, gold, 0.9, torch.float64), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_the_pass_is_compiled_for_full_chunks_and_once_for_what_is_left_of_any_batch(monkeypatch):
    """With a backend that only counts."""
    seen, compile_with = [], torch.compile

    def count(graph, _inputs):
        seen.append(graph)
        return graph.forward

    torch.compiler.reset()
    kernel._compiled_nll_and_gradient.cache_clear()
    monkeypatch.setattr(torch, "compile", lambda what: compile_with(what, backend=count, fullgraph=True))
    monkeypatch.setitem(kernel.CHUNK_BYTES, "cpu", 1)  # so a chunk has 64 tokens
    torch.manual_seed(3)
    weight = torch.randn(16, 8, dtype=torch.float64, requires_grad=True)
    for n in (200, 130, 190, 67, 64 + 33):
        hidden, gold = torch.randn(1, n, 8, dtype=torch.float64), torch.randint(1, 16, (1, n))
        plain, compiled = (
            smoothed_cross_entropy(hidden, weight, gold, smoothing=0.1, n_gold=n, compiled=how) for how in (False, True)
        )
        torch.testing.assert_close(compiled, plain, rtol=1e-12, atol=0)
        grads = [torch.autograd.grad(value, weight)[0] for value in (plain, compiled)]
        torch.testing.assert_close(grads[1], grads[0], rtol=0, atol=1e-10)
    kernel._compiled_nll_and_gradient.cache_clear()
    assert len(seen) == 2


@pytest.mark.parametrize("n_vocab", [32_000, 100_000])
def test_in_fp16_a_flat_softmax_over_many_words_keeps_its_digits(n_vocab):
    torch.manual_seed(4)
    hidden = (0.1 * torch.rand(1, 64, 8)).half().float().requires_grad_()
    weight = (1e-3 * torch.randn(n_vocab, 8)).half().float().requires_grad_()
    gold = torch.randint(1, n_vocab, (1, 64))
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    wanted = plain(*exact, gold, smoothing=0.0)
    with torch.autocast("cpu", dtype=torch.float16):
        found = smoothed_cross_entropy(hidden, weight, gold, smoothing=0.0)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=0)
    grads = list(zip(torch.autograd.grad(found, (hidden, weight)), torch.autograd.grad(wanted, exact), strict=True))
    # Of words that are never gold the gradient is a sum of hidden states over the number of words.
    others = torch.ones(n_vocab, dtype=torch.bool).index_fill(0, gold.flatten(), False)
    for one, other in (*grads, [grad[others] for grad in grads[1]]):
        assert one.isfinite().all() and (one - other).norm() < 1e-3 * other.norm()
