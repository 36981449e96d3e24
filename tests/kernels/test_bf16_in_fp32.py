"""Where the processor has no instructions for products of bf16, they are those of fp32, rounded once at their end."""

import os
import platform
from pathlib import Path

import pytest
import torch

from nmt.kernels import products, switch

if why_not := switch.why_not():
    pytest.skip(f"no kernels here: {why_not}", allow_module_level=True)


@pytest.fixture(autouse=True)
def without_instructions(monkeypatch):
    """Few enough rows that kernels of bf16 leave them alone, too."""
    switch.use(True)
    monkeypatch.setattr(products, "bf16_in_fp32", lambda: True)


@pytest.fixture
def factors():
    generator = torch.Generator().manual_seed(1)
    rows, weight, d_out = (torch.randn(shape, generator=generator) for shape in ((90, 64), (48, 64), (90, 48)))
    return rows.bfloat16(), weight.bfloat16(), d_out.bfloat16()


def equal(found, wide):
    return found.dtype == torch.bfloat16 and torch.equal(found, wide.bfloat16())


@pytest.mark.skipif(platform.machine() != "x86_64", reason="which words tell of it is known of x86-64 alone")
def test_the_compiler_knows_what_the_system_says_of_the_processor():
    told = [*Path("/proc/cpuinfo").read_text(encoding="utf-8").split(), os.environ.get("CC", "")]
    has = ("avx512_bf16" in told or "-D__AVX512BF16__" in told[-1]) and "-U__AVX512BF16__" not in told[-1]
    assert switch.library().multiplies_half() == has


def test_a_product_is_that_of_fp32_rounded_once(factors):
    x, weight, d_out = factors
    wide = products.product(x.float(), weight.float().t())
    assert equal(products.product(x, weight.t()), wide)
    out = torch.full_like(d_out, float("nan"))
    assert products.product(x, weight.t(), out) is out and equal(out, wide)
    assert equal(products.product_by(d_out, [weight]), products.product(d_out.float(), weight.float()))


@pytest.mark.parametrize("relu", [False, True])
def test_a_layer_rounds_what_it_makes_when_its_bias_is_there(factors, relu):
    x, weight, _ = factors
    bias = torch.full((48,), 1.001)
    wide = products.linear(x.float(), [weight.float()], bias, relu=relu)
    assert equal(products.linear(x, [weight], bias, relu=relu), wide)


def test_a_gradient_is_masked_and_summed_before_it_is_rounded(factors):
    x, weight, d_out = factors
    hidden = x.relu()
    found, sums = products.product_where(d_out, weight, hidden)
    wide, wide_sums = products.product_where(d_out.float(), weight.float(), hidden.float())
    assert equal(found, wide) and torch.equal(sums, wide_sums) and (found[hidden == 0] == 0).all()


@pytest.mark.parametrize("zeros_in", ["d_out", "x", ""])
def test_a_gradient_of_a_weight_is_not_rounded(factors, zeros_in):
    x, _, d_out = factors
    found = products.weight_gradient(d_out, x, torch.float32, zeros_in=zeros_in)
    assert torch.equal(found, products.weight_gradient(d_out.float(), x.float(), torch.float32))
    products.add_weight_gradient(found, d_out, x)
    torch.testing.assert_close(found, 2 * (d_out.float().t() @ x.float()), rtol=0.0, atol=1e-4)


def test_what_is_wide_already_stays_so_beside_what_is_not(factors):
    x, weight, _ = factors
    wide = products.product(x.float(), weight.t())
    assert wide.dtype == torch.float32 and torch.equal(wide, products.product(x.float(), weight.float().t()))


def test_nothing_is_widened_with_kernels_off_or_with_instructions(factors, monkeypatch):
    (x, *_) = factors
    assert torch.equal(products.widened(x), x.float()) and products.widened(x).dtype == torch.float32
    assert products.widened(wide := x.float()) is wide
    switch.use(False)
    assert products.widened(x) is x
    switch.use(True)
    monkeypatch.setattr(products, "bf16_in_fp32", lambda: False)
    assert products.widened(x) is x
