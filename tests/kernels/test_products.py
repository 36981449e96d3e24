"""Products against those of fp64, on odd sizes that tiles and panels do not fit; sums that nothing else may change."""

import pytest
import torch

from nmt import ops
from nmt.kernels import half_products, products, switch
from nmt.training.optim import orthogonalise

if why_not := switch.why_not():
    pytest.skip(f"no kernels here: {why_not}", allow_module_level=True)

TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
ERROR = {torch.float32: 3e-6, torch.bfloat16: 1e-2}
SIZES = [
    *((1, 1, 1), (16, 32, 16), (32, 256, 32), (5, 70, 130), (33, 31, 1), (70, 300, 45), (100, 520, 600)),
    *((6, 4, 16), (7, 5, 17), (97, 1030, 8), (12, 3, 1040), (103, 1024, 40), (7, 2048, 600)),
]
IN_TILES = pytest.mark.skipif(not switch.library().has_tiles(), reason="this processor has no tiles")
IN_PANELS = pytest.mark.skipif(not switch.library().has_panels(), reason="no panels are multiplied on this processor")
IN_HALVES = pytest.mark.skipif(
    not half_products.in_kernels(), reason="this processor has no instructions of AVX-512 for bf16"
)
MADE_IN = [pytest.param(True, marks=IN_TILES, id="in_tiles"), pytest.param(True, marks=IN_PANELS, id="in_panels")]
IN_KERNELS = pytest.mark.usefixtures("made_in")


@pytest.fixture(autouse=True)
def switched_on():
    switch.use(True, wide_panels=True)
    n_thread = torch.get_num_threads()
    yield
    torch.set_num_threads(n_thread)


@pytest.fixture(params=MADE_IN)
def made_in(request):
    """Once for tiles, once for panels, of which a processor has one at most."""


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(1)


def near(found, exact, error):
    return bool((found.double() - exact).abs().max() <= error * max(1.0, float(exact.abs().max())))


def laid(x, how):
    """The same numbers, otherwise in memory."""
    d = x.size(1)
    return {
        "rows": lambda: x,
        "columns": lambda: x.t().contiguous().t(),
        "part of rows": lambda: torch.cat([x, x], 1)[:, :d],
        "neither": lambda: torch.stack([x, x], 2).flatten(1)[:, ::2],
    }[how]()


LAID = ("rows", "columns", "part of rows", "neither")


