"""Each kernel against the formula in fp64, on the odd sizes that vectors do not fit."""

import math

import pytest
import torch

from nmt.kernels import dropping, passes, switch
from nmt.kernels.attention import Attention
from nmt.kernels.choice import choose
from nmt.masks import PackedMask, Packing
from nmt.models.layers import Dropout

if why_not := switch.why_not():
    pytest.skip(f"no kernels here: {why_not}", allow_module_level=True)

TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
ERROR = {torch.float32: 3e-6, torch.bfloat16: 1e-2}
SEED, N_DROP = 2**63 - 25, switch.N_CHANCE // 4


@pytest.fixture(autouse=True)
def switched_on():
    switch.use(True)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(1)


def near(found, exact, error):
    assert found.shape == exact.shape
    found, exact = found.detach().double(), exact.detach()
    return not found.numel() or bool((found - exact).abs().max() <= error * max(1.0, float(exact.abs().max())))


# -- dropout -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 255, 256, 257, 5000])
@TYPES
def test_dropout_adds_what_stays_to_the_residual(size, dtype, generator):
    x = torch.randn(size, generator=generator).to(dtype)
    residual = torch.randn(size, generator=generator)
    keep = passes.decide(x, SEED, N_DROP).double()
    assert set(keep.unique().tolist()) <= {0.0, 1.0}
    for there in (residual, None):
        found = passes.drop_add(x, there, SEED, N_DROP, 4 / 3, torch.float32)
        exact = x.double() * keep * (4 / 3) + (0.0 if there is None else there.double())
        assert found.dtype == torch.float32 and near(found, exact, 3e-7)
    assert near(passes.drop_add(x, None, SEED, N_DROP, 4 / 3, dtype), x.double() * keep * (4 / 3), ERROR[dtype])


def test_the_share_that_is_dropped_is_the_one_asked_for_and_no_place_knows_of_another():
    n = 2**20
    first, second = (passes.decide(torch.empty(n), seed, N_DROP).float() for seed in (5, 6))
    error = 4 * math.sqrt(0.25 * 0.75 / n)  # four standard deviations
    assert abs(first.mean() - 0.75) < error and abs(second.mean() - 0.75) < error
    centred = first - 0.75
    for shift in (1, 2, 3, 4, 8, 256, 1024):
        assert abs((centred[shift:] * centred[:-shift]).mean()) < error, f"places {shift} apart"
    assert abs((centred * (second - 0.75)).mean()) < error, "seeds beside each other"


def test_a_rate_of_nothing_and_of_nearly_all_are_kept():
    assert passes.decide(torch.empty(4096), 1, 0).all()
    assert passes.decide(torch.empty(2**20), 1, switch.N_CHANCE - 1).sum() < 60


@TYPES
def test_the_gradient_of_dropout_is_that_of_what_stayed(dtype, generator):
    x = torch.randn(7, 33, generator=generator).to(dtype).requires_grad_()
    residual = torch.randn(7, 33, generator=generator, requires_grad=True)
    dropout, weight = Dropout(0.4).train(), torch.randn(7, 33, generator=generator)
    torch.manual_seed(3)
    out = dropout.add(x, residual)
    (out * weight).sum().backward()
    torch.manual_seed(3)
    keep = dropping.which(x, 0.4).float() * dropping.scale_up(0.4)
    assert 0 < (keep == 0).float().mean() < 1
    assert near(out, residual.double() + x.double() * keep.double(), 3e-7)
    assert torch.equal(residual.grad, weight) and near(x.grad, (weight * keep).double(), ERROR[dtype])


# -- the softmax over a vocabulary -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_col", [1, 15, 16, 257, 8000])
@TYPES
def test_exponents_are_the_softmax_less_the_gold_token(n_col, dtype, generator):
    z = (4 * torch.randn(9, n_col, generator=generator)).to(dtype)
    gold = torch.randint(0, n_col, (9,), generator=generator)
    exact = z.double()
    p = (exact - exact.amax(1, keepdim=True)).exp()
    total, value = passes.exponents(z, gold, 0.9)
    assert near(total, p.sum(1), 1e-6)
    rows = torch.arange(9)
    assert near(value, exact.logsumexp(1) - 0.9 * exact[rows, gold], 1e-6)
    p[rows, gold] -= 0.9 * p.sum(1)
    assert ((z.double() - p).abs() <= ERROR[dtype] * p.abs() + 1e-37).all()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@TYPES
