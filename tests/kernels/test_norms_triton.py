"""A sum and its norm in one kernel in Triton: on a GPU, or without one in Triton's interpreter if that is installed."""

import functools
import importlib
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import nmt.kernels
from nmt import ops
from nmt.data.subwords import BOS, EOS, PAD
from nmt.decoding import beam
from nmt.decoding.beam import BeamSettings
from nmt.kernels import on_gpu
from nmt.models.build import build_model
from nmt.models.layers import Dropout, behind
from nmt.models.transformer.Modules import RMSNorm
from nmt.recipe.model_options import ModelConfig

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Of a number near to 1: the interpreter cuts off what does not fit bf16, where a GPU rounds to the nearest.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
NO_DROPOUT = Dropout(0.0)


@pytest.fixture
def kernel(device):
    return importlib.import_module("nmt.kernels.norms_triton")


def some(kind, width, device, dtype, n_row=(5,)):
    """Rows far from zero, what is added to them, and a norm."""
    torch.manual_seed(1)
    norm = {
        "layer": lambda: nn.LayerNorm(width, eps=1e-6),
        "without bias": lambda: nn.LayerNorm(width, eps=1e-6, bias=False),
        "rms": lambda: RMSNorm(width, eps=1e-6),
    }[kind]().requires_grad_(False)
    for parameter in norm.parameters():
        parameter.normal_()
    x, more = (torch.randn(*n_row, width, device=device).add(3.0).to(dtype) for _ in range(2))
    return x, more, norm.to(device, dtype)


def exactly(x, norm):
    """norm(x) in double precision."""
    weight, width = norm.weight.double(), x.shape[-1:]
    if isinstance(norm, RMSNorm):
        return F.rms_norm(x.double(), width, weight, norm.eps)
    return F.layer_norm(x.double(), width, weight, None if norm.bias is None else norm.bias.double(), norm.eps)


def numbers_of(norm):
    is_layer = isinstance(norm, nn.LayerNorm)
    return norm.weight, norm.bias if is_layer else None, is_layer, norm.eps


