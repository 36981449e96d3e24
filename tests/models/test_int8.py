"""Products in 8 bits equal those in full precision up to rounding, and no row depends on another."""

import copy
import re

import pytest
import torch
from torch import nn

from nmt import ops
from nmt.errors import MachineError, RunError
from nmt.models.build import build_model
from nmt.models.int8 import Int8FeedForward, Int8Linear, Int8Projection, prepacked, to_int8
from nmt.models.layers import Stream
from nmt.models.transformer.SubLayers import PositionwiseFeedForward
from nmt.recipe.model_options import ModelConfig

products = pytest.importorskip("nmt.kernels.int8_products")
SMALLEST_RANGE = 4.0  # standard deviations

BY_ONEDNN = pytest.mark.skipif(not products.exact_pair(), reason="no exact products of 8 bits by oneDNN here")
BY_KERNEL = pytest.mark.skipif(not products.bytes_in_kernels(), reason="no kernel multiplies 8 bits on this processor")


@pytest.fixture(
    params=[pytest.param(products.ByOneDnn, marks=BY_ONEDNN), pytest.param(products.ByKernel, marks=BY_KERNEL)]
)
def backend(request):
    """Each implementation of 8-bit products that this processor supports."""
    return request.param


@pytest.fixture(autouse=True)
def use_backend(backend, monkeypatch):
    for module in (ops, products):
        monkeypatch.setattr(module, "int8_product", lambda: backend)


def feed_forward_and_norm(norm="pre", bias=True, dtype=torch.float32):
    """A feed-forward layer with weights of all magnitudes, and the norm before it."""
    torch.manual_seed(1)
    ffn = PositionwiseFeedForward(ModelConfig(d_model=64, d_inner=160, norm=norm, ffn_bias=bias)).eval()
    before = ffn.layer_norm if norm == "pre" else nn.LayerNorm(64)
    with torch.no_grad():
        for norm_layer in {ffn.layer_norm, before}:
            norm_layer.weight.copy_(torch.randn(64).exp())
            norm_layer.bias.normal_()
        ffn.w_1.weight.mul_(torch.randn(160, 1).exp())
        if bias:
            ffn.w_1.bias.normal_()
            ffn.w_2.bias.normal_()
    return ffn.to(dtype), before.to(dtype)


def affine(norm):
    return norm.weight.detach(), norm.bias.detach()


def states(norm, before, n=200, dtype=torch.float32):
    """Inputs of the layer: sums before its own norm, or outputs of another norm."""
    x = torch.randn(n, 64, generator=torch.Generator().manual_seed(2)) * 3 + 1
    with torch.no_grad():
        return x.to(dtype) if norm == "pre" else before.float()(x).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_int8_output_equals_full_precision_up_to_rounding(backend, norm, bias, dtype):
    ffn, before = feed_forward_and_norm(norm, bias)
    x = states(norm, before)
    with torch.inference_mode():
        exact = ffn(x)
        change = exact - x if norm == "pre" else exact
        narrow = Int8FeedForward(copy.deepcopy(ffn).to(dtype), affine(copy.deepcopy(before).to(dtype)))
        found = narrow(x.to(dtype)).float()
    assert (found - exact).norm() < (0.03 if backend.most == 255 else 0.04) * change.norm()
    assert (found - exact).mean().abs() < 0.01 * change.abs().mean()  # rounding has no bias


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_row_does_not_depend_on_other_rows(norm):
    ffn, before = feed_forward_and_norm(norm, dtype=torch.bfloat16)
    narrow, x = Int8FeedForward(ffn, affine(before)), states(norm, before, dtype=torch.bfloat16)
    with torch.inference_mode():
        expected = narrow(x.view(4, 50, 64)).view(200, 64)
        assert torch.equal(narrow.step(Stream(x)).total(), expected)  # as in a search
        for rows in ([3], [7, 3], [199, 0, 3, 4, 5], list(range(0, 200, 2))):
            assert torch.equal(narrow(x[rows]), expected[rows])


def test_values_beyond_the_range_are_clipped_and_never_wrap_around():
    ffn, before = feed_forward_and_norm()
    narrow = Int8FeedForward(ffn, affine(before))
    x = torch.zeros(64, 64)
    x[range(64), range(64)] = 1e4  # normalised, each row has one number of nearly 8, twice the range, and small ones
    with torch.no_grad():
        ffn.layer_norm.bias.zero_()
        for row in (x, -x):
            largest = ffn(row).abs().amax()
            with torch.inference_mode():
                assert narrow(row).isfinite().all() and narrow(row).abs().amax() < 1.2 * largest
    wide = PositionwiseFeedForward(ModelConfig(d_model=256, d_inner=64, norm="pre")).eval()
    outlier = torch.zeros(1, 256)
    outlier[0, 5] = 1e4  # 16 standard deviations
    with torch.inference_mode():
        exact, found = wide(outlier) - outlier, Int8FeedForward(wide, affine(wide.layer_norm))(outlier) - outlier
    assert torch.nn.functional.cosine_similarity(exact, found).item() > 0.8


