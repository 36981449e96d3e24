"""The loss: equal to torch's, whatever the chunks; its gradient equal to autograd's."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy, log_softmax

from nmt.kernels import products, switch
from nmt.training import loss as room
from nmt.training import validate
from nmt.training.loss import smoothed_cross_entropy

PAD = 0


def example(dtype=torch.float64, v=11, d=6, n_sentence=4):
    torch.manual_seed(0)
    hidden = torch.randn(n_sentence, 5, d, dtype=dtype, requires_grad=True)
    weight = torch.randn(v, d, dtype=dtype, requires_grad=True)
    gold = torch.randint(1, v, (n_sentence, 5))
    gold[1, 3:] = PAD
    gold[2, 1:] = PAD
    return hidden, weight, gold


def by_target_distributions(hidden, weight, gold, smoothing, scale):
    """The definition, with the target distribution written out."""
    logits = scale * hidden @ weight.t()
    v = logits.size(-1)
    target = torch.full_like(logits, smoothing / (v - 1))
    target[..., PAD] = 0
    target.scatter_add_(-1, gold.unsqueeze(-1), torch.full_like(logits[..., :1], 1 - smoothing))
    each = cross_entropy(logits.flatten(0, 1), target.flatten(0, 1), reduction="none")
    return each[(gold != PAD).flatten()].sum()


@pytest.fixture(params=[1 << 30, 1])
def chunk_bytes(request, monkeypatch):
    monkeypatch.setitem(room.CHUNK_BYTES, "cpu", request.param)
    return request.param


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_loss_and_gradients_are_those_of_the_definition(smoothing, scale, chunk_bytes):
    hidden, weight, gold = example(n_sentence=30)  # two and a half of the smallest chunks
    wanted = by_target_distributions(hidden, weight, gold, smoothing, scale)
    wanted_grads = torch.autograd.grad(wanted, (hidden, weight))
    found = smoothed_cross_entropy(hidden, weight, gold, smoothing=smoothing, scale=scale, pad_idx=PAD)
    found_grads = torch.autograd.grad(found * 1.0, (hidden, weight))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    for a, b in zip(found_grads, wanted_grads, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_many_chunks_are_one_chunk(monkeypatch):
    torch.manual_seed(1)
    hidden = torch.randn(20, 30, 8, dtype=torch.float64)
    weight = torch.randn(16, 8, dtype=torch.float64)
    gold = torch.randint(1, 16, (20, 30))
    found = []
    for size in (1 << 30, 1):
        monkeypatch.setitem(room.CHUNK_BYTES, "cpu", size)
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        value = smoothed_cross_entropy(h, w, gold, smoothing=0.1)
        found.append((value, *torch.autograd.grad(value, (h, w))))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@pytest.mark.skipif(bool(switch.why_not()), reason=f"no kernels here: {switch.why_not()}")
@pytest.mark.parametrize("compiled", [False, True])  # which our kernels have no need of
@pytest.mark.parametrize("n_token", [1, 31, 32, 64, 65, 150])
def test_rows_that_fill_up_the_last_chunk_change_nothing(n_token, compiled, monkeypatch, kernels_asked):
    monkeypatch.setitem(room.CHUNK_BYTES, "cpu", 1)  # so a chunk has 64 tokens
    torch.manual_seed(1)
    hidden, weight = (torch.randn(*size, requires_grad=True) for size in ((1, n_token, 8), (16, 8)))
    gold = torch.randint(1, 16, (1, n_token))
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    wanted = by_target_distributions(*exact, gold, 0.1, 0.7)
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
    hidden, weight, gold = example(torch.float32)
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    wanted = torch.autograd.grad(by_target_distributions(*exact, gold, 0.1, 1.0) / 3, exact)
    switch.use(True)
    found = smoothed_cross_entropy(hidden, weight, gold, smoothing=0.1) / 3
    switch.use(False)
    assert kernels_asked["exponents"]
    grads = torch.autograd.grad(found, (hidden, weight), retain_graph=True)
    for one, other in zip(grads, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=3e-6, atol=3e-6)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):  # and no factor twice
        torch.autograd.grad(found, (hidden, weight))


def test_without_smoothing_it_is_the_negative_log_likelihood():
    hidden, weight, gold = example()
    logp = log_softmax(hidden @ weight.t(), -1).gather(-1, gold.unsqueeze(-1)).squeeze(-1)
    found = smoothed_cross_entropy(hidden, weight, gold, smoothing=0.0)
    torch.testing.assert_close(found, -logp[gold != PAD].sum(), rtol=0, atol=1e-12)


def test_padding_changes_neither_loss_nor_gradient():
    hidden, weight, gold = example()
    value = smoothed_cross_entropy(hidden, weight, gold, smoothing=0.1)
    wanted = torch.autograd.grad(value, (hidden, weight))
    longer = torch.cat([hidden.detach(), torch.randn(4, 9, 6, dtype=torch.float64)], dim=1).requires_grad_()
    padded = smoothed_cross_entropy(longer, weight, torch.nn.functional.pad(gold, (0, 9)), smoothing=0.1)
    found = torch.autograd.grad(padded, (longer, weight))
    torch.testing.assert_close(padded, value, rtol=0, atol=1e-12)
    torch.testing.assert_close(found[0][:, :5], wanted[0], rtol=0, atol=1e-12)
    assert not found[0][:, 5:].any()
    torch.testing.assert_close(found[1], wanted[1], rtol=0, atol=1e-12)


def test_the_gradient_follows_a_factor():
    hidden, weight, gold = example()
    one = torch.autograd.grad(smoothed_cross_entropy(hidden, weight, gold, smoothing=0.1), hidden)[0]
    third = torch.autograd.grad(smoothed_cross_entropy(hidden, weight, gold, smoothing=0.1) / 3, hidden)[0]
    torch.testing.assert_close(third, one / 3)


def test_under_bf16_autocast_it_is_close_to_fp32_and_gives_gradients_in_the_weights_type():
    hidden, weight, gold = example(torch.float32)
    wanted = smoothed_cross_entropy(hidden, weight, gold, smoothing=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = smoothed_cross_entropy(hidden, weight, gold, smoothing=0.1)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=0)
    assert torch.autograd.grad(found, weight)[0].dtype == torch.float32


@pytest.mark.parametrize("n_vocab", [32_000, 100_000])
def test_in_fp16_a_flat_softmax_over_many_words_keeps_its_digits(n_vocab):
    torch.manual_seed(4)
    hidden = (0.1 * torch.rand(1, 64, 8)).half().float().requires_grad_()
    weight = (1e-3 * torch.randn(n_vocab, 8)).half().float().requires_grad_()
    gold = torch.randint(1, n_vocab, (1, 64))
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    wanted = by_target_distributions(*exact, gold, 0.0, 1.0)
    with torch.autocast("cpu", dtype=torch.float16):
        found = smoothed_cross_entropy(hidden, weight, gold, smoothing=0.0)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=0)
    grads = list(zip(torch.autograd.grad(found, (hidden, weight)), torch.autograd.grad(wanted, exact), strict=True))
    # Of words that are never gold the gradient is a sum of hidden states over the number of words.
    others = torch.ones(n_vocab, dtype=torch.bool).index_fill(0, gold.flatten(), False)
    for one, other in (*grads, [grad[others] for grad in grads[1]]):
        assert one.isfinite().all() and (one - other).norm() < 1e-3 * other.norm()


def test_chunks_of_a_gpu_grow_with_its_memory(monkeypatch):
    memory = {0: 80 << 30, 1: 8 << 30}
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=memory[device.index])
    )
    assert room.chunk_bytes(torch.device("cuda:0")) == (80 << 30) // 64
    assert room.chunk_bytes(torch.device("cuda:1")) == room.CHUNK_BYTES["cuda"] == 256 << 20
    assert room.chunk_bytes(torch.device("cpu")) == 32 << 20


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_what_the_compiler_gets_is_the_same_pass(dtype):
    torch.manual_seed(2)
    z, gold = (torch.randn(7, 30, dtype=torch.float64) * 5).to(dtype), torch.randint(1, 30, (7, 1))
    wanted = room.nll_and_gradient(z.clone(), gold, 0.9, torch.float64)
    for a, b in zip(room.nll_and_gradient_for_compiler(z, gold, 0.9, torch.float64), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_the_pass_is_compiled_for_full_chunks_and_once_for_what_is_left_of_any_batch(monkeypatch):
    """With a backend that only counts."""
    seen, compile_with = [], torch.compile

    def count(graph, _inputs):
        seen.append(graph)
        return graph.forward

    torch.compiler.reset()
    room._compiled_nll_and_gradient.cache_clear()
    monkeypatch.setattr(torch, "compile", lambda what: compile_with(what, backend=count, fullgraph=True))
    monkeypatch.setitem(room.CHUNK_BYTES, "cpu", 1)  # so a chunk has 64 tokens
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
    room._compiled_nll_and_gradient.cache_clear()
    assert len(seen) == 2


@pytest.mark.parametrize("n_gold", [None, 14])
def test_the_rows_that_count_are_the_same_when_their_number_is_known(n_gold):
    _, _, gold = example()
    assert torch.equal(room.rows_of(gold != PAD, n_gold), (gold != PAD).flatten().nonzero().squeeze(1))


def test_validation_counts_a_batch_in_parts_as_at_once(monkeypatch):
    torch.manual_seed(1)
    logits, gold = torch.randn(5, 7, 11), torch.randint(0, 11, (5, 7))
    loss, hits = validate._loss_and_hits(logits, gold)
    monkeypatch.setattr(validate, "_AT_ONCE", 3 * 11)  # three rows, of which 35 are no multiple
    parts, again = validate._loss_and_hits(logits, gold)
    real = gold != PAD
    assert int(hits) == int(again) == int((logits.argmax(-1) == gold)[real].sum()) > 0
    wanted = cross_entropy(logits[real].double(), gold[real], reduction="sum")
    torch.testing.assert_close(torch.stack([loss, parts]), torch.stack([wanted, wanted]), rtol=1e-6, atol=0)
