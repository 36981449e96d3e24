"""Fully masked attention, and rotary positions."""

import pytest
import torch

from nmt import ops
from nmt.device import set_up
from nmt.models.transformer.Modules import RotaryEncoding, ScaledDotProductAttention
from nmt.ops import rotate

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize(
    ("device", "dtype"), [("cpu", torch.float32), pytest.param("cuda", torch.bfloat16, marks=NEEDS_GPU)]
)
def test_fused_kernel_gives_zeros_for_fully_masked_queries(device, dtype, monkeypatch):
    """In the precision of training, which uses other kernels than double precision."""
    set_up(device)
    torch.manual_seed(6)
    q, k, v = leaves = [torch.randn(2, 4, n, 64, device=device, dtype=dtype, requires_grad=True) for n in (24, 40, 40)]
    mask = torch.ones(2, 1, 24, 40, dtype=torch.bool, device=device)
    mask[0, :, :5] = mask[1] = False
    attention = ScaledDotProductAttention(8.0, 0.0).train()
    monkeypatch.setattr(ops, "attentions", ops._NoKernels())
    output, _ = attention(q, k, v, mask)
    assert output[~mask.any(-1).expand(2, 4, 24)].eq(0).all()
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(output.sum(), leaves))


def test_rotary_products_depend_only_on_distance_and_keep_norms():
    torch.manual_seed(8)
    encoding = RotaryEncoding(8, n_position=5).double()
    q, k = torch.randn(2, 1, 1, 1, 8).double()

    def at(x, position):
        return rotate(x, encoding(position, 1))

    # The table is stored in single precision, like that of the sinusoids.
    for distance in (0, 1, 6):
        products = [(at(q, n) * at(k, n + distance)).sum() for n in (0, 3, 11, 200)]
        assert torch.allclose(torch.stack(products), products[0].expand(4), atol=1e-5)
    assert not torch.allclose((at(q, 0) * at(k, 1)).sum(), (at(q, 0) * at(k, 2)).sum(), atol=1e-3)
    assert torch.allclose(at(q, 9).norm(), q.norm(), atol=1e-6)
    assert torch.equal(at(q, 0), q)


@torch.no_grad()
def test_cross_attention_depends_on_positions_only_with_rotary_enc_attn(make):
    src_seq, trg_seq = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[2, 9, 10]])
    for enabled in (False, True):
        model = make(position="rotary", rotary_enc_attn=enabled)
        mask, causal, _ = model._masks(src_seq, trg_seq)
        enc_output = torch.randn(1, 4, 16).double()
        output = model.decoder(trg_seq, causal, enc_output, mask)[0]
        reversed_output = model.decoder(trg_seq, causal, enc_output.flip(1), mask)[0]
        assert ((output - reversed_output).abs().max() > 1e-3) == enabled


def test_rotary_cross_attention_depends_on_relative_positions(make):
    model = make(position="rotary", rotary_enc_attn=True)
    attention, positions = model.decoder.layer_stack[0].enc_attn, model.decoder.position_enc
    x, memory, mask = torch.randn(2, 5, 16).double(), torch.randn(2, 7, 16).double(), torch.ones(1, 1, 1, 7).bool()
    output, both_shifted, src_shifted = (
        attention(x, memory, mask, positions(first, 5), positions(src_first, 7))[0]
        for first, src_first in ((0, 0), (13, 13), (0, 1))
    )
    assert (output - both_shifted).abs().max() < 1e-5
    assert (output - src_shifted).abs().max() > 1e-2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rotation_is_the_same_in_eager_and_compiled_form(dtype, monkeypatch):
    torch.manual_seed(0)
    x = torch.randn(2, 5, 3, 8, dtype=dtype).transpose(1, 2)  # not contiguous, like heads
    rotation = RotaryEncoding(8, 50)(7, 5)
    eager = rotate(x, rotation)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    compiled = rotate(x, rotation)
    assert eager.dtype == compiled.dtype == dtype
    torch.testing.assert_close(eager, compiled, rtol=0, atol=1e-12 if dtype == torch.float64 else 1e-6)


@pytest.mark.parametrize("n_before", [3, 4])
def test_slice_of_a_wider_product_is_rotated_at_any_offset(n_before):
    torch.manual_seed(8)
    wide = torch.randn(1, 5, n_before + 2 * 4 + 3)
    part = wide[..., n_before : n_before + 8].unflatten(-1, (2, 4)).transpose(1, 2)  # (1, 2, 5, 4)
    rotation = RotaryEncoding(4, 9)(0, 5)
    assert torch.equal(rotate(part, rotation), rotate(part.contiguous(), rotation))