def test_what_is_not_finite_stays_visible_in_the_loss(wrong, dtype):
    z = torch.zeros(2, 100, dtype=dtype)
    z[1, 40] = wrong
    _, value = passes.exponents(z, torch.tensor([3, 5]), 0.9)
    assert value[0].isfinite() and not value[1].isfinite()


# -- sums over rows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (63, 17), (64, 300), (201, 256)])
@TYPES
def test_columns_are_summed_through_a_relu_or_without(shape, dtype, generator):
    x, hidden = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    assert near(passes.column_sums(x), x.double().sum(0), 1e-6)
    hidden.relu_()
    exact = x.double() * (hidden > 0)
    sums = passes.column_sums(x, hidden)
    assert near(sums, exact.sum(0), 1e-6) and torch.equal(x.double(), exact)


def test_sums_of_no_rows_are_zero():
    assert torch.equal(passes.column_sums(torch.empty(0, 5)), torch.zeros(5))


@pytest.mark.parametrize("shape", [(1, 1), (5, 4), (16, 8), (17, 9), (40, 256), (1024, 30)])
def test_a_matrix_is_turned(shape, generator):
    x = torch.randn(shape, generator=generator)
    assert torch.equal(passes.turned(x), x.t()) and passes.turned(x).is_contiguous()


@pytest.mark.parametrize("shape", [(1, 1), (5, 17), (3, 300)])
@pytest.mark.parametrize("relu", [False, True])
@TYPES
def test_a_bias_is_added_in_place(shape, relu, dtype, generator):
    x, bias = torch.randn(shape, generator=generator).to(dtype), torch.randn(shape[1], generator=generator)
    x[0, 0] = float("nan")
    exact = x.double() + bias.double()
    exact = exact.relu() if relu else exact
    found = passes.add_bias(x, bias, relu=relu)
    assert found.data_ptr() == x.data_ptr() and found[0, 0].isnan()
    assert near(found.nan_to_num(), exact.nan_to_num(), ERROR[dtype])


@TYPES
def test_one_tensor_is_added_to_another(dtype, generator):
    total, x = torch.randn(40, 9, generator=generator), torch.randn(40, 9, generator=generator).to(dtype)
    exact = total.double() + x.double()
    passes.add_to(total, x)
    assert near(total, exact, 1e-6)


@pytest.mark.parametrize("sizes", [(1,), (3, 0, 64), (16384, 16385, 7), (50_000,)])
def test_the_norm_of_many_tensors_is_that_of_one(sizes, generator):
    tensors = [torch.randn(size, generator=generator) for size in sizes]
    assert near(passes.norm(tensors), torch.cat(tensors).double().norm(), 1e-6)
    tensors[-1][-1] = float("nan")
    assert passes.norm(tensors).isnan()


# -- attention ---------------------------------------------------------------------------------------------------------

# B, H, G, T, S, d_k, d_v
SHAPES = pytest.mark.parametrize(
    "shape",
    [
        (3, 4, 2, 5, 7, 8, 6),
        (2, 2, 2, 9, 9, 16, 16),
        (1, 3, 1, 1, 1, 1, 1),
        (5, 4, 4, 26, 17, 64, 64),
        (2, 8, 1, 3, 40, 24, 5),
    ],
)


