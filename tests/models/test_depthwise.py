"""The convolution before encoder layers: torch's own, its gradient, and what it must not see."""

import pytest
import torch
import torch.nn.functional as F

from nmt.masks import SharedMask
from nmt.models.build import build_model
from nmt.models.layers import convolved
from nmt.models.transformer.SubLayers import DepthwiseConv
from nmt.recipe.model_options import ModelConfig
from tests.models.conftest import N_VOCAB, TINY

WIDTHS = pytest.mark.parametrize("width", [1, 3, 7])
LENGTHS = (6, 2, 5, 1)  # 7 neighbours are more than any has


def inputs(width, dtype=torch.float64):
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(4, 6, 5, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(width, 5, generator=generator, dtype=torch.float64).requires_grad_()
    there = torch.arange(6) < torch.tensor(LENGTHS).unsqueeze(1)
    return x, there.int() - 1, weight


@WIDTHS
def test_it_is_the_convolution_of_torch_with_its_gradient(width):
    x, sentence, weight = inputs(width)
    there = (sentence == 0).unsqueeze(2)
    found = convolved(x, sentence, weight) * there
    seen = (x * there).transpose(1, 2)
    expected = x + F.conv1d(seen, weight.t().unsqueeze(1), padding=width // 2, groups=5).transpose(1, 2)
    expected = expected * there
    assert (found - expected).abs().max() < 1e-14
    factor = torch.randn_like(found)
    grads = [torch.autograd.grad((made * factor).sum(), (x, weight)) for made in (found, expected)]
    assert all((one - other).abs().max() < 1e-13 for one, other in zip(*grads, strict=True))
    assert torch.autograd.gradcheck(lambda x, weight: convolved(x, sentence, weight), (x, weight))


@WIDTHS
def test_a_sentence_is_the_same_alone_in_a_batch_and_end_to_end_with_others(width):
    x, padded, weight = inputs(width)
    rows = [x[i : i + 1, :n].detach() for i, n in enumerate(LENGTHS)]
    alone = [convolved(row, torch.zeros(row.shape[:2]), weight) for row in rows]
    batch = convolved(x, padded, weight)
    assert all(torch.equal(batch[i : i + 1, :n], alone[i]) for i, n in enumerate(LENGTHS))
    sentence = torch.tensor([i for i, n in enumerate(LENGTHS) for _ in range(n)])
    packed = convolved(torch.cat(rows, 1), sentence.unsqueeze(0), weight)
    assert (packed - torch.cat(alone, 1)).abs().max() < 1e-14


def test_a_new_model_is_the_one_without(batch):
    torch.manual_seed(1)
    model = build_model(ModelConfig(**TINY, enc_conv=3, dropout=0.0), N_VOCAB, N_VOCAB)
    without = build_model(ModelConfig(**TINY, dropout=0.0), N_VOCAB, N_VOCAB)
    missing, unexpected = without.load_state_dict(model.state_dict(), strict=False)
    assert not missing and unexpected == [f"encoder.layer_stack.{n}.conv.weight" for n in range(2)]
    assert torch.equal(model(*batch), without(*batch))


def test_a_shared_mask_hides_padding():
    conv, (x, sentence, _) = DepthwiseConv(5, 3).double(), inputs(3)
    torch.nn.init.ones_(conv.weight)
    found = conv(x, SharedMask((sentence == 0).view(4, 1, 1, 6)))
    torch.testing.assert_close(found[3, 0], 2 * x[3, 0], rtol=0, atol=1e-14)
