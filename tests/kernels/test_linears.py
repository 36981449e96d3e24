"""Layers of one input as one product, and two around a ReLU, are what the layers are by themselves."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nmt.kernels import linears, products, switch
from nmt.kernels.attention import Attention
from nmt.models.transformer.SubLayers import PositionwiseFeedForward
from nmt.ops import fused_linear, linear_relu_linear
from nmt.recipe.model_options import ModelConfig

NEEDS_COMPILER = pytest.mark.skipif(bool(switch.why_not()), reason=f"no kernels here: {switch.why_not()}")
TYPES = pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])


def made(make, layers, dtype):
    """What a function of an input of the first layer makes, and all gradients."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(3, 5, layers[0].in_features, generator=generator, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        outputs = make(x)
    weighted = [(out * torch.randn(out.shape, generator=generator)).sum() for out in outputs]
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    return [*outputs, *torch.autograd.grad(sum(weighted), [x, *parameters])]


def same(found, expected, error):
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert (one.double() - other.double()).abs().max() <= error * max(1.0, float(other.detach().abs().max()))
    return True


@NEEDS_COMPILER
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("widths", [(4,), (8, 4, 4)])
@TYPES
def test_one_product_is_that_of_each_layer(widths, bias, dtype, error):
    torch.manual_seed(1)
    layers = [nn.Linear(8, width, bias=bias) for width in widths]
    expected = made(lambda x: [layer(x) for layer in layers], layers, dtype)
    switch.use(True)
    found = made(lambda x: fused_linear(x, layers), layers, dtype)
    assert "FusedLinear" in str(found[0].grad_fn) and same(found, expected, error)


@NEEDS_COMPILER
@TYPES
def test_a_relu_between_two_layers_is_one(dtype, error):
    torch.manual_seed(1)
    layers = [nn.Linear(8, 32), nn.Linear(32, 8)]
    expected = made(lambda x: [linear_relu_linear(x, *layers)], layers, dtype)
    switch.use(True)
    found = made(lambda x: [linear_relu_linear(x, *layers)], layers, dtype)
    assert "LinearReluLinear" in str(found[0].grad_fn) and same(found, expected, error)


@NEEDS_COMPILER
@TYPES
def test_what_is_not_finite_comes_through_the_relu(dtype, error):
    switch.use(True)
    layers = [nn.Linear(8, 32), nn.Linear(32, 8)]
    with torch.no_grad():
        layers[0].weight[3, 3] = float("nan")
    (output,) = made(lambda x: [linear_relu_linear(x, *layers)], layers, dtype)[:1]
    assert "LinearReluLinear" in str(output.grad_fn) and output.isnan().all()


@NEEDS_COMPILER
def test_of_the_products_around_a_relu_four_may_leave_out_zeros(monkeypatch):
    multiply, seen = products._multiply, []

    def spied(out, a, b, *, zeros=False, **options):
        seen.append((zeros, (a == 0).float().mean().item() > 0.2))
        return multiply(out, a, b, zeros=zeros, **options)

    switch.use(True, wide_panels=True)
    if not products.fp32_in_kernels() or not switch.library().has_panels():
        pytest.skip("this processor leaves out no zeros")
    monkeypatch.setattr(products, "_multiply", spied)
    for n, bias in ((8, 0.0), (64, -1.0)):
        seen.clear()
        layers = [nn.Linear(n, 32), nn.Linear(32, n)]
        nn.init.constant_(layers[0].bias, bias)
        made(lambda x, layers=layers: [linear_relu_linear(x, *layers)], layers, torch.float32)
        assert sorted(seen) == [(False, False)] * 2 + [(True, True)] * 4


