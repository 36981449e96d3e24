"""Products of bf16 in kernels, and what is done with their sums, against fp64."""

import pytest
import torch
from torch import nn

from nmt import ops
from nmt.kernels import half_products, products, switch

if why_not := switch.why_not():
    pytest.skip(f"no kernels here: {why_not}", allow_module_level=True)
if not half_products.in_kernels():
    pytest.skip("this processor has no instructions of AVX-512 for bf16", allow_module_level=True)

SIZES = [(1, 32, 32), (31, 64, 96), (64, 256, 32), (65, 288, 64), (97, 32, 160), (130, 544, 1056), (40, 1120, 64)]
HAS_TILES = bool(switch.library().has_tiles())
MADE_IN = [
    pytest.param(True, marks=pytest.mark.skipif(not HAS_TILES, reason="this processor has no tiles"), id="in_tiles"),
    pytest.param(True, marks=pytest.mark.skipif(HAS_TILES, reason="this processor has tiles"), id="in_registers"),
]


@pytest.fixture(autouse=True, params=MADE_IN)
def switched_on(request, monkeypatch):
    """Once for tiles, once for registers, of which a processor multiplies bf16 in one."""
    switch.use(True)
    monkeypatch.setattr(half_products, "_MANY", 1)
    n_thread = torch.get_num_threads()
    yield
    torch.set_num_threads(n_thread)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(1)


def some(generator, *size):
    return torch.randn(*size, generator=generator).bfloat16()


def near(found, exact):
    """But for a rounding to bf16, half a unit of whose last place is 2^-8 of a number at most, and sums of fp32."""
    return bool(((found.double() - exact).abs() <= 2**-8 * exact.abs() + 1e-5 * exact.abs().max()).all())


@pytest.fixture
def n_made(monkeypatch):
    """What was multiplied by the kernel: sizes."""
    sizes, real = [], half_products.multiply
    monkeypatch.setattr(half_products, "multiply", lambda a, b, **more: sizes.append(a.shape) or real(a, b, **more))
    return sizes


@pytest.mark.parametrize("b_laid", ["rows", "columns", "part of rows", "part of columns", "odd columns", "neither"])
@pytest.mark.parametrize("size", SIZES)
def test_a_product_is_that_of_fp64(size, b_laid, generator, n_made):
    n, d, e = size
    a = some(generator, n, d)
    b = {
        "rows": lambda: some(generator, d, e),
        "columns": lambda: some(generator, e, d).t(),
        "part of rows": lambda: some(generator, d, e + 8)[:, 3 : e + 3],
        "part of columns": lambda: some(generator, e, d + 8)[:, 2 : d + 2].t(),
        "odd columns": lambda: some(generator, e, d + 9)[:, 2 : d + 2].t(),
        "neither": lambda: some(generator, d, 2 * e)[:, ::2],
    }[b_laid]()
    exact = a.double() @ b.double()
    found = products.product(a, b)
    assert len(n_made) == 1 and found.dtype == torch.bfloat16 and near(found, exact)
    place = torch.full((n + 1, e), torch.nan, dtype=torch.bfloat16)
    assert products.product(a, b, place[:n]).data_ptr() == place.data_ptr()
    assert torch.equal(place[:n], found) and place[n].isnan().all()


def test_whole_numbers_are_exact(generator):
    a, b = (torch.randint(-4, 5, size, generator=generator).bfloat16() for size in ((70, 320), (320, 96)))
    exact = a.double() @ b.double()
    kept = exact.abs() <= 256  # which bf16 holds
    assert kept.float().mean() > 0.9 and torch.equal(products.product(a, b).double()[kept], exact[kept])


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_a_layer_adds_its_bias_before_it_rounds(size, relu, generator, n_made):
    n, d, e = size
    x, weight, bias = some(generator, n, d), some(generator, e, d), 5 * torch.randn(e, generator=generator)
    exact = x.double() @ weight.double().t() + bias.double()
    found = products.linear(x, [weight], bias, relu=relu)
    assert n_made == [x.shape] and near(found, exact.relu() if relu else exact)
    assert torch.equal(products.linear(x, [weight]), products.product(x, weight.t()))


