"""Products in 8 bits are those in full, but for rounding, and a row depends on no other."""

import copy
import re

import pytest
import torch
from torch import nn

from nmt import ops
from nmt.errors import MachineError, RunError
from nmt.models.build import build_model
from nmt.models.int8 import MIN_RANGES, Int8FeedForward, Int8Linear, Int8Projection, prepacked, to_int8
from nmt.models.layers import Stream
from nmt.models.transformer.SubLayers import PositionwiseFeedForward
from nmt.recipe.model_options import ModelConfig

products = pytest.importorskip("nmt.kernels.int8_products")

BY_ONEDNN = pytest.mark.skipif(not products.exact_pair(), reason="no exact products of 8 bits by oneDNN here")
BY_KERNEL = pytest.mark.skipif(not products.bytes_in_kernels(), reason="no kernel multiplies 8 bits on this processor")


@pytest.fixture(
    params=[pytest.param(products.ByOneDnn, marks=BY_ONEDNN), pytest.param(products.ByKernel, marks=BY_KERNEL)]
)
def way(request):
    """Each way of multiplying in 8 bits that this processor has."""
    return request.param


@pytest.fixture(autouse=True)
def each_way(way, monkeypatch):
    monkeypatch.setattr(ops, "int8_product", lambda: way)


def sub_layer(norm="pre", bias=True, dtype=torch.float32):
    """One with weights of all sizes, and the norm that its input comes from."""
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


def states(norm, before, n=200, dtype=torch.float32):
    """What enters it: sums of which the norm is still to be taken, or what another norm has made."""
    x = torch.randn(n, 64, generator=torch.Generator().manual_seed(2)) * 3 + 1
    with torch.no_grad():
        return x.to(dtype) if norm == "pre" else before.float()(x).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_output_is_that_in_full_but_for_rounding(way, norm, bias, dtype):
    ffn, before = sub_layer(norm, bias)
    x = states(norm, before)
    with torch.inference_mode():
        exact = ffn(x)
        moved = exact - x if norm == "pre" else exact
        narrow = Int8FeedForward(copy.deepcopy(ffn).to(dtype), copy.deepcopy(before).to(dtype))
        found = narrow(x.to(dtype)).float()
    assert (found - exact).norm() < (0.03 if way.most == 255 else 0.04) * moved.norm()
    assert (found - exact).mean().abs() < 0.01 * moved.abs().mean()  # rounded to both sides


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_row_is_the_same_in_any_company(norm):
    ffn, before = sub_layer(norm, dtype=torch.bfloat16)
    narrow, x = Int8FeedForward(ffn, before), states(norm, before, dtype=torch.bfloat16)
    with torch.inference_mode():
        whole = narrow(x.view(4, 50, 64)).view(200, 64)
        assert torch.equal(narrow.step(Stream(x)).total(), whole)  # as in a search
        for some in ([3], [7, 3], [199, 0, 3, 4, 5], list(range(0, 200, 2))):
            assert torch.equal(narrow(x[some]), whole[some])


def test_what_lies_beyond_a_range_is_cut_off_and_never_wraps_around():
    ffn, before = sub_layer()
    narrow = Int8FeedForward(ffn, before)
    x = torch.zeros(64, 64)
    x[range(64), range(64)] = 1e4  # normalised, each row has one number of nearly 8, twice the range, and small ones
    with torch.no_grad():
        ffn.layer_norm.bias.zero_()
        for row in (x, -x):
            most = ffn(row).abs().amax()
            with torch.inference_mode():
                assert narrow(row).isfinite().all() and narrow(row).abs().amax() < 1.2 * most
    wide = PositionwiseFeedForward(ModelConfig(d_model=256, d_inner=64, norm="pre")).eval()
    one = torch.zeros(1, 256)
    one[0, 5] = 1e4  # 16 standard deviations
    with torch.inference_mode():
        exact, found = wide(one) - one, Int8FeedForward(wide, wide.layer_norm)(one) - one
    assert torch.nn.functional.cosine_similarity(exact, found).item() > 0.8