def attended(shape, dtype, generator, mask, keep=1.0):
    """Tensors as projections write them, and the exact output, weights and gradients by the gradient given last."""
    n_sentence, n_head, n_group, n_query, n_key, d_k, d_v = shape
    q, k, v, d_out = (
        torch.randn(n_sentence, place, head, width, generator=generator).to(dtype).transpose(1, 2)
        for place, head, width in (
            (n_query, n_head, d_k), (n_key, n_group, d_k), (n_key, n_group, d_v), (n_query, n_head, d_v)
        )
    )  # fmt: skip
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    shared = [x.repeat_interleave(n_head // n_group, 1) for x in exact[1:]]
    score = (exact[0] @ shared[0].transpose(2, 3) * 0.3).masked_fill(~mask, float("-inf"))
    weight = score.softmax(-1).nan_to_num(0.0)
    out = (weight * keep) @ shared[1]
    return (q, k, v, d_out), out, weight, torch.autograd.grad(out, exact, d_out.double())


@SHAPES
@TYPES
def test_attention_and_its_gradient_are_the_formula(shape, dtype, generator):
    n_sentence, _, _, n_query, n_key, *_ = shape
    for mask in (
        torch.rand(n_sentence, 1, n_query, n_key, generator=generator) > 0.3,
        torch.rand(n_sentence, 1, 1, n_key, generator=generator) > 0.2,
        torch.ones(1, 1, n_query, n_key, dtype=torch.bool).tril(),
    ):
        mask[-1, :, 0] = False  # one sees nothing
        (q, k, v, d_out), out, weight, grads = attended(shape, dtype, generator, mask)
        attention = Attention(mask, 0.3)
        found, weights = attention.forward(q, k, v)
        assert near(found, out, ERROR[dtype]) and near(weights[..., :n_key], weight, 1e-6)
        assert not weights[..., n_key:].any() and not found[-1, :, 0].any()
        assert near(attention.look_up(q, k, v), out, ERROR[dtype])
        for one, exact in zip(attention.backward(q, k, v, weights, d_out), grads, strict=True):
            assert one.dtype == dtype and near(one, exact, ERROR[dtype])


@SHAPES
def test_dropped_weights_are_the_same_in_the_gradient(shape, generator):
    n_sentence, _, n_group, _, n_key, *_ = shape
    mask = torch.ones(1, 1, 1, n_key, dtype=torch.bool)
    attention = Attention(mask, 0.3, SEED, N_DROP, 4 / 3)
    # What stays is seen by values that tell one key each.
    told = torch.eye(n_key).expand(n_sentence, n_group, n_key, n_key)
    (q, k, v, _), _, weight, _ = attended(shape, torch.float32, generator, mask)
    seen, weights = attention.forward(q, k, told)
    assert near(weights[..., :n_key], weight, 1e-6)
    keep = (seen.double() / weight).round(decimals=3)
    assert set(keep.unique().tolist()) <= {0.0, 1.333}
    generator.manual_seed(1)
    (q, k, v, d_out), out, _, grads = attended(shape, torch.float32, generator, mask, (keep > 0) * (4 / 3))
    found, weights = attention.forward(q, k, v)
    assert near(found, out, 3e-6)
    assert all(
        near(one, exact, 3e-6) for one, exact in zip(attention.backward(q, k, v, weights, d_out), grads, strict=True)
    )


def end_to_end(sentences):
    """(1, heads, places, width) of several (heads, places, width), as projections write them, and where each begins."""
    start = torch.tensor([0, *(one.size(1) for one in sentences)]).cumsum(0)
    return torch.cat(sentences, 1).transpose(0, 1).contiguous().transpose(0, 1).unsqueeze(0), start.to(torch.int32)


@pytest.mark.parametrize(
    "sizes", [[(3, 4), (1, 1), (5, 2)], [(26, 17), (0, 3), (19, 33), (2, 0)], [(16, 16), (64, 64)]]
)
@pytest.mark.parametrize(("n_group", "causal"), [(2, False), (4, False), (2, True)])
@TYPES
def test_sentences_end_to_end_are_each_as_if_alone(sizes, n_group, causal, dtype, generator):
    sizes = [(n_query, n_query if causal else n_key) for n_query, n_key in sizes]
    apart = [attended((1, 4, n_group, *size, 24, 8), dtype, generator, tril(*size, causal)) for size in sizes]
    (q, at_query), (k, at_key), (v, _), (d_out, _) = (end_to_end([one[0][n][0] for one in apart]) for n in range(4))
    most = [max(side) for side in zip(*sizes, strict=True)]
    attention = Attention(within(at_query, at_key, *most, causal), 0.3)
    found, weights = attention.forward(q, k, v)
    grads, past = attention.backward(q, k, v, weights, d_out), 0
    for n, ((n_query, n_key), (_, out, weight, exact)) in enumerate(zip(sizes, apart, strict=True)):
        begin, end = at_query[n], at_query[n + 1]
        assert near(found[:, :, begin:end], out, ERROR[dtype])
        mine = weights.flatten()[past : past + 4 * n_query * weights.size(3)].view(1, 4, n_query, weights.size(3))
        lanes = switch.switched_on().lanes()
        in_use = -(-n_key // lanes) * lanes  # what is behind is never written, nor read
        assert near(mine[..., :n_key], weight, 1e-6) and not mine[..., n_key:in_use].any()
        assert near(grads[0][:, :, begin:end], exact[0], ERROR[dtype])
        for one, of_keys in zip(grads[1:], exact[1:], strict=True):
            assert near(one[:, :, at_key[n] : at_key[n + 1]], of_keys, ERROR[dtype])
        past += mine.numel()


def within(query_start, key_start, n_query, n_key, causal):
    sides = (query_start, n_query), (key_start, n_key)
    return PackedMask(*(Packing.of(start, longest, int(start[-1])) for start, longest in sides), causal)


def tril(n_query, n_key, causal):
    mask = torch.ones(1, 1, n_query, n_key, dtype=torch.bool)
    return mask.tril() if causal else mask


def test_sentences_of_one_length_are_dropped_out_end_to_end_as_they_are_side_by_side(generator):
    """And so what stays is the same in the gradient."""
    (q, k, v, d_out), *_ = attended((5, 4, 2, 9, 11, 16, 8), torch.float32, generator, tril(9, 11, False))
    padded = Attention(tril(1, 11, False), 0.3, SEED, N_DROP, 4 / 3)
    ends = [torch.arange(0, 5 * n + 1, n, dtype=torch.int32) for n in (9, 11)]
    packed = padded._replace(mask=within(*ends, 9, 11, causal=False))
    row = [end_to_end(list(x))[0] for x in (q, k, v, d_out)]
    for x, whole in zip((q, k, v, d_out), row, strict=True):
        assert torch.equal(whole[0], x.transpose(0, 1).flatten(1, 2))
    (one, weight), (other, weights) = padded.forward(q, k, v), packed.forward(*row[:3])
    assert torch.equal(other[0], one.transpose(0, 1).flatten(1, 2)) and torch.equal(weights.flatten(), weight.flatten())
    grads = padded.backward(q, k, v, weight, d_out), packed.backward(*row[:3], weights, row[3])
    assert all(torch.equal(end[0], side.transpose(0, 1).flatten(1, 2)) for side, end in zip(*grads, strict=True))


@pytest.mark.parametrize("packed", [False, True])
def test_the_same_sentence_twice_is_dropped_out_otherwise(packed, generator):
    q, k, v = (torch.randn(1, 2, 9, 8, generator=generator) for _ in range(3))
    start = torch.tensor([0, 9, 18], dtype=torch.int32)
    mask = within(start, start, 9, 9, causal=False) if packed else tril(1, 9, False)
    twice = [torch.cat([x, x], 2 if packed else 0) for x in (q, k, v)]
    out, _ = Attention(mask, 0.3, SEED, N_DROP, 4 / 3).forward(*twice)
    one, other = out.chunk(2, 2 if packed else 0)
    assert (one != other).any(-1).float().mean() > 0.5


def test_what_is_not_finite_comes_out_of_attention_unless_it_is_hidden(generator):
    q, k, v = (torch.randn(1, 1, 4, 8, generator=generator) for _ in range(3))
    k[0, 0, 2, 0] = float("nan")
    mask = torch.ones(1, 1, 1, 4, dtype=torch.bool)
    attention = Attention(mask, 1.0)
    assert attention.forward(q, k, v)[0].isnan().all() and attention.look_up(q, k, v).isnan().all()
    mask[..., 2] = False
    assert attention.forward(q, k, v)[0].isfinite().all() and attention.look_up(q, k, v).isfinite().all()


@TYPES
def test_the_number_of_threads_changes_no_bit(dtype, generator):
    shape = (5, 4, 2, 9, 11, 16, 16)
    mask = torch.rand(5, 1, 9, 11, generator=generator) > 0.2
    (q, k, v, d_out), *_ = attended(shape, dtype, generator, mask)
    x, z = torch.randn(500, 300, generator=generator).to(dtype), torch.randn(50, 3000, generator=generator).to(dtype)
    gold = torch.randint(0, 3000, (50,), generator=generator)

    def everything():
        attention, logits = Attention(mask, 0.3, SEED, N_DROP, 4 / 3), z.clone()
        out, weights = attention.forward(q, k, v)
        grads = attention.backward(q, k, v, weights, d_out)
        told = passes.exponents(logits, gold, 0.9)
        dropped = passes.drop_add(x, None, SEED, N_DROP, 4 / 3, dtype)
        looked_up, chosen = attention._replace(n_drop=0).look_up(q, k, v), choose(z, 4, gold[:2])
        return [out, weights, *grads, logits, *told, dropped, passes.column_sums(x), looked_up, *chosen]

    before, found = torch.get_num_threads(), []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            found.append(everything())
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_only_what_they_were_written_for_is_taken():
    assert switch.takes(torch.ones(1), torch.ones(1, dtype=torch.bfloat16))
    assert not switch.takes(torch.ones(1, dtype=torch.float64))
    assert not switch.takes(torch.ones(1), torch.ones(1, device="meta"))
    switch.use(False)
    assert not switch.takes(torch.ones(1))
