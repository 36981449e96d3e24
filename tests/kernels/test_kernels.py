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
from nmt.kernels import cross_entropy, dropping, half_products, linears, products, switch
from nmt.kernels.attention import attend
from nmt.kernels.choice import choose
from nmt.masks import PackedMask, Packing, SearchMask
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
    layer = RMSNorm(d, eps=1e-6) if kind == "rms" else nn.LayerNorm(d, eps=1e-6, bias=kind == "layer")
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    return [layer]


def attention_with(mask):
    return lambda q, k, v: ops.attention(q, k, v, mask, 0.3)[0]


def random_mask(*shape):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))) > 0.3
    mask[-1, :, 0] = False  # one query sees nothing
    return mask


def boundaries(*lengths):
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def packed(query_lengths, key_lengths, causal):
    sides = [Packing.of(boundaries(*lengths), max(lengths), sum(lengths)) for lengths in (query_lengths, key_lengths)]
    return PackedMask(*sides, causal)


def loss_of(hidden, weight):
    gold = torch.randint(0, len(weight), hidden.shape[:2], generator=torch.Generator().manual_seed(2))
    return ops.smoothed_cross_entropy(hidden, weight, gold, smoothing=0.1, scale=0.7)


def loss_of_two_passes(p, q, weight):
    gold = torch.randint(0, len(weight), p.shape[:2], generator=torch.Generator().manual_seed(2))
    return ops.consistency(p, q, weight, gold, ce=(0.5, 0.3), kl=(1.0, 0.5), smoothing=0.1, scale=0.7)[0]


# name: expected kernel, function of tensors and modules, shapes of the tensors, modules
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
            ("both ways", "normalise_backward", lambda x, ln: ops.residual_and_input(x, ln), lambda d: [(3, 9, d)]),
            (
                "end of a sub-layer",
                "add_and_normalise",
                lambda x, y, ln: ops.add_and_norm(x, y, 0.0, ln),
                lambda d: [(2, 67, d)] * 2,
            ),
        )
    },
    **{
        f"attention {shape}": (
            "attend",
            attention_with(random_mask(*mask)),
            [(b, h, t, dk), (b, g, s, dk), (b, g, s, dv)],
            [],
        )
        for shape in ((3, 4, 2, 5, 7, 8, 6), (1, 3, 1, 1, 1, 1, 1), (5, 4, 4, 26, 17, 64, 64), (2, 8, 1, 3, 40, 24, 5))
        for b, h, g, t, s, dk, dv in [shape]
        for mask in ((b, 1, t, s),)
    },
    "padded attention": (
        "attend",
        attention_with(random_mask(2, 1, 1, 9)),
        [(2, 2, 6, 16), (2, 1, 9, 16), (2, 1, 9, 8)],
        [],
    ),
    "packed attention": (
        "attend",
        attention_with(packed((26, 0, 19, 2), (17, 3, 33, 0), causal=False)),
        [(1, 4, 47, 24), (1, 2, 53, 24), (1, 2, 53, 8)],
        [],
    ),
    "packed, not ahead": ("attend", attention_with(packed((16, 64, 1), (16, 64, 1), True)), [(1, 4, 81, 8)] * 3, []),
    **{f"loss of {n}": ("exponents", loss_of, [(1, n, 8), (17, 8)], []) for n in (1, 31, 64, 150)},
    "loss of two passes": ("", loss_of_two_passes, [(5, 30, 8), (5, 30, 8), (16, 8)], []),
}


