"""Where the residual stream parts, by kernels: what torch's own norm, casts and sums of gradients come to."""

import pytest
import torch
from torch import nn

from nmt.kernels import switch
from nmt.models.layers import Dropout
from nmt.models.transformer.Modules import RMSNorm
from nmt.ops import add_and_norm, normed, residual_and_input

NEEDS_COMPILER = pytest.mark.skipif(bool(switch.why_not()), reason=f"no kernels here: {switch.why_not()}")
TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
NORMS = {
    "layer": lambda: nn.LayerNorm(24, eps=1e-6),
    "without bias": lambda: nn.LayerNorm(24, eps=1e-6, bias=False),
    "rms": lambda: RMSNorm(24, eps=1e-6),
}


def some(norm):
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn(24, generator=generator))
    return torch.randn(2, 9, 24, generator=generator, requires_grad=True), nn.Linear(24, 6)


def made(x, norm, layer, dtype, part):
    """The two ways of the stream, the second through a product, and the gradients of all."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        past, entering = part(x)
        product = layer(entering)
    loss = (past * past.detach().cos()).sum() + product.float().square().sum()
    inputs = [x, *layer.parameters(), *norm.parameters()]
    return [past, product, *torch.autograd.grad(loss, inputs, allow_unused=True)], entering


@NEEDS_COMPILER
@pytest.mark.parametrize("kind", [*NORMS, None])
@TYPES
def test_both_ways_and_their_gradients_are_those_of_torch(kind, dtype):
    torch.manual_seed(1)
    norm = NORMS[kind]() if kind else nn.Identity()
    x, layer = some(norm)
    expected, _ = made(x, norm, layer, dtype, lambda x: (x, norm(x)))
    switch.use(True)
    found, entering = made(x, norm, layer, dtype, lambda x: residual_and_input(x, norm if kind else None))
    assert entering.dtype == dtype and ("Part" in str(entering.grad_fn)) == (entering is not x)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        error = 2e-6 if dtype == torch.float32 else 2e-2
        assert (one - other).abs().max() <= error * max(1.0, float(other.detach().abs().max()))


@NEEDS_COMPILER
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("taken", ["both", "past", "entering"])
@TYPES
def test_the_end_of_a_sub_layer_and_the_beginning_of_the_next_are_those_of_torch(kind, p, taken, dtype):
    norm, dropout = NORMS[kind](), Dropout(p)
    residual, layer = some(norm)
    x = torch.randn(residual.shape, generator=torch.Generator().manual_seed(5)).to(dtype).requires_grad_()

    def ended(end):
        torch.manual_seed(2)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            past, entering = residual_and_input(end(), None)
            product = layer(entering)
        loss = past.new_zeros(())
        loss = loss + (past * past.detach().cos()).sum() if taken != "entering" else loss
        loss = loss + product.float().square().sum() if taken != "past" else loss
        return entering, [past, product, *torch.autograd.grad(loss, [x, residual, *norm.parameters()])]

    switch.use(True)
    _, expected = ended(lambda: norm(dropout.add(x, residual)))
    entering, found = ended(lambda: add_and_norm(x, residual, p, norm))
    assert entering.dtype == dtype and "AddAndNorm" in str(entering.grad_fn)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        error = 2e-6 if dtype == torch.float32 else 2e-2
        assert (one - other).abs().max() <= error * max(1.0, float(other.detach().abs().max()))


@NEEDS_COMPILER
def test_rows_that_do_not_begin_with_a_word_of_chance_are_dropped_as_before():
    norm, dropout, x = nn.LayerNorm(6), Dropout(0.5), torch.randn(3, 6, requires_grad=True)
    switch.use(True)
    torch.manual_seed(2)
    found = add_and_norm(x, x, 0.5, norm)
    torch.manual_seed(2)
    assert torch.equal(found, normed(dropout.add(x, x), norm)) and "AddAndNorm" not in str(found.grad_fn)


@NEEDS_COMPILER
@pytest.mark.parametrize("kind", NORMS)
@TYPES
def test_a_norm_by_itself_is_as_wide_as_its_input(kind, dtype):
    norm = NORMS[kind]()
    x, _ = some(norm)
    expected = norm(x)
    switch.use(True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        found = normed(x, norm)
    weight = torch.randn(found.shape, generator=torch.Generator().manual_seed(4))
    assert found.dtype == torch.float32 and (found - expected).abs().max() < 1e-5
    inputs = [x, *norm.parameters()]
    pairs = zip(*(torch.autograd.grad((out * weight).sum(), inputs) for out in (found, expected)), strict=True)
    assert all((one - other).abs().max() < 1e-5 * max(1.0, float(other.abs().max())) for one, other in pairs)


@NEEDS_COMPILER
@pytest.mark.parametrize("kind", ["layer", None])
@pytest.mark.parametrize("way", [0, 1])
def test_a_way_that_nobody_takes_has_no_part_in_the_gradient(kind, way):
    norm = NORMS[kind]() if kind else None
    x, _ = some(norm or nn.Identity())
    (expected,) = torch.autograd.grad(((x, norm(x) if norm else x)[way] ** 3).sum(), [x])
    switch.use(True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ways = residual_and_input(x, norm)
    (found,) = torch.autograd.grad((ways[way].float() ** 3).sum(), [x])
    assert (found - expected).abs().max() < 3e-2 * float(expected.abs().max())


def test_without_kernels_and_without_a_gradient_torch_does_it():
    norm = NORMS["layer"]()
    x, _ = some(norm)
    past, entering = residual_and_input(x, norm)
    assert past is x and "LayerNorm" in str(entering.grad_fn)
    switch.use(not switch.why_not())
    with torch.no_grad():
        past, entering = residual_and_input(x, norm)
        assert past is x and torch.equal(entering, norm(x)) and torch.equal(normed(x, norm), entering)
    wide = NORMS["layer"]().double()
    assert "LayerNorm" in str(residual_and_input(x.double(), wide)[1].grad_fn)
