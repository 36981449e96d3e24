"""Linear layers prepacked for the processor give the same products and hold the same parameters."""

import pytest
import torch
from torch import nn

from nmt import ops
from nmt.models import int8 as prepacking
from nmt.models.int8 import PrepackedLinear, prepacked


def linear_of(dtype, bias=True):
    torch.manual_seed(1)
    linear = nn.Linear(40, 56, bias=bias).to(dtype)
    if dtype == torch.bfloat16 and not ops.prepacked_linear(linear.weight.detach()):
        pytest.skip("oneDNN lays out no matrices of bf16 for this processor")
    return linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(40,), (1, 40), (7, 40), (3, 5, 40), (0, 40), (2, 0, 40)])
def test_prepacked_product_equals_that_of_the_layer(dtype, bias, shape):
    layer = linear_of(dtype, bias)
    packed, x = PrepackedLinear(layer), torch.randn(shape, dtype=dtype)
    with torch.inference_mode():
        expected = (x.double() @ layer.weight.double().T + (layer.bias.double() if bias else 0)).to(dtype)
        torch.testing.assert_close(packed(x), expected)
        if len(shape) == 3:  # also of rows that are not contiguous
            y = torch.randn(40, 3, 5, dtype=dtype).permute(1, 2, 0)
            torch.testing.assert_close(packed(y), layer(y.contiguous()))


def test_prepacked_layer_equals_the_layer_under_autocast():
    layer, x = linear_of(torch.float32), torch.randn(7, 40).bfloat16()
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(PrepackedLinear(layer)(x), layer(x))


def test_prepacked_model_has_the_same_parameters_and_logits(make, batch):
    pytest.importorskip("nmt.kernels.products")  # else nothing is prepacked
    model = make().float()
    fast = prepacked(model)
    assert fast is not model and not any(type(module) is nn.Linear for module in fast.modules())
    assert sum(type(module) is PrepackedLinear for module in fast.modules()) > 10
    assert {name: id(p) for name, p in fast.named_parameters()} == {name: id(p) for name, p in model.named_parameters()}
    assert fast.state_dict().keys() == model.state_dict().keys()
    assert all(type(module) is not PrepackedLinear for module in model.modules())
    with torch.inference_mode():
        torch.testing.assert_close(fast(*batch), model(*batch))


def test_gpu_layout_puts_matrices_with_the_same_input_side_by_side(make, batch):
    pytest.importorskip("nmt.kernels.products")  # else nothing is prepacked
    model = make()
    packed = prepacking.prepacked_for_gpu(model)
    attention, original = packed.decoder.layer_stack[0].slf_attn, model.decoder.layer_stack[0].slf_attn
    assert attention.w_ks.weight.data_ptr() == attention.w_qs.weight.data_ptr() + attention.w_qs.weight.nbytes
    assert original.w_ks.weight.data_ptr() != original.w_qs.weight.data_ptr() + original.w_qs.weight.nbytes
    assert attention.fc.weight is original.fc.weight and original.w_qs.weight.requires_grad
    feed_forward, original_ffn = packed.encoder.layer_stack[0].pos_ffn, model.encoder.layer_stack[0].pos_ffn
    assert feed_forward.w_1.weight is original_ffn.w_1.weight  # no other matrix has this input
    assert all(map(torch.equal, packed.state_dict().values(), model.state_dict().values()))
    with torch.inference_mode():
        assert torch.equal(packed(*batch), model(*batch))
