"""Each kernel for a CPU, and its gradient, against the plain form of `ops.py` in fp64, on odd sizes."""

import copy
import math
import os
import platform
from pathlib import Path

import pytest
import torch
from torch import nn

from nmt import ops
from nmt.kernels import cross_entropy, dropping, half_products, linears, passes, products, switch
from nmt.kernels.attention import Attention
from nmt.kernels.choice import choose
from nmt.masks import PackedMask, Packing, SharedMask
from nmt.models.transformer.Modules import RMSNorm

if why_not := switch.why_not():
    pytest.skip(f"no kernels here: {why_not}", allow_module_level=True)

TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
ERROR = {torch.float32: 5e-6, torch.bfloat16: 2e-2}
IN_PANELS = pytest.mark.skipif(not products.fp32_in_kernels(), reason="no kernels multiply fp32 on this processor")
SEED, N_DROP = 2**63 - 25, switch.N_CHANCE // 4


@pytest.fixture(autouse=True)
def switched_on():
    torch.manual_seed(1)
    switch.use(True)
    n_thread = torch.get_num_threads()
    yield
    torch.set_num_threads(n_thread)


def near(found, exact, error):
    assert found.shape == exact.shape
    found, exact = found.detach().double(), exact.detach().double()
    return not found.numel() or bool((found - exact).abs().max() <= error * max(1.0, float(exact.abs().max())))


# -- the operations of `ops.py` ----------------------------------------------------------------------------------------


def linear_layers(d, *widths, bias=True):
    return [nn.Linear(d, width, bias=bias) for width in widths]


def norm(kind, d):
    made = RMSNorm(d, eps=1e-6) if kind == "rms" else nn.LayerNorm(d, eps=1e-6, bias=kind == "layer")
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_()
    return [made]


def attends(mask):
    return lambda q, k, v: ops.attention(q, k, v, mask, 0.3)[0]


def some_mask(*shape):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))) > 0.3
    mask[-1, :, 0] = False  # one sees nothing
    return mask


def ends(*lengths):
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def packed(of_query, of_key, causal):
    sides = [Packing.of(ends(*lengths), max(lengths), sum(lengths)) for lengths in (of_query, of_key)]
    return PackedMask(*sides, causal)


def of_loss(hidden, weight):
    gold = torch.randint(0, len(weight), hidden.shape[:2], generator=torch.Generator().manual_seed(2))
    return ops.smoothed_cross_entropy(hidden, weight, gold, smoothing=0.1, scale=0.7)


def of_two(p, q, weight):
    gold = torch.randint(0, len(weight), p.shape[:2], generator=torch.Generator().manual_seed(2))
    return ops.consistency(p, q, weight, gold, ce=(0.5, 0.3), kl=(1.0, 0.5), smoothing=0.1, scale=0.7)[0]