@pytest.mark.parametrize(("a_laid", "b_laid"), [*zip(LAID, LAID[1:] + LAID[:1], strict=True), ("rows", "rows")])
@pytest.mark.parametrize("size", SIZES)
def test_a_product_is_that_of_fp64_however_its_factors_lie(size, a_laid, b_laid, generator):
    n, d, e = size
    a, b = (torch.randn(shape, generator=generator) for shape in ((n, d), (d, e)))
    exact = a.double() @ b.double()
    a, b = laid(a, a_laid), laid(b, b_laid)
    assert near(products.product(a, b), exact, 3e-6)
    out = torch.full((n, e), float("nan"))
    assert products.product(a, b, out) is out and near(out, exact, 3e-6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("relu", [False, True])
@TYPES
def test_a_linear_layer_adds_its_bias_before_the_relu(size, relu, dtype, generator):
    n, d, e = size
    x, weight = (torch.randn(shape, generator=generator).to(dtype) for shape in ((n, d), (e, d)))
    bias = torch.randn(e, generator=generator)
    exact = x.double() @ weight.double().t() + bias.double()
    assert near(products.linear(x, [weight], bias, relu=relu), exact.relu() if relu else exact, 2 * ERROR[dtype])
    assert near(products.linear(x, [weight]), exact - bias.double(), ERROR[dtype])


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_a_product_of_nothing_is_empty_or_zero(shape):
    n, d, e = shape
    assert torch.equal(products.product(torch.ones(n, d), torch.ones(d, e)), torch.zeros(n, e))
    assert torch.equal(ops.product_of_each(torch.ones(2, n, d), torch.ones(2, d, e)), torch.zeros(2, n, e))


@IN_KERNELS
@pytest.mark.parametrize("d", [64, 500, 4096])
@pytest.mark.parametrize("draw", [torch.randn, torch.rand])
def test_in_kernels_a_product_is_as_exact_as_that_of_fp32(d, draw, generator):
    a, b = draw(300, d, generator=generator), draw(d, 200, generator=generator)
    exact = a.double() @ b.double()
    error, usual = ((found.double() - exact).square().mean().sqrt() for found in (products.product(a, b), a @ b))
    # Panels add 256 numbers one to the other, which makes up to 1.3 times the error of MKL's sums at these lengths.
    assert error < (1.2 if switch.library().has_tiles() else 1.5) * usual


@IN_KERNELS
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
def test_in_kernels_a_number_may_be_of_any_size(scale, generator):
    a, b = torch.randn(40, 50, generator=generator) * scale, torch.randn(50, 60, generator=generator)
    exact = a.double() @ b.double()
    assert (products.product(a, b).double() - exact).abs().max() < 2e-6 * exact.abs().max()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("of", ["a", "b"])
def test_what_is_not_finite_stays_visible_in_a_product(wrong, of, generator):
    a, b = torch.randn(40, 50, generator=generator), torch.randn(50, 60, generator=generator)
    (a if of == "a" else b)[7, 11] = wrong
    found = products.product(a, b)
    lost = torch.zeros(40, 60, dtype=torch.bool)
    lost[7 if of == "a" else slice(None), slice(None) if of == "a" else 11] = True
    assert torch.equal(~found.isfinite(), lost)
    assert not products.linear(a, [b.t().contiguous()], torch.zeros(60), relu=True)[lost].isfinite().all()


@IN_KERNELS
def test_in_kernels_a_row_is_the_same_among_any_others_with_any_number_of_threads(generator):
    a, b = torch.randn(200, 300, generator=generator), torch.randn(300, 130, generator=generator)
    together = products.product(a, b)
    for n_thread in (1, 2, 3):
        torch.set_num_threads(n_thread)
        assert torch.equal(products.product(a, b), together)
        assert torch.equal(products.product(a[50:53], b), together[50:53])
        assert torch.equal(products.product(a, b[:, 20:60]), together[:, 20:60])


@pytest.mark.parametrize("in_kernels", [False, *MADE_IN])
@pytest.mark.parametrize("b_turned", [False, True])
@pytest.mark.parametrize("size", [(7, 5, 3), (40, 70, 130), (131, 300, 65), (6, 520, 600)])
@pytest.mark.parametrize("n_thread", [1, 3])
def test_each_of_many_products_is_that_product(in_kernels, b_turned, size, n_thread, generator, monkeypatch):
    n, d, e = size
    a, b = torch.randn(5, n, d, generator=generator), torch.randn(5, d, e, generator=generator)
    b = b.mT.contiguous().mT if b_turned else b
    torch.set_num_threads(n_thread)
    monkeypatch.setattr(products, "_NARROW", 0 if in_kernels else e)
    found = ops.product_of_each(a, b)
    assert found.shape == (5, n, e)
    for one, left, right in zip(found, a, b, strict=True):
        assert near(one, left.double() @ right.double(), 3e-6)
        assert not in_kernels or torch.equal(one, products.product(left, right))


@pytest.mark.parametrize("in_kernels", [False, *MADE_IN])
@pytest.mark.parametrize("n", [9, 65, 300])
@pytest.mark.parametrize("n_thread", [1, 3])
def test_of_many_symmetric_products_what_is_below_the_diagonal_is_what_is_above(
    in_kernels, n, n_thread, generator, monkeypatch
):
    x = torch.randn(3, n, 40, generator=generator)
    torch.set_num_threads(n_thread)
    monkeypatch.setattr(products, "_NARROW", 0 if in_kernels else n)
    found = ops.product_of_each(x, x.mT, symmetric=True)
    again = ops.product_of_each(found, x @ x.mT, symmetric=True)
    for one, square, rows in zip(found, again, x, strict=True):
        exact = rows.double() @ rows.double().t()
        assert near(one, exact, 3e-6) and near(square, exact @ exact, 3e-6)
        assert not in_kernels or torch.equal(one.triu(), products.product(rows, rows.t()).triu())


def mostly_zeros(shape, share, generator):
    """Numbers of which a share is not zero; of some rows none is, and of some all are."""
    there = torch.rand(shape, generator=generator) < share
    there[::7], there[3::50] = False, True
    return torch.where(there, torch.randn(shape, generator=generator), torch.zeros(()))


@IN_PANELS
@pytest.mark.parametrize(("a_laid", "b_laid"), [("rows", "rows"), ("columns", "part of rows"), ("neither", "columns")])
@pytest.mark.parametrize(
    "size", [*SIZES, (64, 64, 88), (300, 129, 265), (131, 641, 88), (140, 300, 90), (9, 320, 1300)]
)
def test_without_the_zeros_of_a_factor_a_product_is_the_same_to_the_bit(size, a_laid, b_laid, generator):
    n, d, e = size
    b, bias = torch.randn(d, e, generator=generator), torch.randn(e, generator=generator)
    for share in (0.0, 0.1, 0.5):
        a = laid(mostly_zeros((n, d), share, generator), a_laid)
        for relu in (False, True):
            found = products.linear(a, [laid(b, b_laid).t()], bias, relu=relu, zeros=True)
            assert torch.equal(found, products.linear(a, [laid(b, b_laid).t()], bias, relu=relu))
        assert torch.equal(products.product(a, laid(b, b_laid), zeros=True), products.product(a, b))


@IN_PANELS
@pytest.mark.parametrize("n_thread", [1, 2, 3])
def test_zeros_are_left_out_where_there_are_many_and_only_there(n_thread, generator):
    torch.set_num_threads(n_thread)
    for share, left_out in ((0.3, True), (0.9, False)):
        a = mostly_zeros((200, 300), share, generator)
        b = torch.randn(300, 70, generator=generator)
        a[:, 5], b[5] = 0.0, float("inf")  # which only who multiplies by zero finds
        for order in (a, a.t().contiguous().t()):
            assert products.product(order, b).isnan().all()
            assert bool(products.product(order, b, zeros=True).isfinite().all()) is left_out
            assert bool(products.product(order, b, zeros=True).isnan().all()) is not left_out


@IN_PANELS
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_among_zeros_stays_visible(wrong, generator):
    a, b = mostly_zeros((100, 80), 0.2, generator), torch.randn(80, 60, generator=generator)
    a[9, 71] = wrong
    found = products.product(a, b, zeros=True)
    assert not found[9].isfinite().any() and found[[*range(9), *range(10, 100)]].isfinite().all()
    assert not products.linear(a, [b.t().contiguous()], torch.zeros(60), relu=True, zeros=True)[9].isfinite().all()


@pytest.mark.parametrize("n_thread", [1, 3])
@pytest.mark.parametrize(
    "size", [(1, 64, 3), (9, 128, 1), (65, 64, 70), (70, 60, 64), (131, 192, 1030), (1100, 64, 64)]
)
def test_where_another_is_zero_a_product_is_zero_and_columns_are_summed_up(size, n_thread, generator):
    torch.set_num_threads(n_thread)
    n, d, e = size
    a, b = torch.randn(n, d, generator=generator), torch.randn(d, e, generator=generator)
    for share in (0.0, 0.1, 0.3, 1.0):
        kept = mostly_zeros((n, e), share, generator)
        found, sums = products.product_where(a, b, kept)
        exact = torch.where(kept == 0, 0.0, a.double() @ b.double())
        assert near(found, exact, 3e-6) and near(sums, exact.sum(0), 3e-6)
        assert not found[kept == 0].any()


@IN_TILES
def test_tiles_serve_others_in_between(generator):
    a, b = torch.randn(70, 256, generator=generator), torch.randn(256, 130, generator=generator)
    ours, of_torch = products.product(a, b), a.bfloat16() @ b.bfloat16()
    for n_row in (70, 17, 40, 70):
        assert torch.equal(products.product(a[:n_row], b), ours[:n_row])
        assert torch.equal(a.bfloat16() @ b.bfloat16(), of_torch)


@IN_KERNELS
@pytest.mark.parametrize("size", SIZES)
def test_in_kernels_a_weight_that_is_laid_out_once_gives_the_same_bits(size, generator):
    n, d, e = size
    x, weight = torch.randn(n, d, generator=generator), torch.randn(e, d, generator=generator)
    bias = torch.randn(e, generator=generator)
    laid = products.LaidOut(weight.t().contiguous().t())
    assert torch.equal(laid.linear(x, None), products.linear(x, [weight]))
    found = laid.linear(torch.stack([x, -x]), bias)
    assert torch.equal(found[0], products.linear(x, [weight], bias)) and found.shape == (2, n, e)


@IN_PANELS
def test_by_a_weight_that_is_laid_out_zeros_of_many_rows_are_not_multiplied(generator):
    weight, bias = torch.randn(70, 300, generator=generator), torch.randn(70, generator=generator)
    for n, share, left_out in ((64, 0.3, True), (63, 0.3, False), (200, 0.9, False)):
        x = mostly_zeros((n, 300), share, generator)
        x[:, 5] = 0.0
        found = products.LaidOut(weight).linear(x, bias)
        assert torch.equal(found, products.linear(x, [weight], bias))
        spoilt = weight.clone()
        spoilt[:, 5] = torch.inf  # which only who multiplies by zero finds
        assert bool(products.LaidOut(spoilt).linear(x, bias).isfinite().all()) is left_out


@IN_KERNELS
def test_a_linear_layer_of_fp32_is_multiplied_in_kernels(generator):
    x, weight = torch.randn(70, 600, generator=generator), torch.randn(80, 600, generator=generator)
    assert torch.equal(products.linear(x, [weight]), products.product(x, weight.t()))
    assert not torch.equal(products.linear(x, [weight]), x @ weight.t())  # whose sums are made in another order


@IN_KERNELS
def test_a_product_in_kernels_that_is_not_exact_is_not_taken_for_fp32(monkeypatch):
    assert products.fp32_in_kernels()
    monkeypatch.setattr(products, "_multiply", lambda out, a, b: (a.bfloat16() @ b.bfloat16()).float())
    assert not products.multiplies_fp32.__wrapped__()


@pytest.mark.parametrize("in_kernels", [False, *MADE_IN])
@pytest.mark.parametrize("widths", [(64, 16), (16, 64), (24, 24), (300, 8), (1, 1), (33, 70)])
@pytest.mark.parametrize("n", [1, 90, 800])
@TYPES
def test_the_gradient_of_a_weight_is_the_product_however_it_is_made(
    in_kernels, widths, n, dtype, generator, monkeypatch
):
    d_out, x = (torch.randn(n, width, generator=generator).to(dtype) for width in widths)
    if not in_kernels:
        monkeypatch.setattr(products, "fp32_in_kernels", lambda: False)
        monkeypatch.setattr(half_products, "in_kernels", lambda: False)
    # Sums of numbers of bf16 are of fp32, which is the result's type, but where torch makes them.
    unrounded = products.bf16_in_fp32() or (in_kernels and half_products.in_kernels())
    error = 3e-6 if unrounded else ERROR[dtype]
    found, exact = products.weight_gradient(d_out, x, torch.float32), d_out.double().t() @ x.double()
    assert found.is_contiguous() and found.dtype == torch.float32
    assert near(found, exact, error)
    for zeros_in, pair in (("d_out", (d_out.relu(), x)), ("x", (d_out, x.relu()))):
        again = products.weight_gradient(*pair, torch.float32, zeros_in=zeros_in)
        assert again.is_contiguous() and torch.equal(again, products.weight_gradient(*pair, torch.float32))
    total = torch.randn(widths, generator=generator)
    exact += total.double()
    products.add_weight_gradient(total, d_out, x)
    assert near(total, exact, error)


@IN_HALVES
@pytest.mark.parametrize("widths", [(1100, 600), (600, 1100), (70, 1700)])
def test_a_gradient_in_bf16_too_wide_for_the_cache_is_made_in_parts_to_the_same_bits(widths, generator):
    d_out, x = (torch.randn(900, width, generator=generator).bfloat16() for width in widths)
    whole = products.weight_gradient(d_out, x, torch.float32)
    assert near(whole, d_out.double().t() @ x.double(), 3e-6)
    for n_thread in (1, 2, 3, 4, 6):
        torch.set_num_threads(n_thread)
        assert torch.equal(products.weight_gradient(d_out, x, torch.float32), whole)
    few = products.weight_gradient(d_out[:, 40:60].contiguous(), x, torch.float32)
    assert torch.equal(few, whole[40:60])


@IN_HALVES
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_visible_in_a_gradient(wrong, generator):
    d_out, x = (torch.randn(50, width, generator=generator).bfloat16() for width in (40, 60))
    d_out[3, 7] = wrong
    found = products.weight_gradient(d_out, x, torch.float32)
    assert not found[7].isfinite().any() and found[[*range(7), *range(8, 40)]].isfinite().all()


def test_the_gradient_by_no_words_is_zero():
    d_out, x = torch.ones(0, 4).bfloat16(), torch.ones(0, 3).bfloat16()
    assert torch.equal(products.weight_gradient(d_out, x, torch.float32), torch.zeros(4, 3))


@pytest.mark.skipif(not products.fp32_in_kernels(), reason="no kernels multiply fp32 on this processor")
@pytest.mark.parametrize("shape", [(3, 96, 200), (3, 200, 96), (1, 130, 130)])
def test_kernels_orthogonalise_as_torch_does(shape, kernels_asked):
    switch.use(False)
    torch.manual_seed(0)
    x = torch.randn(shape)
    by_torch = orthogonalise(x)
    assert not kernels_asked["multiply_each"]
    switch.use(True)
    torch.testing.assert_close(orthogonalise(x), by_torch, rtol=0, atol=1e-4)
    assert kernels_asked["multiply_each"]