def check(found, wanted, dtype):
    assert found.dtype == dtype and found.shape == wanted.shape
    torch.testing.assert_close(found.double(), wanted.double(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("kind", ["layer", "without bias", "rms"])
@pytest.mark.parametrize(
    ("width", "n_row"), [(1, (3,)), (96, (1,)), (96, (7, 5)), (512, (2, 9)), (1000, (5,)), (1024, (3,)), (4096, (2,))]
)
def test_a_sum_and_its_norm_are_those_of_torch(kind, width, n_row, device, kernel):
    for dtype in DTYPES:
        x, more, norm = some(kind, width, device, dtype, n_row)
        total, normed = kernel.added_and_normed(x, more, *numbers_of(norm))
        check(total, x + more, dtype)
        cuts_off = dtype == torch.bfloat16 and device.type == "cpu"
        assert cuts_off or torch.equal(total, x + more)
        check(normed, exactly(total, norm), dtype)  # of what is kept, which was rounded
        assert torch.equal(kernel.normed(x, more, *numbers_of(norm)), normed)
        check(kernel.normed(x, None, *numbers_of(norm)), exactly(x, norm), dtype)


def test_a_weight_may_be_wider_than_what_it_weighs(device, kernel):
    x, more, norm = some("layer", 96, device, torch.float16)
    total, normed = kernel.added_and_normed(x, more, *numbers_of(norm.float()))
    check(normed, exactly(total, norm), torch.float16)


def test_rows_may_lie_anyhow(device, kernel):
    x, more, norm = some("layer", 96, device, torch.float32, (4, 6))
    wanted = kernel.added_and_normed(x, more, *numbers_of(norm))
    apart = torch.full((4, 6, 200), torch.nan, device=device)
    apart[..., 50:146] = x
    across = more.transpose(0, 1).contiguous().transpose(0, 1)
    columns = more.transpose(1, 2).contiguous().transpose(1, 2)
    for its, others in ((apart[..., 50:146], more), (x, across), (x, columns)):
        found = kernel.added_and_normed(its, others, *numbers_of(norm))
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    same = x[0, 0].expand(4, 6, 96)
    check(kernel.normed(same, None, *numbers_of(norm)), exactly(same, norm), torch.float32)


@pytest.mark.parametrize("width", [96, 512])
def test_a_row_is_the_same_in_any_company(width, device, kernel):
    x, more, norm = some("layer", width, device, torch.float32, (70,))
    whole = kernel.normed(x, more, *numbers_of(norm))
    for n in (1, 3, 16):
        assert torch.equal(kernel.normed(x[-n:], more[-n:], *numbers_of(norm)), whole[-n:])


def test_a_variance_is_not_lost_to_a_large_mean(device, kernel):
    x, _, norm = some("layer", 512, device, torch.float32)
    x = x / 16 + 256
    torch.testing.assert_close(kernel.normed(x, None, *numbers_of(norm)).double(), exactly(x, norm), rtol=0, atol=1e-2)


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


def steps(model, src_seq):
    """The logits of five steps of three hypotheses a sentence."""
    state, generator = model.start(src_seq), torch.Generator().manual_seed(2)
    model.step(torch.full((len(src_seq),), BOS, device=src_seq.device), state)
    state.reorder(torch.arange(len(src_seq), device=src_seq.device).repeat_interleave(3))
    words = torch.randint(3, 90, (5, 3 * len(src_seq)), generator=generator).to(src_seq.device)
    return torch.stack([model.step(word, state) for word in words])


def counted(monkeypatch, kernel):
    """Has all norms of a search go through the kernel, and tells what was added to the stream each time."""
    started, start = [], kernel._start
    monkeypatch.setattr(on_gpu, "takes_norm", lambda *_: True)
    monkeypatch.setattr(kernel, "_start", lambda x, more, *rest: started.append(more) or start(x, more, *rest))
    return started


@torch.no_grad()
@pytest.mark.parametrize("kind", MODELS)
def test_steps_by_the_kernel_are_those_without_it(kind, device, kernel, monkeypatch):
    model, src_seq = small_model(MODELS[kind], device)
    monkeypatch.setattr(on_gpu, "takes_norm", lambda *_: False)
    wanted = steps(model, src_seq)
    started = counted(monkeypatch, kernel)
    torch.testing.assert_close(steps(model, src_seq), wanted, rtol=1e-5, atol=1e-5)
    # Each of the decoder's six sub-layers ends in a sum that is one with a norm.
    n_sum = sum(more is not None for more in started)
    assert n_sum == 6 * 6 + (0 if model.decoder.pre_norm else 2)  # and two of the encoder


@pytest.mark.parametrize("kind", ["pre", "post"])
def test_a_search_by_the_kernel_finds_what_the_search_finds(kind, device, kernel, monkeypatch):
    model, src_seq = small_model(MODELS[kind], device)
    how = BeamSettings(bos=BOS, eos=EOS, pad=PAD, beam=4, length_penalty="wu", alpha=1.0, n_real=93)
    max_len = torch.tensor([9, 2, 0, 7, 9, 1, 5, 6, 3])
    monkeypatch.setattr(on_gpu, "takes_norm", lambda *_: False)
    wanted = beam.search(model, src_seq, how, max_len)
    started = counted(monkeypatch, kernel)
    found = beam.search(model, src_seq, how, max_len)
    assert len(started) > 4 * 6
    for its, others in zip(found, wanted, strict=True):
        assert [(one.ids, one.finished) for one in its] == [(one.ids, one.finished) for one in others]
        assert [one.score for one in its] == pytest.approx([one.score for one in others], abs=1e-4)


def test_what_it_takes(monkeypatch):
    """Told without a GPU, by tensors that say that they are on one."""
    monkeypatch.setattr(on_gpu, "works", lambda device: True)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda _: True))
    made = functools.partial(torch.empty, dtype=torch.bfloat16)
    x, weight = made(2, 4, 24), made(24)
    assert on_gpu.takes_norm(x, None, weight) and on_gpu.takes_norm(x, x, weight)
    assert not on_gpu.takes_norm(x, x.float(), weight) and not on_gpu.takes_norm(x, x[:1], weight)
    assert not on_gpu.takes_norm(x, x, weight.float()) and not on_gpu.takes_norm(x, x, made(1))
    assert not on_gpu.takes_norm(x.double(), None, weight.double())
    assert on_gpu.takes_norm(made(1, 4096), None, made(4096)) and not on_gpu.takes_norm(made(1, 4097), None, made(4097))
    with torch.autocast("cpu", torch.bfloat16):
        assert not on_gpu.takes_norm(x, x, weight)
    monkeypatch.setattr(on_gpu, "works", lambda device: False)
    assert not on_gpu.takes_norm(x, x, weight)


class Another(nn.Module):
    """A norm that nobody knows."""

    def forward(self, x):
        return x.sign()


def test_what_it_does_not_take_goes_another_way(monkeypatch):
    monkeypatch.setattr(on_gpu, "takes_norm", lambda *_: True)
    monkeypatch.setattr(nmt.kernels, "norms_triton", SimpleNamespace(), raising=False)  # in which there is nothing
    x, more, norm = some("layer", 8, "cpu", torch.float64)
    total = x + more
    others = [Another(), nn.LayerNorm(8, elementwise_affine=False), RMSNorm(8, eps=None).double(), None]
    for inference, norms in ((True, others), (False, [norm, RMSNorm(8).double()])):
        with torch.set_grad_enabled(not inference):
            for one in norms:
                wanted = total if one is None else one(total)
                past, entering = ops.residual_and_input(x, one, more)
                assert torch.equal(past, total) and torch.equal(entering, wanted)
                assert torch.equal(behind(x, more, NO_DROPOUT, one).total(), wanted)
                assert one is None or torch.equal(ops.normed(x, one, more), wanted)
    with torch.no_grad():
        torch.manual_seed(3)
        wanted = Dropout(0.5).add(more, x)
        torch.manual_seed(3)
        assert torch.equal(behind(x, more, Dropout(0.5), None).total(), wanted)