# name: kernel that is asked for, function of tensors and modules, shapes of the tensors, modules
CASES = {
    "one linear layer": ("", lambda x, *layers: ops.fused_linear(x, layers), [(3, 5, 8)], linear_layers(8, 4)),
    "several": ("", lambda x, *layers: ops.fused_linear(x, layers), [(2, 9, 33)], linear_layers(33, 8, 70, 4)),
    "no biases": ("", lambda x, *layers: ops.fused_linear(x, layers), [(1, 1, 8)], linear_layers(8, 5, 4, bias=False)),
    "as wide as tiles": ("", lambda x, *layers: ops.fused_linear(x, layers), [(2, 70, 64)], linear_layers(64, 32, 96)),
    "around a ReLU": ("", ops.linear_relu_linear, [(3, 5, 8)], [nn.Linear(8, 33), nn.Linear(33, 7)]),
    "around a ReLU of many": ("", ops.linear_relu_linear, [(2, 90, 64)], [nn.Linear(64, 128), nn.Linear(128, 64)]),
    **{
        f"{name} {kind} {d}": (kernel, function, shapes(d), norm(kind, d))
        for kind, d in (("layer", 24), ("no bias", 7), ("rms", 513), ("layer", 100))
        for name, kernel, function, shapes in (
            ("norm", "normalise", ops.normed, lambda d: [(2, 43, d)]),
            ("both ways", "normalise_backward", lambda x, its: ops.residual_and_input(x, its), lambda d: [(3, 9, d)]),
            (
                "end of a sub-layer",
                "add_and_normalise",
                lambda x, y, its: ops.add_and_norm(x, y, 0.0, its),
                lambda d: [(2, 67, d)] * 2,
            ),
        )
    },
    **{
        f"attention {shape}": ("attend", attends(some_mask(*mask)), [(b, h, t, dk), (b, g, s, dk), (b, g, s, dv)], [])
        for shape in ((3, 4, 2, 5, 7, 8, 6), (1, 3, 1, 1, 1, 1, 1), (5, 4, 4, 26, 17, 64, 64), (2, 8, 1, 3, 40, 24, 5))
        for b, h, g, t, s, dk, dv in [shape]
        for mask in ((b, 1, t, s),)
    },
    "padded attention": ("attend", attends(some_mask(2, 1, 1, 9)), [(2, 2, 6, 16), (2, 1, 9, 16), (2, 1, 9, 8)], []),
    "packed attention": (
        "attend",
        attends(packed((26, 0, 19, 2), (17, 3, 33, 0), causal=False)),
        [(1, 4, 47, 24), (1, 2, 53, 24), (1, 2, 53, 8)],
        [],
    ),
    "packed, not ahead": ("attend", attends(packed((16, 64, 1), (16, 64, 1), True)), [(1, 4, 81, 8)] * 3, []),
    **{f"loss of {n}": ("exponents", of_loss, [(1, n, 8), (17, 8)], []) for n in (1, 31, 64, 150)},
    "loss of two passes": ("", of_two, [(5, 30, 8), (5, 30, 8), (16, 8)], []),
}