@NEEDS_COMPILER
def test_layers_are_themselves_where_they_are_not_plain_or_not_trained():
    switch.use(True)

    class Doubled(nn.Linear):
        def forward(self, input):
            return 2 * super().forward(input)

    torch.manual_seed(1)
    plain, other, x = nn.Linear(8, 4), Doubled(8, 4), torch.randn(3, 8)
    assert torch.equal(fused_linear(x, [plain, other])[1], other(x))
    assert torch.equal(linear_relu_linear(x, other, nn.Identity()), other(x).relu())
    with torch.no_grad():
        assert torch.equal(fused_linear(x, [plain])[0], plain(x))
    mixed = [plain, nn.Linear(8, 4, bias=False)]
    assert all(torch.equal(one, layer(x)) for one, layer in zip(fused_linear(x, mixed), mixed, strict=True))


@NEEDS_COMPILER
@pytest.mark.parametrize("act_dropout", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["relu", "gelu", "swiglu", "relu2"])
def test_every_feed_forward_layer_has_the_same_gradient_in_kernels(kind, act_dropout):
    torch.manual_seed(1)
    layer = PositionwiseFeedForward(ModelConfig(d_model=16, d_inner=32, ffn=kind, act_dropout=act_dropout, dropout=0.0))
    x, weight, found = torch.randn(2, 5, 16, requires_grad=True), torch.randn(2, 5, 16), []
    for used, trained in ((False, False), (True, False), (True, True)):
        switch.use(used)
        output = layer.train(trained)(x)
        found.append(torch.autograd.grad((output * weight).sum(), (x, *layer.parameters())))
    exact, alike, dropped = found
    assert same(alike, exact, 1e-5) and all(gradient.isfinite().all() for gradient in dropped)
    assert all(map(torch.allclose, dropped, alike)) == (act_dropout == 0.0)


def test_parts_that_lie_side_by_side_are_not_copied():
    room = torch.randn(2, 3, 9)
    parts = torch.split(room, (4, 2, 3), -1)
    joined = linears._side_by_side(parts)
    assert torch.equal(joined, room) and joined.data_ptr() == room.data_ptr()
    for others in (parts[::-1], (parts[0], parts[2]), (parts[0], parts[1].clone(), parts[2])):
        joined = linears._side_by_side(others)
        assert torch.equal(joined, torch.cat(others, -1)) and joined.data_ptr() != room.data_ptr()


@pytest.mark.parametrize("bias", [False, True])
def test_matrices_that_lie_beside_each_other_are_one(bias, monkeypatch):
    """As on a GPU, where `fused_linear` asks for that."""
    torch.manual_seed(3)
    layers, x = [nn.Linear(8, width, bias=bias) for width in (4, 6, 4)], torch.randn(2, 3, 8)
    wanted, n_product = [layer(x) for layer in layers], []
    linear = F.linear
    monkeypatch.setattr(F, "linear", lambda *args: n_product.append(1) or linear(*args))
    for is_laid in (False, True):
        if is_laid:
            linears.lay_beside_each_other(layers)
        for some in (slice(0, 3), slice(1, 3), slice(0, 3, 2)):
            n_product.clear()
            with torch.inference_mode():
                found = linears._beside_each_other(x, layers[some]) or [layer(x) for layer in layers[some]]
            for a, b in zip(found, wanted[some], strict=True):
                torch.testing.assert_close(a, b)
            assert len(n_product) == (1 if is_laid and some.step is None else len(found))


@NEEDS_COMPILER
def test_the_gradients_of_attention_lie_as_the_product_wants_them():
    switch.use(True)
    q, k, v = (one.view(2, 6, 4, 8).transpose(1, 2) for one in torch.randn(2, 6, 96).chunk(3, -1))
    attention = Attention(torch.ones(1, 1, 1, 6, dtype=torch.bool), 1.0)
    out, weight = attention.forward(q, k, v)
    grads = attention.backward(q, k, v, weight, torch.ones_like(out))
    joined = linears._side_by_side([grad.transpose(1, 2).flatten(2) for grad in grads])
    assert joined.data_ptr() == grads[0].data_ptr() and joined.shape == (2, 6, 96)
