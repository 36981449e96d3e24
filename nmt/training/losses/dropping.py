"""Leaving out words and layers while training. What a model does without them is said in `models/droppable.py`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nmt.data.vocabulary.subwords import EOS
from nmt.models.droppable import DROPPED, Layer


def drop_words(seq: Tensor, p: float, first_tag: int | None = None) -> Tensor:
    """Drop every word of (B, L) ids with probability p: x_i = b_i · E[w_i], b_i from Bernoulli(1 - p).

    Y. Gal and Z. Ghahramani 2016, "A theoretically grounded application of dropout in recurrent neural networks", on
    embeddings; for each position by itself, as R. Sennrich et al. 2016, "Edinburgh neural machine translation systems
    for WMT 16". PAD, BOS and EOS stay: they tell where a sentence is, not what it says. So do ids from first_tag on,
    which tell what is to be made of it.

    Words that stay are not divided by 1 - p, as in the token cutoff of D. Shen et al. 2020, "A simple but tough-to-beat
    data augmentation approach for natural language understanding and generation", which SimCut takes up: they are then
    as large against their positions as in translation, and the layers that read them normalise anyway.
    """
    if not p:
        return seq
    dropped = (torch.rand(seq.shape, device=seq.device) < p) & (seq > EOS)
    if first_tag is not None:
        dropped &= seq < first_tag
    return seq.masked_fill(dropped, DROPPED)


def leave_out(layers: Sequence[Layer], p: float, seed: int) -> bool:
    """Leave out every layer with probability p until the next call. Returns whether any is left out.

    LayerDrop, A. Fan et al. 2020, "Reducing Transformer depth on demand with structured dropout": b · layer(x) +
    (1 - b) · x, b from Bernoulli(1 - p) for each layer; nothing is scaled, and translation has all layers. The seed is
    one for a whole update: processes that hold a layer's weights together must agree whether to run it.
    """
    draws = torch.rand(len(layers), generator=torch.Generator().manual_seed(seed))
    for layer, draw in zip(layers, draws.tolist(), strict=True):
        layer.left_out = draw < p
    return any(layer.left_out for layer in layers)


def with_zero_gradients(loss: Tensor, model: nn.Module) -> Tensor:
    """The loss as it is, but with a gradient of zero instead of none by weights that had no part in it.

    These are the weights of layers that were left out, and of a whole encoder when no layer was there to look at it.
    So an update moves every weight, on one process as on many, where each waits for the gradients of all weights.
    """
    return _with_zero_gradients(loss, *model.parameters())


class _WithZeroGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, *weights: Tensor) -> Tensor:
        ctx.weights = weights
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return grads[0], *(torch.zeros_like(weight) for weight in ctx.weights)


_with_zero_gradients: Callable[..., Tensor] = _WithZeroGradients.apply
