"""A sum and its norm in one kernel in Triton: on a GPU, or without one in Triton's interpreter if that is installed."""

import importlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nmt.data.subwords import BOS, EOS, PAD
from nmt.kernels import on_gpu
from nmt.models.build import build_model
from nmt.models.layers import Dropout
from nmt.models.transformer.Modules import RMSNorm
from nmt.recipe.model_options import ModelConfig

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# For numbers near 1: the interpreter truncates to bf16, and a GPU rounds to the nearest.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
NO_DROPOUT = Dropout(0.0)


@pytest.fixture
def kernel(device):
    return importlib.import_module("nmt.kernels.norms_triton")


def random_inputs(kind, width, device, dtype, n_row=(5,)):
    """Rows far from zero, other rows to be added, and a norm."""
    torch.manual_seed(1)
    norm = {
        "layer": lambda: nn.LayerNorm(width, eps=1e-6),
        "without bias": lambda: nn.LayerNorm(width, eps=1e-6, bias=False),
        "rms": lambda: RMSNorm(width, eps=1e-6),
    }[kind]().requires_grad_(False)
    for parameter in norm.parameters():
        parameter.normal_()
    x, y = (torch.randn(*n_row, width, device=device).add(3.0).to(dtype) for _ in range(2))
    return x, y, norm.to(device, dtype)


def exact_norm(x, norm):
    """norm(x) in double precision."""
    weight, width = norm.weight.double(), x.shape[-1:]
    if isinstance(norm, RMSNorm):
        return F.rms_norm(x.double(), width, weight, norm.eps)
    return F.layer_norm(x.double(), width, weight, None if norm.bias is None else norm.bias.double(), norm.eps)


def norm_arguments(norm):
    is_layer = isinstance(norm, nn.LayerNorm)
    return norm.weight, norm.bias if is_layer else None, is_layer, norm.eps


def check(found, expected, dtype):
    assert found.dtype == dtype and found.shape == expected.shape
    torch.testing.assert_close(found.double(), expected.double(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("kind", ["layer", "without bias", "rms"])
@pytest.mark.parametrize(
    ("width", "n_row"), [(1, (3,)), (96, (1,)), (96, (7, 5)), (512, (2, 9)), (1000, (5,)), (1024, (3,)), (4096, (2,))]
)
def test_sum_and_norm_equal_those_of_torch(kind, width, n_row, device, kernel):
    for dtype in DTYPES:
        x, y, norm = random_inputs(kind, width, device, dtype, n_row)
        total, normed = kernel.sum_and_norm(x, y, *norm_arguments(norm))
        check(total, x + y, dtype)
        truncates = dtype == torch.bfloat16 and device.type == "cpu"
        assert truncates or torch.equal(total, x + y)
        check(normed, exact_norm(total, norm), dtype)  # of the stored sum, which is rounded
        without_sum = kernel.sum_and_norm(x, y, *norm_arguments(norm), keep_sum=False)
        assert without_sum[0] is x and torch.equal(without_sum[1], normed)
        check(kernel.sum_and_norm(x, None, *norm_arguments(norm))[1], exact_norm(x, norm), dtype)
        _, alone = kernel.sum_and_norm(x[-1:], y[-1:], *norm_arguments(norm))
        assert torch.equal(alone, normed[-1:])  # a row does not depend on others


MODELS = {
    "pre": {"norm": "pre"},
    "post": {"norm": "post"},
    "rms": {"norm": "pre", "norm_kind": "rms", "ffn": "swiglu", "qk_norm": True, "n_kv_head": 1},
    "post, rms": {"norm": "post", "norm_kind": "rms", "position": "rotary", "ffn": "gelu"},
    "dictionary": {"norm": "pre", "lexical_attn": True, "prj_transform": True, "enc_conv": 3},
}


def small_model(options, device):
    torch.manual_seed(6)
    config = ModelConfig(d_model=32, n_head=2, d_inner=64, n_enc_layer=1, n_dec_layer=2, **options)
    model = build_model(config, 96, 96, PAD).eval().to(device)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.LayerNorm | RMSNorm):
                for parameter in module.parameters():
                    parameter.add_(0.3 * torch.randn_like(parameter))
    src_seq = torch.randint(3, 90, (9, 5), device=device)
    src_seq[:, -1] = EOS
    return model, src_seq


def step_logits(model, src_seq):
    """Logits of five steps with three hypotheses a sentence."""
    state, generator = model.start(src_seq), torch.Generator().manual_seed(2)
    model.step(torch.full((len(src_seq),), BOS, device=src_seq.device), state)
    state.reorder(torch.arange(len(src_seq), device=src_seq.device).repeat_interleave(3))
    words = torch.randint(3, 90, (5, 3 * len(src_seq)), generator=generator).to(src_seq.device)
    return torch.stack([model.step(word, state) for word in words])


@torch.no_grad()
@pytest.mark.parametrize("kind", MODELS)
def test_steps_with_and_without_the_kernel_are_equal(kind, device, kernel, monkeypatch):
    model, src_seq = small_model(MODELS[kind], device)
    monkeypatch.setattr(on_gpu, "takes_norm", lambda *_: False)
    expected = step_logits(model, src_seq)
    started, start = [], kernel.sum_and_norm
    monkeypatch.setattr(on_gpu, "takes_norm", lambda *_: True)
    monkeypatch.setattr(
        kernel, "sum_and_norm", lambda x, y, *norm, **options: started.append(y) or start(x, y, *norm, **options)
    )
    torch.testing.assert_close(step_logits(model, src_seq), expected, rtol=1e-5, atol=1e-5)
    # Each of the decoder's six sub-layers ends in a sum fused with a norm.
    n_sum = sum(y is not None for y in started)
    assert n_sum == 6 * 6 + (0 if model.decoder.pre_norm else 2)  # and two of the encoder
