"""Training objective: ids in, a loss out, as one module, so that every device wrapper sees one forward pass."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nmt.data.subwords import EOS, PAD
from nmt.masks import Packing
from nmt.models.base import DROPPED, Layer, TranslationModel
from nmt.ops import consistency, smoothed_cross_entropy
from nmt.recipe.training_options import RegularizeConfig

# Leaving out words and layers while training.


def drop_words(seq: Tensor, p: float, first_tag: int | None = None) -> Tensor:
    """Drop every word of (B, L) ids with probability p: x_i = b_i · E[w_i], b_i from Bernoulli(1 - p).

    Gal and Ghahramani 2016, on embeddings; each position by itself, as Sennrich et al. 2016. PAD, BOS, EOS and tags,
    from first_tag on, stay. Words that stay are not divided by 1 - p, as in the token cutoff of Shen et al. 2020: they
    are then as large against their positions as in translation.
    """
    if not p:
        return seq
    dropped = (torch.rand(seq.shape, device=seq.device) < p) & (seq > EOS)
    if first_tag is not None:
        dropped &= seq < first_tag
    return seq.masked_fill(dropped, DROPPED)


def leave_out(layers: Sequence[Layer], p: float, seed: int) -> bool:
    """Leave out every layer with probability p until the next call. Returns whether any is left out.

    LayerDrop, Fan et al. 2020: b · layer(x) + (1 - b) · x, b from Bernoulli(1 - p) for each layer. The seed is one for
    a whole update: processes that hold a layer's weights together must agree whether to run it.
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


class Objective(nn.Module):
    """A model and the loss that it is trained on.

    Alone it is CE, the label-smoothed cross-entropy. Beside it KL is a divergence between two passes, over all classes;
    both are sums over gold tokens.

    R-Drop (X. Liang et al. 2021, "R-Drop: regularized dropout for neural networks"): each sentence goes through the
    model twice, with different dropout, as P1 and P2; the loss is

        CE(P1) + CE(P2) + alpha · (KL(P1 || P2) + KL(P2 || P1)) / 2

    Half of that is minimised here, so that the gradient does not double where R-Drop sets in.

    SimCut (P. Gao et al. 2022, "Bi-SimCut: a simple strategy for boosting neural machine translation"): the loss is

        CE(P) + alpha · KL(P || P_cut)

    where P_cut sees the sentences with words cut out on both sides. The gradient goes through both passes, in which
    the paper sees the key to its gains.

    Whatever is on, CE alone is reported, with R-Drop the mean of two, so that losses stay comparable.
    """

    def __init__(
        self,
        model: TranslationModel,
        smoothing: float,
        regularize: RegularizeConfig,
        *,
        compiled: bool = False,
        first_tag: int | None = None,
    ) -> None:
        """first_tag: the id from which on those of sources are no words; None: all are."""
        super().__init__()
        self.first_tag = first_tag
        self.model, self.smoothing, self.regularize, self.compiled = model, smoothing, regularize, compiled
        self.layers = model.layers if regularize.layer_drop else []
        for embedding in model.embeddings:
            embedding.may_drop = regularize.drops_words

    def forward(
        self,
        src_seq: Tensor,
        trg_seq: Tensor,
        gold: Tensor,
        packing: tuple[Packing, Packing] | None = None,
        *,
        n_gold: int | None = None,
        share: float,
        layer_seed: int,
    ) -> tuple[Tensor, Tensor]:
        """(B, S), (B, T), (B, T) -> what is minimised, and what of it is reported: sums over gold tokens.

        n_gold: how many there are, by which a GPU need not be waited for. share: of the run that has passed.
        layer_seed: what decides which layers are left out.
        """
        on = self.regularize.at(share)
        incomplete = leave_out(self.layers, on.layer_drop, layer_seed)
        beside = 1 if packing else 0  # the second pass is further rows, or what follows in the one row
        if on.r_drop:
            src_seq, trg_seq = torch.cat([src_seq, src_seq], beside), torch.cat([trg_seq, trg_seq], beside)
        src_seq = drop_words(src_seq, on.src_word_dropout, self.first_tag)
        trg_seq = drop_words(trg_seq, on.trg_word_dropout)
        if on.simcut:
            src_seq = torch.cat([src_seq, drop_words(src_seq, on.simcut_p, self.first_tag)], beside)
            trg_seq = torch.cat([trg_seq, drop_words(trg_seq, on.simcut_p)], beside)
        if packing and (on.r_drop or on.simcut):
            packing = packing[0].twice(), packing[1].twice()
        hidden = self.model.decode_hidden(src_seq, trg_seq, packing)
        weight, scale = self.model.output_weight, self.model.logit_scale
        known: dict[str, Any] = {"smoothing": self.smoothing, "scale": scale, "pad_idx": PAD, "n_gold": n_gold}
        if on.r_drop:
            one, other = hidden.chunk(2, beside)
            kl = on.r_drop / 4, on.r_drop / 4
            loss, ce = consistency(one, other, weight, gold, ce=(0.5, 0.5), kl=kl, **known)
        elif on.simcut:
            whole, cut = hidden.chunk(2, beside)
            loss, ce = consistency(whole, cut, weight, gold, ce=(1.0, 0.0), kl=(on.simcut, 0.0), **known)
        else:
            loss = ce = smoothed_cross_entropy(hidden, weight, gold, compiled=self.compiled, **known)
        return with_zero_gradients(loss, self.model) if incomplete else loss, ce.detach()