@pytest.mark.parametrize("options", [{"norm": "pre"}, {"norm": "post"}, {"norm": "pre", "n_kv_head": 2}])
def test_int8_model_keeps_its_parameters_and_nearly_the_same_logits(make, batch, options):
    model = make(**options).bfloat16()
    fast = prepacked(model)
    expected_ids = {name: id(p) for name, p in fast.named_parameters()}
    with torch.inference_mode():
        exact = model(*batch).float()
        to_int8(fast)
        found = fast(*batch).float()
    assert all({name: id(p) for name, p in m.named_parameters()} == expected_ids for m in (fast, model))
    assert sum(isinstance(module, Int8FeedForward) for module in fast.modules()) > 1
    assert not any(isinstance(module, Int8FeedForward) for module in model.modules())
    assert not torch.equal(found, exact) and (found - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_model_with_outlier_states_has_wider_ranges(make, batch, norm):
    model = make(norm=norm, d_model=256).float()
    outlying = copy.deepcopy(model)
    with torch.no_grad():
        outlying.embeddings[0].weight[:, 7] += 30.0  # one of 256 features, kept by all residual sums
        exact = outlying(*batch)
    for net in (model, outlying):
        to_int8(net)
    int8_layers = [
        [layer for layer in net.modules() if isinstance(layer, Int8FeedForward | Int8Linear)]
        for net in (model, outlying)
    ]
    with torch.inference_mode():
        found = outlying(*batch)
    ranges = [[layer.int8.range for layer in layers] for layers in int8_layers]
    assert SMALLEST_RANGE in ranges[0] and max(ranges[0]) < 6 < 9 < max(ranges[1])
    assert (found - exact).norm() < 0.06 * exact.norm()


@pytest.mark.parametrize("factor", [1.0, 0.25])
@pytest.mark.parametrize("bias", [True, False])
def test_int8_linear_after_a_norm_equals_full_precision_up_to_rounding(bias, factor):
    _, before = feed_forward_and_norm("post")
    linear = nn.Linear(64, 300, bias=bias)
    spread = before.weight.detach() * factor, before.bias.detach() * factor
    narrow, x = Int8Linear(linear, spread), states("post", before) * factor
    with torch.inference_mode():
        exact, found = linear(x), narrow(x)
        assert (found - exact).norm() < 0.04 * exact.norm()
        assert torch.equal(narrow(x[[7, 3]]), found[[7, 3]]) and narrow(x[:0]).shape == (0, 300)
        x[3, 5] = torch.nan
        assert narrow(x)[3].isnan().all() and narrow(x)[4].isfinite().all()
    x[3, 5] = 0.0
    assert narrow(x).requires_grad and torch.equal(narrow(x), linear(x))


@pytest.mark.parametrize(
    ("options", "is_int8"),
    [
        ({"norm": "pre"}, True),
        ({"norm": "post", "scale_emb_or_prj": "prj"}, True),
        ({"norm": "pre", "prj_transform": True}, False),
        ({"norm": "pre", "lexical_attn": True}, False),
    ],
)
def test_output_projection_is_int8_directly_after_a_norm(make, batch, options, is_int8):
    model = make(**options).float()
    fast = prepacked(model)
    to_int8(fast)
    assert isinstance(fast.trg_word_prj, Int8Linear) == is_int8
    with torch.inference_mode():
        exact, found = model(*batch), fast(*batch)
    assert (found - exact).norm() < 0.06 * exact.norm()


@pytest.mark.parametrize("options", [{}, {"n_kv_head": 2}, {"n_kv_head": 1, "attn_bias": True, "d_v": 6}])
def test_attention_is_int8_except_for_values_if_products_round(make, batch, backend, options):
    model = make(norm="pre", d_model=64, **options).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # of all magnitudes, so that each needs its own range
            if "w_vs.weight" in name:
                parameter.mul_(torch.randn(len(parameter), 1).exp())
            elif "bias" in name:
                parameter.normal_()
    narrow = copy.deepcopy(model)
    to_int8(narrow)
    names = [name.rpartition(".")[2] for name, module in narrow.named_modules() if isinstance(module, Int8Projection)]
    assert sorted(names) == (sorted(["fc"] * 6 + ["w_qs"] * 6 + ["w_ks"] * 4) if backend.rounds else [])
    with torch.inference_mode():
        exact = model(*batch)
        assert (narrow(*batch) - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"ffn": "swiglu"}, "needs model.ffn relu, but this model has swiglu"),
        ({"architecture": "attention"}, "is for Transformers only"),
        ({"norm_kind": "rms"}, "needs model.norm_kind layer, but this model has another"),
    ],
)
def test_unsupported_model_is_refused(options, reason):
    model = build_model(ModelConfig(d_model=16, **options), 20, 20, 0).eval()
    with pytest.raises(RunError, match=re.escape(f"decode.precision int8: {reason}. Take bf16 or fp32.")):
        to_int8(model)


def test_unsupported_processor_is_refused(make, monkeypatch):
    monkeypatch.setattr(ops, "int8_product", lambda: None)
    with pytest.raises(MachineError, match=r"this processor or this torch has no 8-bit products\. Take bf16 or fp32"):
        to_int8(make().bfloat16())