def outcome(function, inputs, modules, *, half=False):
    """What a function makes of its inputs, and all gradients of a sum of that."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        found = function(*inputs, *modules)
    found = list(found) if isinstance(found, tuple) else [found]
    generator = torch.Generator().manual_seed(9)
    loss = sum((out.double() * torch.randn(out.shape, generator=generator).double()).sum() for out in found)
    parameters = [parameter for module in modules for parameter in module.parameters()]
    return [*found, *torch.autograd.grad(loss, [*inputs, *parameters])]


@pytest.mark.parametrize("name", CASES)
@TYPES
def test_an_operation_and_its_gradient_are_the_plain_form(name, dtype, kernels_asked, monkeypatch):
    kernel, function, shapes, modules = CASES[name]
    monkeypatch.setitem(cross_entropy.CHUNK_BYTES, "cpu", 1)  # so a chunk has 64 tokens
    switch.use(True)
    inputs = [torch.randn(shape) for shape in shapes]
    found = outcome(function, inputs, modules, half=dtype == torch.bfloat16)
    assert kernels_asked[kernel] or not kernel
    monkeypatch.setattr(ops, "cross_entropy", ops._NoKernels())
    wide = [copy.deepcopy(module).double() for module in modules]
    kernels_asked.clear()
    wanted = outcome(function, [x.double() for x in inputs], wide)
    assert not kernels_asked
    for one, exact in zip(found, wanted, strict=True):
        error = ERROR[dtype] * (3 if "loss" in name else 1)
        # A hidden unit near zero is on one side of the ReLU or on the other.
        assert near(one, exact, error) or ("ReLU" in name and (one - exact).norm() < 4 * error * exact.norm())


def test_a_gradient_of_the_loss_is_scaled_in_place_and_asked_for_once():
    hidden, weight = torch.randn(1, 5, 6, requires_grad=True), torch.randn(11, 6, requires_grad=True)
    loss = of_loss(hidden, weight)
    torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, (hidden, weight))


def test_in_fp16_a_flat_softmax_over_many_words_keeps_its_digits(monkeypatch):
    n_vocab = 100_000
    hidden, weight = (0.1 * torch.rand(1, 64, 8)).half().float(), (1e-3 * torch.randn(n_vocab, 8)).half().float()
    gold = torch.randint(1, n_vocab, (1, 64))

    def of(hidden, weight):
        return ops.smoothed_cross_entropy(hidden, weight, gold, smoothing=0.0)

    with torch.autocast("cpu", dtype=torch.float16):
        found = outcome(of, [hidden, weight], [])
    monkeypatch.setattr(ops, "cross_entropy", ops._NoKernels())
    for one, exact in zip(found, outcome(of, [hidden.double(), weight.double()], []), strict=True):
        assert one.isfinite().all() and (one - exact).norm() < 1e-3 * exact.norm()


def test_the_pass_over_logits_is_compiled_for_full_chunks_and_once_for_what_is_left(monkeypatch):
    seen, compile_with = [], torch.compile
    torch.compiler.reset()
    cross_entropy._compiled_nll_and_gradient.cache_clear()

    def count(graph, _inputs):
        seen.append(graph)
        return graph.forward

    switch.use(False)
    monkeypatch.setattr(torch, "compile", lambda what: compile_with(what, backend=count, fullgraph=True))
    monkeypatch.setitem(cross_entropy.CHUNK_BYTES, "cpu", 1)
    weight = torch.randn(16, 8, dtype=torch.float64)
    for n in (200, 130, 67):
        hidden, gold = torch.randn(1, n, 8, dtype=torch.float64), torch.randint(1, 16, (1, n))
        plain, compiled = (
            ops.smoothed_cross_entropy(hidden, weight, gold, smoothing=0.1, compiled=how) for how in (False, True)
        )
        torch.testing.assert_close(compiled, plain, rtol=1e-12, atol=0)
    cross_entropy._compiled_nll_and_gradient.cache_clear()
    assert len(seen) == 2


# -- dropout -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 255, 257, 5000])
@TYPES
def test_dropout_is_what_it_says_and_its_gradient_drops_the_same(size, dtype):
    x, residual = torch.randn(size).to(dtype).requires_grad_(), torch.randn(size, requires_grad=True)
    weight, kept = torch.randn(size), []
    for y in (torch.ones(size), x):
        torch.manual_seed(3)
        kept.append(ops.dropout(y, 0.25, residual if y is x else None))
    keep, out = kept
    assert not keep[keep != torch.tensor(dropping.scale_up(0.25))].any()
    assert near(out, residual.double() + x.double() * keep, 3e-7)
    (out * weight).sum().backward()
    assert torch.equal(residual.grad, weight) and near(x.grad, (weight * keep).double(), ERROR[dtype])


def test_the_share_that_is_dropped_is_the_one_asked_for_and_no_place_knows_of_another():
    ones = torch.ones(n := 2**20)
    first, second = (passes.drop_add(ones, None, seed, N_DROP, 1.0, torch.float32) for seed in (5, 6))
    error = 4 * math.sqrt(0.25 * 0.75 / n)  # four standard deviations
    assert abs(first.mean() - 0.75) < error and abs(second.mean() - 0.75) < error
    centred = first - 0.75
    for shift in (1, 2, 3, 4, 8, 256, 1024):
        assert abs((centred[shift:] * centred[:-shift]).mean()) < error, f"places {shift} apart"
    assert abs((centred * (second - 0.75)).mean()) < error, "seeds beside each other"


@pytest.mark.parametrize("d", [24, 6])  # rows that begin with a word of chance, and others
@TYPES
def test_the_end_of_a_sub_layer_drops_as_dropout_does(d, dtype):
    (its,), x, residual = norm("layer", d), torch.randn(3, 5, d).to(dtype), torch.randn(3, 5, d)
    made = []
    for end in (
        lambda x, y, its: ops.add_and_norm(x, y, 0.4, its),
        lambda x, y, its: ops.normed(ops.dropout(x, 0.4, y), its),
    ):
        torch.manual_seed(3)
        made.append(outcome(end, [x, residual], [its]))
    assert all(near(one, other, ERROR[dtype]) for one, other in zip(*made, strict=True))


# Sentences side by side, and end to end.
@pytest.mark.parametrize("is_packed", [False, True])
def test_weights_of_attention_are_dropped_alike_in_the_gradient_and_otherwise_in_each_sentence(is_packed):
    n_head, t, s, d = 4, 9, 11, 8
    mask = packed((t, t), (s, s), causal=False) if is_packed else torch.ones(1, 1, 1, s, dtype=torch.bool)
    shapes = [(1, n_head, 2 * t, d), *[(1, 2, 2 * s, d)] * 2] if is_packed else [(2, n_head, t, d), *[(2, 2, s, d)] * 2]
    q, k, v = map(torch.randn, shapes)
    attention = Attention(mask, 0.3, SEED, N_DROP, 4 / 3)
    # What stays is seen by values that tell one key each.
    told = torch.eye(v.size(2)).expand(*v.shape[:2], -1, -1)
    weight = Attention(mask, 0.3).forward(q, k, told)[0].double()
    keep = torch.where(weight > 0, attention.forward(q, k, told)[0] / weight, 0.0).round(decimals=3)
    assert set(keep.unique().tolist()) <= {0.0, 1.333} and 0.6 < (keep[weight > 0] > 0).double().mean() < 0.9
    one, other = (keep[0, :, :t, :s], keep[0, :, t:, s:]) if is_packed else keep
    assert (one != other).any(-1).double().mean() > 0.5

    def exact(q, k, v):
        whole = mask.matrix() if is_packed else mask
        k, v = (x.repeat_interleave(2, 1) for x in (k, v))
        score = (q @ k.mT * 0.3).masked_fill(~whole, float("-inf"))
        return (score.softmax(-1) * (keep > 0) * (4 / 3)) @ v

    out, weights = attention.forward(q, k, v)
    wanted, d_out = outcome(exact, [x.double() for x in (q, k, v)], []), torch.Generator().manual_seed(9)
    grads = attention.backward(q, k, v, weights, torch.randn(out.shape, generator=d_out))
    assert all(near(one, other, 5e-6) for one, other in zip([out, *grads], wanted, strict=True))


# -- search ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
@TYPES
def test_hypotheses_look_up_what_attention_finds(dtype, kernels_asked):
    q, k, v = torch.randn(3, 4, 5, 8), torch.randn(3, 2, 7, 8), torch.randn(3, 2, 7, 6)
    mask = some_mask(3, 1, 5, 7)
    switch.use(True)
    found, _ = ops.attention(q.to(dtype), k.to(dtype), v.to(dtype), SharedMask(mask, in_search=True), 0.3)
    assert kernels_asked["look_up"] and not found[-1, :, 0].any()
    assert near(found, attends(mask)(q.double(), k.double(), v.double()), ERROR[dtype])


@pytest.mark.parametrize("n_column", [1, 5, 16, 65, 1000])
@pytest.mark.parametrize("n", [1, 6])
@pytest.mark.parametrize("tied", [False, True])
@TYPES
def test_the_best_columns_are_those_of_a_stable_sort(n_column, n, dtype, tied):
    logits = 3 * torch.randn(7, n_column)
    logits = (logits.round() if tied else logits).to(dtype)
    never = torch.randperm(n_column)[: min(3, n_column - 1)]
    n = min(n, n_column)
    best, column, log_total = choose(logits, n, never)
    exact = logits.double()
    assert torch.allclose(log_total.double(), exact.logsumexp(1), atol=1e-5)
    exact[:, never] = -torch.inf
    ordered = exact.sort(dim=1, descending=True, stable=True)
    assert torch.equal(best.double(), ordered.values[:, :n])
    there = best > -torch.inf
    assert torch.equal(column[there], ordered.indices[:, :n][there])


def test_columns_that_are_not_finite_are_not_chosen():
    logits = torch.zeros(3, 70)
    logits[0, 69], logits[1], logits[2] = float("nan"), float("nan"), -torch.inf
    best, column, log_total = choose(logits, 2, torch.tensor([0]))
    assert best[0].tolist() == [0.0, 0.0] and column[0].tolist() == [1, 2] and log_total[:2].isnan().all()
    assert (best[1:] == -torch.inf).all()


@pytest.mark.parametrize("bias", [False, True])
def test_matrices_that_lie_beside_each_other_are_one(bias):
    """As on a GPU, where `fused_linear` asks for that."""
    layers, x = linear_layers(8, 4, 6, 4, bias=bias), torch.randn(2, 3, 8)
    wanted = [layer(x) for layer in layers]
    with torch.inference_mode():
        assert linears._beside_each_other(x, layers) is None
        linears.lay_beside_each_other(layers)
        found = linears._beside_each_other(x, layers)
        assert linears._beside_each_other(x, layers[::2]) is None
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


# -- products ----------------------------------------------------------------------------------------------------------

SIZES = [(1, 1, 1), (16, 32, 16), (5, 70, 130), (70, 300, 45), (100, 520, 600), (97, 1030, 8), (12, 3, 1040)]
LAID = {
    "rows": lambda x: x,
    "columns": lambda x: x.t().contiguous().t(),
    "part of rows": lambda x: torch.cat([x, x], 1)[:, : x.size(1)],
    "neither": lambda x: torch.stack([x, x], 2).flatten(1)[:, ::2],
}


def mostly_zeros(n, d, share):
    """Numbers of which a share is not zero; of some rows none is, and of some all are."""
    there = torch.rand(n, d) < share
    there[::7], there[3::50] = False, True
    return torch.where(there, torch.randn(n, d), 0.0)


@pytest.mark.parametrize(("a_laid", "b_laid"), [*zip(LAID, [*LAID][1:] + [*LAID][:1], strict=True), ("rows", "rows")])
@pytest.mark.parametrize("size", SIZES)
def test_a_product_is_that_of_fp64_however_its_factors_lie_and_without_zeros_the_same(size, a_laid, b_laid):
    n, d, e = size
    bias, exact = torch.randn(e), None
    for share in (1.0, 0.1, 0.5):
        a, b = LAID[a_laid](mostly_zeros(n, d, share)), LAID[b_laid](torch.randn(d, e))
        exact = a.double() @ b.double()
        found = products.product(a, b)
        assert near(found, exact, 3e-6) and torch.equal(products.product(a, b, zeros=True), found)
        for relu in (False, True):
            made = products.linear(a, [b.t()], bias, relu=relu)
            assert near(made, (exact + bias).relu() if relu else exact + bias, 3e-6)
            assert torch.equal(products.linear(a, [b.t()], bias, relu=relu, zeros=True), made)
    assert torch.equal(products.product(torch.ones(n, 0), torch.ones(0, e)), torch.zeros(n, e))


@IN_PANELS
def test_zeros_are_left_out_where_there_are_many_and_only_there():
    for share, left_out in ((0.3, True), (0.9, False)):
        a, b = mostly_zeros(200, 300, share), torch.randn(300, 70)
        a[:, 5], b[5] = 0.0, float("inf")  # which only who multiplies by zero finds
        assert products.product(a, b).isnan().all()
        assert bool(products.product(a, b, zeros=True).isfinite().all()) is left_out


@IN_PANELS
@pytest.mark.parametrize("draw", [torch.randn, torch.rand])
def test_a_product_is_as_exact_as_that_of_torch_and_a_row_the_same_in_any_company(draw):
    a, b = draw(200, 4096), draw(4096, 130)
    exact, found = a.double() @ b.double(), products.product(a, b)
    error, usual = ((one.double() - exact).square().mean().sqrt() for one in (found, a @ b))
    assert error < 1.5 * usual
    for n_thread in (1, 3):
        torch.set_num_threads(n_thread)
        assert torch.equal(products.product(a[50:53], b), found[50:53])
        assert torch.equal(products.product(a, b[:, 20:60]), found[:, 20:60])
        laid = products.LaidOut(b.t())
        assert torch.equal(laid.linear(a, None), found)


@IN_PANELS
def test_a_product_in_kernels_that_is_not_exact_is_not_taken_for_fp32(monkeypatch):
    monkeypatch.setattr(products, "_multiply", lambda out, a, b: (a.bfloat16() @ b.bfloat16()).float())
    assert not products.fp32_in_kernels.__wrapped__()


@pytest.mark.parametrize("size", [(7, 5, 3), (40, 70, 130), (131, 300, 65)])
def test_each_of_many_products_is_that_product(size):
    n, d, e = size
    a, b = torch.randn(5, n, d), torch.randn(5, d, e)
    for right in (b, b.mT.contiguous().mT):
        assert near(ops.product_of_each(a, right), a.double() @ b.double(), 3e-6)
    found = ops.product_of_each(a, a.mT, symmetric=True)
    assert near(found, a.double() @ a.double().mT, 3e-6) and torch.equal(found, found.mT)


@pytest.mark.parametrize("size", [(1, 64, 3), (65, 64, 70), (70, 60, 64), (131, 192, 1030)])
def test_where_another_is_zero_a_product_is_zero_and_columns_are_summed_up(size):
    n, d, e = size
    a, b, kept = torch.randn(n, d), torch.randn(d, e), mostly_zeros(n, e, 0.3)
    found, sums = products.product_where(a, b, kept)
    exact = torch.where(kept == 0, 0.0, a.double() @ b.double())
    assert near(found, exact, 3e-6) and near(sums, exact.sum(0), 3e-6)


@pytest.mark.parametrize("widths", [(64, 16), (300, 8), (1, 1), (33, 70), (1100, 600)])
@pytest.mark.parametrize("n", [0, 1, 90, 300])
@TYPES
def test_the_gradient_of_a_weight_is_the_product(widths, n, dtype):
    d_out, x = (torch.randn(n, width).to(dtype) for width in widths)
    exact = d_out.double().t() @ x.double()
    for zeros_in in ("", "x", "d_out"):
        found = products.weight_gradient(d_out, x, torch.float32, zeros_in=zeros_in)
        assert found.is_contiguous() and near(found, exact, ERROR[dtype])
    products.add_weight_gradient(found, d_out, x)
    assert near(found, 2 * exact, ERROR[dtype])


def test_without_instructions_for_bf16_products_are_those_of_fp32_rounded_once(monkeypatch):
    monkeypatch.setattr(products, "bf16_in_fp32", lambda: True)
    x, weight, bias = torch.randn(90, 64).bfloat16(), torch.randn(48, 64).bfloat16(), torch.full((48,), 1.001)
    wide = products.linear(x.float(), [weight.float()], bias)
    assert torch.equal(products.linear(x, [weight], bias), wide.bfloat16())
    switch.use(False)
    assert products.widened(x) is x


@pytest.mark.skipif(platform.machine() != "x86_64", reason="which words tell of it is known of x86-64 alone")
def test_the_compiler_knows_what_the_system_says_of_the_processor():
    told = [*Path("/proc/cpuinfo").read_text(encoding="utf-8").split(), os.environ.get("CC", "")]
    has = ("avx512_bf16" in told or "-D__AVX512BF16__" in told[-1]) and "-U__AVX512BF16__" not in told[-1]
    assert switch.library().multiplies_half() == has


@pytest.mark.skipif(not half_products.in_kernels(), reason="this processor has no instructions of AVX-512 for bf16")
@pytest.mark.parametrize("size", [(128, 32, 32), (131, 64, 96), (300, 1024, 320)])
def test_products_of_bf16_are_those_of_fp64(size):
    n, d, e = size
    a, b, bias = torch.randn(n, d).bfloat16(), torch.randn(d, e).bfloat16(), torch.randn(e)
    kept, sums = torch.randn(n, e).relu().bfloat16(), torch.empty(e)
    exact = a.double() @ b.double()
    for right in (b, LAID["columns"](b), LAID["part of rows"](b), b.float()):
        assert near(half_products.multiply(a, [right]), exact, 1e-2)
        assert near(half_products.multiply(a, [right], bias=bias, relu=True), (exact + bias).relu(), 1e-2)
    found = half_products.multiply(a, [b], kept=kept, sums=sums)
    assert near(found, exact * (kept != 0), 1e-2) and near(sums, found.double().sum(0), 1e-5)
    together = half_products.multiply(a, [b, b], side_by_side=True)
    assert torch.equal(together, half_products.multiply(a, [b]).repeat(1, 2))
    a[7, 11] = float("nan")
    lost = half_products.multiply(a, [b])
    assert lost[7].isnan().all() and lost[:7].isfinite().all()


# -- all of them -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(1,), (3, 0, 64), (16384, 16385, 7)])
def test_the_norm_of_many_tensors_is_that_of_one(sizes):
    tensors = [torch.randn(size) for size in sizes]
    assert near(ops.total_norm(tensors), torch.cat(tensors).double().norm(), 1e-6)
    tensors[-1][-1] = float("nan")
    assert ops.total_norm(tensors).isnan()


@pytest.mark.parametrize("name", [*(name for name in CASES if name.startswith(("several", "around", "norm", "both")))])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@TYPES
def test_what_is_not_finite_stays_visible_in_its_row_and_in_no_other(name, wrong, dtype):
    _, function, (shape, *_), modules = CASES[name]
    x = torch.randn(shape)
    x[0, 1, -1] = wrong
    out, *_, d_bias = outcome(function, [x], modules, half=dtype == torch.bfloat16)
    assert not out[0, 1].isfinite().all() and out[0, 0].isfinite().all()
    if not name.startswith("around"):
        assert len(modules) > 1 or not outcome(function, [x], modules)[-1].isfinite().all() or d_bias.dim() == 1


def test_what_is_not_finite_comes_out_of_attention_and_of_the_loss_unless_it_is_hidden():
    q, k, v = (torch.randn(1, 1, 4, 8) for _ in range(3))
    k[0, 0, 2, 0] = float("nan")
    mask = torch.ones(1, 1, 1, 4, dtype=torch.bool)
    assert attends(mask)(q, k, v).isnan().all()
    mask[..., 2] = False
    assert attends(mask)(q, k, v).isfinite().all()
    hidden = torch.randn(1, 3, 8)
    hidden[0, 1, 1] = float("inf")
    assert not of_loss(hidden, torch.randn(17, 8)).isfinite()


@pytest.mark.parametrize("name", CASES)
def test_the_number_of_threads_changes_no_bit(name):
    _, function, shapes, modules = CASES[name]
    inputs, found = [torch.randn(shape) for shape in shapes], []
    for n in (1, 3):
        torch.set_num_threads(n)
        found.append(outcome(function, inputs, modules, half=True))
    own = ("norm", "both", "end", "attention", "padded", "packed")  # torch's products may differ
    assert all(map(torch.equal, *found)) or (not products.fp32_in_kernels() and not name.startswith(own))


def test_only_what_they_were_written_for_is_taken():
    assert switch.takes(torch.ones(1), torch.ones(1, dtype=torch.bfloat16))
    assert not switch.takes(torch.ones(1, dtype=torch.float64))
    assert not switch.takes(torch.ones(1), torch.ones(1, device="meta"))
    switch.use(False)
    assert not switch.takes(torch.ones(1))