def evaluate(function, inputs, modules, *, half=False):
    """Return the outputs of a function and all gradients of a random sum of them."""
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
def test_operation_and_its_gradient_equal_the_plain_form(name, dtype, kernels_asked, monkeypatch):
    kernel, function, shapes, modules = CASES[name]
    monkeypatch.setitem(cross_entropy.CHUNK_BYTES, "cpu", 1)  # so a chunk has 64 tokens
    switch.use(True)
    inputs = [torch.randn(shape) for shape in shapes]
    found = evaluate(function, inputs, modules, half=dtype == torch.bfloat16)
    assert kernels_asked[kernel] or not kernel
    monkeypatch.setattr(ops, "cross_entropy", ops._NoKernels())
    wide = [copy.deepcopy(module).double() for module in modules]
    kernels_asked.clear()
    expected = evaluate(function, [x.double() for x in inputs], wide)
    assert not kernels_asked
    for tensor, exact in zip(found, expected, strict=True):
        error = ERROR[dtype] * (3 if "loss" in name else 1)
        # A hidden unit near zero may be on either side of the ReLU.
        assert near(tensor, exact, error) or ("ReLU" in name and (tensor - exact).norm() < 4 * error * exact.norm())


def test_gradient_of_the_loss_is_scaled_in_place_and_available_once():
    hidden, weight = torch.randn(1, 5, 6, requires_grad=True), torch.randn(11, 6, requires_grad=True)
    loss = loss_of(hidden, weight)
    torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, (hidden, weight))


def test_flat_softmax_over_many_words_keeps_its_precision_in_fp16(monkeypatch):
    n_vocab = 100_000
    hidden, weight = (0.1 * torch.rand(1, 64, 8)).half().float(), (1e-3 * torch.randn(n_vocab, 8)).half().float()
    gold = torch.randint(1, n_vocab, (1, 64))

    def loss(hidden, weight):
        return ops.smoothed_cross_entropy(hidden, weight, gold, smoothing=0.0)

    with torch.autocast("cpu", dtype=torch.float16):
        found = evaluate(loss, [hidden, weight], [])
    monkeypatch.setattr(ops, "cross_entropy", ops._NoKernels())
    for tensor, exact in zip(found, evaluate(loss, [hidden.double(), weight.double()], []), strict=True):
        assert tensor.isfinite().all() and (tensor - exact).norm() < 1e-3 * exact.norm()