@pytest.mark.parametrize("options", [{"norm": "pre"}, {"norm": "post"}, {"norm": "pre", "n_kv_head": 2}])
def test_a_model_keeps_its_parameters_and_says_nearly_the_same(make, batch, options):
    model = make(**options).bfloat16()
    fast = prepacked(model)
    fast = copy.deepcopy(model, {id(one): one for one in model.parameters()}) if fast is model else fast
    names = {name: id(one) for name, one in fast.named_parameters()}
    with torch.inference_mode():
        exact = model(*batch).float()
        to_int8(fast)
        found = fast(*batch).float()
    assert all({name: id(one) for name, one in its.named_parameters()} == names for its in (fast, model))
    assert sum(isinstance(module, Int8FeedForward) for module in fast.modules()) > 1
    assert not any(isinstance(module, Int8FeedForward) for module in model.modules())
    assert not torch.equal(found, exact) and (found - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_model_some_of_whose_states_are_always_far_out_has_wider_ranges(make, batch, norm):
    model = make(norm=norm, d_model=256).float()
    far = copy.deepcopy(model)
    with torch.no_grad():
        far.embeddings[0].weight[:, 7] += 30.0  # of 256, which the sums of all layers keep
        exact = far(*batch)
    for one in (model, far):
        to_int8(one)
    found = [[m for m in one.modules() if isinstance(m, Int8FeedForward | Int8Linear)] for one in (model, far)]
    with torch.inference_mode():
        whole = far(*batch)
    ranges = [[layer.range for layer in layers] for layers in found]
    assert MIN_RANGES[0] in ranges[0] and max(ranges[0]) < 6 < 9 < max(ranges[1])
    assert (whole - exact).norm() < 0.06 * exact.norm()


@pytest.mark.parametrize("factor", [1.0, 0.25])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_behind_a_norm_is_that_in_full_but_for_rounding(bias, factor):
    _, before = sub_layer("post")
    linear = nn.Linear(64, 300, bias=bias)
    narrow, x = Int8Linear(linear, before, factor), states("post", before) * factor
    with torch.inference_mode():
        exact, found = linear(x), narrow(x)
        assert (found - exact).norm() < 0.04 * exact.norm()
        assert torch.equal(narrow(x[[7, 3]]), found[[7, 3]]) and narrow(x[:0]).shape == (0, 300)
        x[3, 5] = torch.nan
        assert narrow(x)[3].isnan().all() and narrow(x)[4].isfinite().all()
    x[3, 5] = 0.0
    assert narrow(x).requires_grad and torch.equal(narrow(x), linear(x))


@pytest.mark.parametrize(
    ("options", "whole"),
    [
        ({"norm": "pre"}, True),
        ({"norm": "post", "scale_emb_or_prj": "prj"}, True),
        ({"norm": "pre", "prj_transform": True}, False),
        ({"norm": "pre", "lexical_attn": True}, False),
    ],
)
def test_the_vocabulary_is_multiplied_by_in_8_bits_where_a_norm_stands_before_it(make, batch, options, whole):
    model = make(**options).float()
    fast = prepacked(model)
    to_int8(fast)
    assert isinstance(fast.trg_word_prj, Int8Linear) == whole
    with torch.inference_mode():
        exact, found = model(*batch), fast(*batch)
    assert (found - exact).norm() < 0.06 * exact.norm()


@pytest.mark.parametrize("options", [{}, {"n_kv_head": 2}, {"n_kv_head": 1, "attn_bias": True, "d_v": 6}])
def test_attention_multiplies_all_but_values_in_8_bits_where_products_round(make, batch, way, options):
    model = make(norm="pre", d_model=64, **options).float()
    with torch.no_grad():
        for name, one in model.named_parameters():  # of all sizes, which only their own ranges fit
            if "w_vs.weight" in name:
                one.mul_(torch.randn(len(one), 1).exp())
            elif "bias" in name:
                one.normal_()
    narrow = copy.deepcopy(model)
    to_int8(narrow)
    in_bytes = [name.rpartition(".")[2] for name, one in narrow.named_modules() if isinstance(one, Int8Projection)]
    assert sorted(in_bytes) == (sorted(["fc"] * 6 + ["w_qs"] * 6 + ["w_ks"] * 4) if way.rounds else [])
    with torch.inference_mode():
        exact = model(*batch)
        assert (narrow(*batch) - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"ffn": "swiglu"}, "needs model.ffn relu, but this model has swiglu"),
        ({"architecture": "attention"}, "is for Transformers only"),
        ({"norm_kind": "rms"}, "needs model.norm_kind layer, but this model has another"),
    ],
)
def test_a_model_that_cannot_is_refused(options, why):
    model = build_model(ModelConfig(d_model=16, **options), 20, 20, 0).eval()
    with pytest.raises(RunError, match=re.escape(f"decode.precision int8: {why}. Take bf16 or fp32.")):
        to_int8(model)


def test_a_processor_that_cannot_is_told(make, monkeypatch):
    monkeypatch.setattr(ops, "int8_product", lambda: None)
    with pytest.raises(MachineError, match=r"this processor or this torch has no 8-bit products\. Take bf16 or fp32"):
        to_int8(make().bfloat16())