@pytest.mark.parametrize("size", SIZES)
def test_what_is_not_kept_is_zero_and_sums_are_those_of_what_was_written(size, generator, n_made):
    n, d, e = size
    a, b, kept = some(generator, n, d), some(generator, d, e), some(generator, n, e).relu()
    kept[0, :2] = torch.tensor([-0.0, torch.nan])
    found, sums = products.product_where(a, b, kept)
    assert n_made == [a.shape] and (found[kept == 0] == 0).all()
    assert torch.equal(found, torch.where(kept == 0, 0.0, products.product(a, b)))
    torch.testing.assert_close(sums.double(), found.double().sum(0), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_layers_that_read_the_same_are_one_factor(dtype, generator, n_made):
    x, d_out = some(generator, 70, 64), some(generator, 70, 192)
    weights = [torch.randn(n, 64, generator=generator).to(dtype) for n in (32, 64, 96)]
    whole = torch.cat([weight.bfloat16() for weight in weights])
    factors = products.as_factors(x, weights)
    assert all(one is other for one, other in zip(factors, weights, strict=True))
    assert torch.equal(products.linear(x, factors), products.product(x, whole.t()))
    assert torch.equal(products.product_by(d_out, factors), products.product(d_out, whole))
    kept = some(generator, 70, 64).relu()
    found, of_whole = (
        products.product_where(d_out[:, :32].contiguous(), one[:32], kept) for one in (weights[0], whole)
    )
    assert torch.equal(found[0], of_whole[0]) and torch.equal(found[1], of_whole[1])
    assert len(n_made) == 6


def test_layers_in_training_are_multiplied_so_there_and_back(generator, n_made):
    torch.manual_seed(1)
    layers, pair = [nn.Linear(64, 32), nn.Linear(64, 96)], [nn.Linear(64, 128), nn.Linear(128, 64)]
    x = torch.randn(5, 14, 64, generator=generator, requires_grad=True)
    weighted = torch.randn(5, 14, 192, generator=generator)
    leaves = [x, *(parameter for layer in (*layers, *pair) for parameter in layer.parameters())]

    def made(dtype):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            out = torch.cat([*ops.fused_linear(x, layers), ops.linear_relu_linear(x, *pair)], -1)
        return [out, *torch.autograd.grad((out * weighted).sum(), leaves)]

    found = made(torch.bfloat16)
    assert len(n_made) == 6
    switch.use(False)
    for one, exact in zip(found, made(torch.float32), strict=True):
        # Not the largest error: what is near zero may be on the other side of it, for the ReLU.
        assert (one - exact).detach().norm() <= 5e-2 * exact.detach().norm()


@pytest.mark.parametrize(("n", "widths"), [(70, (32, 33)), (70, (32, 48)), (1, (32, 64))])
def test_weights_of_other_sizes_are_laid_together(n, widths, generator, n_made, monkeypatch):
    monkeypatch.setattr(half_products, "_MANY", 2)
    x, weights = some(generator, n, 64), [torch.randn(width, 64, generator=generator) for width in widths]
    (factor,) = products.as_factors(x, weights)
    assert torch.equal(factor, torch.cat(weights).bfloat16()) and not n_made


def test_nothing_that_is_not_finite_is_hidden(generator):
    x, weight, bias = some(generator, 40, 64), some(generator, 32, 64), torch.zeros(32)
    x[3, 5] = torch.nan
    for relu in (False, True):
        found = products.linear(x, [weight], bias, relu=relu)
        assert found[3].isnan().all() and found[:3].isfinite().all() and found[4:].isfinite().all()
    _, sums = products.product_where(x, weight.t(), torch.ones(40, 32).bfloat16())
    assert sums.isnan().all()


def test_no_sum_depends_on_threads_or_on_other_rows(generator):
    a, b, kept = some(generator, 333, 544), some(generator, 544, 1056), some(generator, 333, 1056).relu()
    torch.set_num_threads(1)
    whole, sums = products.product_where(a, b, kept)
    for n_thread in (2, 3, 7):
        torch.set_num_threads(n_thread)
        again, sums_again = products.product_where(a, b, kept)
        assert torch.equal(again, whole) and torch.equal(sums_again, sums)
    few, _ = products.product_where(a[100:117], b, kept[100:117])
    assert torch.equal(few, whole[100:117])


@pytest.mark.parametrize(("n", "d", "e"), [(200, 33, 32), (200, 32, 40), (127, 64, 64)])
def test_other_sizes_are_for_torch(n, d, e, generator, n_made, monkeypatch):
    monkeypatch.setattr(half_products, "_MANY", 128)
    a, b = some(generator, n, d), some(generator, d, e)
    assert torch.equal(products.product(a, b), a @ b) and not n_made
