"""Norms by kernels, and their gradients, against the formulas in fp64, on the odd sizes that vectors do not fit."""

import pytest
import torch

from nmt.kernels import passes, switch
from nmt.kernels.norms import Dropping, Norm

if why_not := switch.why_not():
    pytest.skip(f"no kernels here: {why_not}", allow_module_level=True)

ERROR = {torch.float32: 5e-6, torch.bfloat16: 1e-2}
TYPES = list(ERROR)
EPS = 1e-6
SHAPES = [(1, 1, 1), (2, 3, 5), (1, 7, 16), (3, 43, 64), (1, 130, 100), (2, 1, 513)]


@pytest.fixture(autouse=True)
def switched_on():
    switch.use(True)


def exact(x, weight, bias, centred):
    """The formula, of fp64."""
    rows = x - x.mean(-1, keepdim=True) if centred else x
    out = rows * (rows.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight
    return out if bias is None else out + bias


def near(found, expected, error):
    assert found.shape == expected.shape
    return bool((found.double() - expected).abs().max() <= error * max(1.0, float(expected.abs().max())))


def made(shape, kind, biased):
    generator = torch.Generator().manual_seed(sum(shape))
    x = (3 * torch.randn(shape, generator=generator) + 0.5).to(kind)
    weight, bias = torch.randn(2, shape[-1], generator=generator).unbind()
    return x, weight, bias if biased else None, generator


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("centred", "biased"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("out_kind", TYPES)
def test_a_norm_and_its_gradient_are_those_of_the_formula(shape, centred, biased, kind, out_kind):
    x, weight, bias, generator = made(shape, kind, biased)
    norm = Norm(weight, bias, centred, EPS)
    out, moments = norm.forward(x, out_kind)
    wide = [None if one is None else one.double().requires_grad_() for one in (x, weight, bias)]
    expected = exact(*wide, centred)
    assert out.dtype == out_kind and near(out, expected.detach(), ERROR[out_kind])

    d_out = torch.randn(shape, generator=generator).to(out_kind)
    beside = torch.randn(shape, generator=generator).to(kind)
    of = torch.autograd.grad(expected, [one for one in wide if one is not None], d_out.double())
    for more in (beside, None):
        d_x, d_weight, d_bias = norm.backward(d_out, x, moments, more)
        assert d_x.dtype == kind and near(d_x, of[0] + (0.0 if more is None else more.double()), ERROR[kind])
        assert near(d_weight, of[1], 1e-5)
        assert bias is None or near(d_bias, of[2], 1e-5)


@pytest.mark.parametrize("shape", [*SHAPES, (3, 67, 24), (2, 3, 300)])
@pytest.mark.parametrize(("centred", "biased"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("both", [True, False])
def test_the_end_of_a_sub_layer_and_its_gradient_are_those_of_the_formula(shape, centred, biased, kind, both):
    x, weight, bias, generator = made(shape, kind, biased)
    residual = torch.randn(shape, generator=generator)
    dropping = Dropping(7, 20_000, 1.5) if shape[-1] % 4 == 0 else Dropping()
    keep = passes.decide(x, dropping.seed, dropping.n_drop).double()
    assert shape[-1] % 4 or keep.numel() < 20 or 0.6 < keep.mean() < 0.8
    out, also, total, moments = (norm := Norm(weight, bias, centred, EPS)).after_sum(
        x, residual, dropping, also_half=both
    )
    assert torch.equal(total, passes.drop_add(x, residual, *dropping, torch.float32))
    assert torch.equal(also, out.bfloat16()) if both else also is None
    assert near(moments[0], (total.double().mean(-1).flatten() if centred else torch.zeros(moments.size(1))), 1e-5)

    inputs = [None if one is None else one.double().requires_grad_() for one in (x, residual, weight, bias)]
    scale = dropping.scale
    expected = exact(inputs[1] + inputs[0] * keep * scale, inputs[2], inputs[3], centred)
    assert near(out, expected.detach(), ERROR[torch.float32])
    d_out, d_also = torch.randn(2, *shape, generator=generator).unbind()
    d_also = d_also.bfloat16() if both else None
    grad = d_out.double() + (d_also.double() if both else 0.0)
    of = torch.autograd.grad(expected, [one for one in inputs if one is not None], grad)
    found = norm.backward_of_sum(d_out, d_also, total, moments, dropping, kind)
    assert found[0].dtype == kind and near(found[0], of[0], ERROR[kind])
    assert near(found[1], of[1], ERROR[torch.float32]) and near(found[2], of[2], 1e-5)
    assert bias is None or near(found[3], of[3], 1e-5)


def test_rows_far_from_zero_are_normalised_as_exactly_as_they_can_be():
    x, weight, bias, _ = made((4, 64), torch.float32, True)
    x += 1000.0
    out, _ = Norm(weight, bias, True, EPS).forward(x, torch.float32)
    assert near(out, exact(x.double(), weight.double(), bias.double(), True), 1e-4)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("n", [7, 64])
def test_what_is_not_finite_stays_so_in_its_row_and_in_no_other(n, wrong):
    x, weight, bias, _ = made((3, n), torch.float32, True)
    x[1, n - 1] = wrong
    norm = Norm(weight, bias, True, EPS)
    out, moments = norm.forward(x, torch.bfloat16)
    assert out[1].isnan().all() and out[[0, 2]].isfinite().all()
    d_x, d_weight, _ = norm.backward(torch.ones_like(out), x, moments, None)
    assert d_x[1].isnan().all() and d_x[[0, 2]].isfinite().all() and d_weight.isnan().all()


def test_nothing_depends_on_the_number_of_threads():
    x, weight, bias, _ = made((5, 77, 48), torch.float32, True)
    norm, n_thread, found = Norm(weight, bias, True, EPS), torch.get_num_threads(), []
    for n in (1, 3):
        torch.set_num_threads(n)
        out, moments = norm.forward(x, torch.bfloat16)
        found.append([out, moments, *norm.backward(out, x, moments, x)])
        dropping = Dropping(3, 9000, 1.25)
        found[-1] += norm.after_sum(out, x, dropping, also_half=True)
        found[-1] += norm.backward_of_sum(x, out, x, moments, dropping, torch.bfloat16)
    torch.set_num_threads(n_thread)
    assert all(map(torch.equal, *found))
