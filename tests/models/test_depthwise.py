"""Depthwise convolution before encoder layers: equal to that of torch, and blind to padding."""

import pytest
import torch
import torch.nn.functional as F

from nmt.masks import SearchMask
from nmt.models.build import build_model
from nmt.models.layers import convolved
from nmt.models.transformer.SubLayers import DepthwiseConv
from nmt.recipe.model_options import ModelConfig
from tests.models.conftest import N_VOCAB, TINY

WIDTHS = pytest.mark.parametrize("width", [1, 3, 7])
LENGTHS = (6, 2, 5, 1)  # a width of 7 exceeds every sentence


def inputs(width, dtype=torch.float64):
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(4, 6, 5, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(width, 5, generator=generator, dtype=torch.float64).requires_grad_()
    visible = torch.arange(6) < torch.tensor(LENGTHS).unsqueeze(1)
    return x, visible.int() - 1, weight


@WIDTHS
def test_convolution_and_its_gradient_equal_torch(width):
    x, sentence, weight = inputs(width)
    visible = (sentence == 0).unsqueeze(2)
    found = convolved(x, sentence, weight) * visible
    masked = (x * visible).transpose(1, 2)
    expected = x + F.conv1d(masked, weight.t().unsqueeze(1), padding=width // 2, groups=5).transpose(1, 2)
    expected = expected * visible
    assert (found - expected).abs().max() < 1e-14
    factor = torch.randn_like(found)
    grads = [torch.autograd.grad((output * factor).sum(), (x, weight)) for output in (found, expected)]
    assert all((a - b).abs().max() < 1e-13 for a, b in zip(*grads, strict=True))
    assert torch.autograd.gradcheck(lambda x, weight: convolved(x, sentence, weight), (x, weight))


@WIDTHS
def test_sentence_gives_the_same_result_alone_padded_and_packed(width):
    x, padded, weight = inputs(width)
    rows = [x[i : i + 1, :n].detach() for i, n in enumerate(LENGTHS)]
    alone = [convolved(row, torch.zeros(row.shape[:2]), weight) for row in rows]
    batch = convolved(x, padded, weight)
    assert all(torch.equal(batch[i : i + 1, :n], alone[i]) for i, n in enumerate(LENGTHS))
    sentence = torch.tensor([i for i, n in enumerate(LENGTHS) for _ in range(n)])
    packed = convolved(torch.cat(rows, 1), sentence.unsqueeze(0), weight)
    assert (packed - torch.cat(alone, 1)).abs().max() < 1e-14


def test_new_convolution_leaves_logits_unchanged(batch):
    torch.manual_seed(1)
    model = build_model(ModelConfig(**TINY, enc_conv=3, dropout=0.0), N_VOCAB, N_VOCAB)
    plain = build_model(ModelConfig(**TINY, dropout=0.0), N_VOCAB, N_VOCAB)
    missing, unexpected = plain.load_state_dict(model.state_dict(), strict=False)
    assert not missing and unexpected == [f"encoder.layer_stack.{n}.conv.weight" for n in range(2)]
    assert torch.equal(model(*batch), plain(*batch))


def test_mask_of_a_search_hides_padding():
    conv, (x, sentence, _) = DepthwiseConv(5, 3).double(), inputs(3)
    torch.nn.init.ones_(conv.weight)
    found = conv(x, SearchMask((sentence == 0).view(4, 1, 1, 6)))
    torch.testing.assert_close(found[3, 0], 2 * x[3, 0], rtol=0, atol=1e-14)