def test_pass_over_logits_compiles_once_for_full_chunks_and_once_for_the_rest(monkeypatch):
    graphs, compile_with = [], torch.compile
    torch.compiler.reset()
    cross_entropy._compiled_nll_and_gradient.cache_clear()

    def count(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    switch.use(False)
    monkeypatch.setattr(torch, "compile", lambda function: compile_with(function, backend=count, fullgraph=True))
    monkeypatch.setitem(cross_entropy.CHUNK_BYTES, "cpu", 1)
    weight = torch.randn(16, 8, dtype=torch.float64)
    for n in (200, 130, 67):
        hidden, gold = torch.randn(1, n, 8, dtype=torch.float64), torch.randint(1, 16, (1, n))
        plain, compiled = (
            ops.smoothed_cross_entropy(hidden, weight, gold, smoothing=0.1, compiled=is_on) for is_on in (False, True)
        )
        torch.testing.assert_close(compiled, plain, rtol=1e-12, atol=0)
    cross_entropy._compiled_nll_and_gradient.cache_clear()
    assert len(graphs) == 2


# -- dropout -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 255, 257, 5000])
@TYPES
def test_dropout_scales_kept_values_and_its_gradient_drops_the_same(size, dtype):
    x, residual = torch.randn(size).to(dtype).requires_grad_(), torch.randn(size, requires_grad=True)
    weight, outputs = torch.randn(size), []
    for y in (torch.ones(size), x):
        torch.manual_seed(3)
        outputs.append(ops.dropout(y, 0.25, residual if y is x else None))
    keep, out = outputs
    assert not keep[keep != torch.tensor(4 / 3)].any()
    assert near(out, residual.double() + x.double() * keep, 3e-7)
    (out * weight).sum().backward()
    assert torch.equal(residual.grad, weight) and near(x.grad, (weight * keep).double(), ERROR[dtype])


def test_dropout_has_its_rate_and_is_independent_across_positions_and_seeds():
    ones = torch.ones(n := 2**20)
    first, second = (dropping.add_kept(ones, None, (seed, N_DROP, 1.0), torch.float32) for seed in (5, 6))
    error = 4 * math.sqrt(0.25 * 0.75 / n)  # four standard deviations
    assert abs(first.mean() - 0.75) < error and abs(second.mean() - 0.75) < error
    centred = first - 0.75
    for shift in (1, 2, 3, 4, 8, 256, 1024):
        assert abs((centred[shift:] * centred[:-shift]).mean()) < error, f"places {shift} apart"
    assert abs((centred * (second - 0.75)).mean()) < error, "seeds beside each other"


@pytest.mark.parametrize("d", [24, 6])  # rows aligned with words of random bits, and others
@TYPES
def test_add_and_norm_drops_like_dropout(d, dtype):
    (ln,), x, residual = norm("layer", d), torch.randn(3, 5, d).to(dtype), torch.randn(3, 5, d)
    results = []
    for end in (
        lambda x, y, ln: ops.add_and_norm(x, y, 0.4, ln),
        lambda x, y, ln: ops.normed(ops.dropout(x, 0.4, y), ln),
    ):
        torch.manual_seed(3)
        results.append(evaluate(end, [x, residual], [ln]))
    assert all(near(a, b, ERROR[dtype]) for a, b in zip(*results, strict=True))


# Padded and packed sentences.
@pytest.mark.parametrize("is_packed", [False, True])
def test_attention_dropout_is_the_same_in_the_gradient_and_differs_between_sentences(is_packed):
    n_head, t, s, d = 4, 9, 11, 8
    mask = packed((t, t), (s, s), causal=False) if is_packed else torch.ones(1, 1, 1, s, dtype=torch.bool)
    shapes = [(1, n_head, 2 * t, d), *[(1, 2, 2 * s, d)] * 2] if is_packed else [(2, n_head, t, d), *[(2, 2, s, d)] * 2]
    q, k, v = map(torch.randn, shapes)
    dropout = SEED, N_DROP, 4 / 3
    # One-hot values show which weights are kept.
    one_hot = torch.eye(v.size(2)).expand(*v.shape[:2], -1, -1)
    weight = attend(q, k, one_hot, mask, 0.3, dropping.NO_DROPOUT).double()
    keep = torch.where(weight > 0, attend(q, k, one_hot, mask, 0.3, dropout) / weight, 0.0).round(decimals=3)
    assert set(keep.unique().tolist()) <= {0.0, 1.333} and 0.6 < (keep[weight > 0] > 0).double().mean() < 0.9
    first, second = (keep[0, :, :t, :s], keep[0, :, t:, s:]) if is_packed else keep
    assert (first != second).any(-1).double().mean() > 0.5

    def exact(q, k, v):
        allowed = mask.matrix() if is_packed else mask
        k, v = (x.repeat_interleave(2, 1) for x in (k, v))
        score = (q @ k.mT * 0.3).masked_fill(~allowed, float("-inf"))
        return (score.softmax(-1) * (keep > 0) * (4 / 3)) @ v

    found = evaluate(lambda q, k, v: attend(q, k, v, mask, 0.3, dropout), [q, k, v], [])
    expected = evaluate(exact, [x.double() for x in (q, k, v)], [])
    assert all(near(a, b, 5e-6) for a, b in zip(found, expected, strict=True))


# -- search ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
@TYPES
def test_attention_of_hypotheses_equals_attention(dtype, kernels_asked):
    q, k, v = torch.randn(3, 4, 5, 8), torch.randn(3, 2, 7, 8), torch.randn(3, 2, 7, 6)
    mask = random_mask(3, 1, 5, 7)
    switch.use(True)
    found, _ = ops.attention(q.to(dtype), k.to(dtype), v.to(dtype), SearchMask(mask), 0.3)
    assert kernels_asked["look_up"] and not found[-1, :, 0].any()
    assert near(found, attention_with(mask)(q.double(), k.double(), v.double()), ERROR[dtype])


@pytest.mark.parametrize("n_column", [1, 5, 16, 65, 1000])
@pytest.mark.parametrize("n", [1, 6])
@pytest.mark.parametrize("tied", [False, True])
@TYPES
def test_best_columns_equal_those_of_a_stable_sort(n_column, n, dtype, tied):
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
    allowed = best > -torch.inf
    assert torch.equal(column[allowed], ordered.indices[:, :n][allowed])


def test_non_finite_columns_are_not_chosen():
    logits = torch.zeros(3, 70)
    logits[0, 69], logits[1], logits[2] = float("nan"), float("nan"), -torch.inf
    best, column, log_total = choose(logits, 2, torch.tensor([0]))
    assert best[0].tolist() == [0.0, 0.0] and column[0].tolist() == [1, 2] and log_total[:2].isnan().all()
    assert (best[1:] == -torch.inf).all()


@pytest.mark.parametrize("bias", [False, True])
def test_adjacent_matrices_are_multiplied_as_one(bias):
    """As on a GPU, where `fused_linear` uses this layout."""
    layers, x = linear_layers(8, 4, 6, 4, bias=bias), torch.randn(2, 3, 8)
    expected = [layer(x) for layer in layers]
    with torch.inference_mode():
        assert linears._beside_each_other(x, layers) is None
        linears.lay_beside_each_other(layers)
        found = linears._beside_each_other(x, layers)
        assert linears._beside_each_other(x, layers[::2]) is None
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


# -- products ----------------------------------------------------------------------------------------------------------

SIZES = [(1, 1, 1), (16, 32, 16), (5, 70, 130), (70, 300, 45), (100, 520, 600), (97, 1030, 8), (12, 3, 1040)]
LAYOUTS = {
    "rows": lambda x: x,
    "columns": lambda x: x.t().contiguous().t(),
    "part of rows": lambda x: torch.cat([x, x], 1)[:, : x.size(1)],
    "neither": lambda x: torch.stack([x, x], 2).flatten(1)[:, ::2],
}


def mostly_zeros(n, d, share):
    """Random numbers of which a share is nonzero; some rows have only zeros and some have none."""
    nonzero = torch.rand(n, d) < share
    nonzero[::7], nonzero[3::50] = False, True
    return torch.where(nonzero, torch.randn(n, d), 0.0)


@pytest.mark.parametrize(
    ("a_layout", "b_layout"), [*zip(LAYOUTS, [*LAYOUTS][1:] + [*LAYOUTS][:1], strict=True), ("rows", "rows")]
)
@pytest.mark.parametrize("size", SIZES)
def test_product_equals_fp64_in_every_layout_and_when_skipping_zeros(size, a_layout, b_layout):
    n, d, e = size
    bias, exact = torch.randn(e), None
    for share in (1.0, 0.1, 0.5):
        a, b = LAYOUTS[a_layout](mostly_zeros(n, d, share)), LAYOUTS[b_layout](torch.randn(d, e))
        exact = a.double() @ b.double()
        found = products.product(a, b)
        assert near(found, exact, 3e-6) and torch.equal(products.product(a, b, zeros=True), found)
        for relu in (False, True):
            linear = products.product(a, b, bias=bias, relu=relu)
            assert near(linear, (exact + bias).relu() if relu else exact + bias, 3e-6)
            assert torch.equal(products.product(a, b, bias=bias, relu=relu, zeros=True), linear)
    assert torch.equal(products.product(torch.ones(n, 0), torch.ones(0, e)), torch.zeros(n, e))


@IN_PANELS
def test_zeros_are_skipped_only_if_there_are_many():
    for share, skipped in ((0.3, True), (0.9, False)):
        a, b = mostly_zeros(200, 300, share), torch.randn(300, 70)
        a[:, 5], b[5] = 0.0, float("inf")  # NaN if zeros are multiplied
        assert products.product(a, b).isnan().all()
        assert bool(products.product(a, b, zeros=True).isfinite().all()) is skipped


@IN_PANELS
@pytest.mark.parametrize("draw", [torch.randn, torch.rand])
def test_product_is_as_exact_as_in_torch_and_its_rows_are_independent(draw):
    a, b = draw(200, 4096), draw(4096, 130)
    exact, found = a.double() @ b.double(), products.product(a, b)
    error, torch_error = ((product.double() - exact).square().mean().sqrt() for product in (found, a @ b))
    assert error < 1.5 * torch_error
    for n_thread in (1, 3):
        torch.set_num_threads(n_thread)
        assert torch.equal(products.product(a[50:53], b), found[50:53])
        assert torch.equal(products.product(a, b[:, 20:60]), found[:, 20:60])
        prepacked = products.LaidOut(b.t())
        assert torch.equal(prepacked.linear(a, None), found)


@IN_PANELS
def test_inexact_kernels_are_not_used_for_fp32(monkeypatch):
    monkeypatch.setattr(products, "_multiply", lambda out, a, b: (a.bfloat16() @ b.bfloat16()).float())
    assert not products.fp32_in_kernels.__wrapped__()


@pytest.mark.parametrize("size", [(7, 5, 3), (40, 70, 130), (131, 300, 65)])
def test_batched_products_equal_fp64(size):
    n, d, e = size
    a, b = torch.randn(5, n, d), torch.randn(5, d, e)
    for right in (b, b.mT.contiguous().mT):
        assert near(ops.product_of_each(a, right), a.double() @ b.double(), 3e-6)
    found = ops.product_of_each(a, a.mT, symmetric=True)
    assert near(found, a.double() @ a.double().mT, 3e-6) and torch.equal(found, found.mT)


@pytest.mark.parametrize("size", [(1, 64, 3), (65, 64, 70), (70, 60, 64), (131, 192, 1030)])
def test_masked_product_is_zero_at_masked_entries_and_sums_its_columns(size):
    n, d, e = size
    a, b, mask = torch.randn(n, d), torch.randn(d, e), mostly_zeros(n, e, 0.3)
    found, sums = products.product_where(a, b, mask)
    exact = torch.where(mask == 0, 0.0, a.double() @ b.double())
    assert near(found, exact, 3e-6) and near(sums, exact.sum(0), 3e-6)


@pytest.mark.parametrize("widths", [(64, 16), (300, 8), (1, 1), (33, 70), (1100, 600)])
@pytest.mark.parametrize("n", [0, 1, 90, 300])
@TYPES
def test_gradient_of_a_weight_is_the_product(widths, n, dtype):
    d_out, x = (torch.randn(n, width).to(dtype) for width in widths)
    exact = d_out.double().t() @ x.double()
    for zeros_in in ("", "x", "d_out"):
        found = products.weight_gradient(d_out, x, zeros_in=zeros_in).float()
        assert found.is_contiguous() and near(found, exact, ERROR[dtype])
    products.weight_gradient(d_out, x, found)
    assert near(found, 2 * exact, ERROR[dtype])


def test_bf16_products_without_instructions_are_fp32_products_rounded_once(monkeypatch):
    monkeypatch.setattr(products, "bf16_in_fp32", lambda: True)
    x, weight, bias = torch.randn(90, 64).bfloat16(), torch.randn(48, 64).bfloat16(), torch.full((48,), 1.001)
    wide = products.product(x.float(), weight.float().t(), bias=bias)
    assert torch.equal(products.product(x, weight.t(), bias=bias), wide.bfloat16())
    switch.use(False)
    assert products.widened(x) is x


@pytest.mark.skipif(platform.machine() != "x86_64", reason="which words tell of it is known of x86-64 alone")
def test_compiler_detects_the_instructions_of_the_processor():
    words = [*Path("/proc/cpuinfo").read_text(encoding="utf-8").split(), os.environ.get("CC", "")]
    has_bf16 = ("avx512_bf16" in words or "-D__AVX512BF16__" in words[-1]) and "-U__AVX512BF16__" not in words[-1]
    assert switch.library().multiplies_half() == has_bf16


@pytest.mark.skipif(not half_products.in_kernels(), reason="this processor has no instructions of AVX-512 for bf16")
@pytest.mark.parametrize("size", [(128, 32, 32), (131, 64, 96), (300, 1024, 320)])
def test_products_of_bf16_are_those_of_fp64(size):
    n, d, e = size
    a, b, bias = torch.randn(n, d).bfloat16(), torch.randn(d, e).bfloat16(), torch.randn(e)
    mask, sums = torch.randn(n, e).relu().bfloat16(), torch.empty(e)
    exact = a.double() @ b.double()
    for right in (b, LAYOUTS["columns"](b), LAYOUTS["part of rows"](b), b.float()):
        assert near(half_products.multiply(a, [right]), exact, 1e-2)
        assert near(half_products.multiply(a, [right], bias=bias, relu=True), (exact + bias).relu(), 1e-2)
    found = half_products.multiply(a, [b], kept=mask, sums=sums)
    assert near(found, exact * (mask != 0), 1e-2) and near(sums, found.double().sum(0), 1e-5)
    joined = half_products.multiply(a, [b, b], side_by_side=True)
    assert torch.equal(joined, half_products.multiply(a, [b]).repeat(1, 2))
    a[7, 11] = float("nan")
    with_nan = half_products.multiply(a, [b])
    assert with_nan[7].isnan().all() and with_nan[:7].isfinite().all()


# -- all of them -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(1,), (3, 0, 64), (16384, 16385, 7)])
def test_total_norm_equals_the_norm_of_all_values(sizes):
    tensors = [torch.randn(size) for size in sizes]
    assert near(ops.total_norm(tensors), torch.cat(tensors).double().norm(), 1e-6)
    tensors[-1][-1] = float("nan")
    assert ops.total_norm(tensors).isnan()


@pytest.mark.parametrize("name", [*(name for name in CASES if name.startswith(("several", "around", "norm", "both")))])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@TYPES
def test_non_finite_input_shows_in_its_row_and_in_no_other(name, value, dtype):
    _, function, (shape, *_), modules = CASES[name]
    x = torch.randn(shape)
    x[0, 1, -1] = value
    out, *_, d_bias = evaluate(function, [x], modules, half=dtype == torch.bfloat16)
    assert not out[0, 1].isfinite().all() and out[0, 0].isfinite().all()
    if not name.startswith("around"):
        assert len(modules) > 1 or not evaluate(function, [x], modules)[-1].isfinite().all() or d_bias.dim() == 1


def test_non_finite_values_show_in_attention_and_loss_unless_masked():
    q, k, v = (torch.randn(1, 1, 4, 8) for _ in range(3))
    k[0, 0, 2, 0] = float("nan")
    mask = torch.ones(1, 1, 1, 4, dtype=torch.bool)
    assert attention_with(mask)(q, k, v).isnan().all()
    mask[..., 2] = False
    assert attention_with(mask)(q, k, v).isfinite().all()
    hidden = torch.randn(1, 3, 8)
    hidden[0, 1, 1] = float("inf")
    assert not loss_of(hidden, torch.randn(17, 8)).isfinite()


@pytest.mark.parametrize("name", CASES)
def test_number_of_threads_changes_no_bit(name):
    _, function, shapes, modules = CASES[name]
    inputs, found = [torch.randn(shape) for shape in shapes], []
    for n in (1, 3):
        torch.set_num_threads(n)
        found.append(evaluate(function, inputs, modules, half=True))
    own = ("norm", "both", "end", "attention", "padded", "packed")  # torch's products may differ
    assert all(map(torch.equal, *found)) or (not products.fp32_in_kernels() and not name.startswith(own))


def test_only_supported_tensors_are_taken():
    assert switch.takes(torch.ones(1), torch.ones(1, dtype=torch.bfloat16))
    assert not switch.takes(torch.ones(1, dtype=torch.float64))
    assert not switch.takes(torch.ones(1), torch.ones(1, device="meta"))
    switch.use(False)
    assert not switch.takes(torch.ones(1))
