"""Label-smoothed cross-entropy from hidden states, without ever holding all the logits.

The output layer is the widest of the model: (tokens x vocabulary) logits and as many gradients. Both are made
and used up chunk by chunk, while they are in the cache; padding is dropped before, not masked after.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Bytes of logits that are alive at a time: a share of the last-level cache of a CPU; on a GPU
# chunks must be large enough to fill it.
CHUNK_BYTES = {"cpu": 4 << 20, "cuda": 256 << 20}


def smoothed_cross_entropy(
    hidden: Tensor, weight: Tensor, gold: Tensor, *, smoothing: float, scale: float = 1.0, pad_idx: int = 0
) -> Tensor:
    """Sum over gold tokens of the cross-entropy against the smoothed target distribution, in nats.

    The target gives 1 - smoothing to the gold token and spreads `smoothing` evenly over the V - 1 classes that are
    not padding, the gold one included (Szegedy et al. 2016, section 7, with the padding class left out).

    hidden: (B, T, D) last hidden states. weight: (V, D) output embedding; logits = scale * hidden @ weight.T.
    gold: (B, T) ids; positions that are pad_idx do not count. Returns a scalar in fp32 (fp64 for fp64 input).
    """
    real = (gold != pad_idx).flatten()
    rows = real.nonzero().squeeze(1)
    picked = hidden.flatten(0, 1).index_select(0, rows)
    return _cross_entropy(picked, weight, gold.flatten()[rows], smoothing, scale, pad_idx)


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Computes the gradient together with the loss, so that logits are made once and never stored.

    With logits z = h·WT and p = exp(z) / total, the gradient of z is p - even, less 1 - smoothing at the gold token.
    Whatever needs no pass over the (tokens x vocabulary) matrix is done beside it: the total divides rows of width D,
    and the even part, the same for all tokens, is a sum over rows of h times a sum over rows of W.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, gold: Tensor, smoothing: float, scale: float, pad_idx: int
    ) -> Tensor:
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        exact = torch.promote_types(weight.dtype, torch.float32)
        need_grad = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        hidden = hidden if scale == 1.0 else hidden * scale
        hidden_in, weight_in = hidden.to(dtype), weight.to(dtype)
        n_class = weight.size(0)
        even = smoothing / (n_class - 1)
        chunk = max(64, CHUNK_BYTES.get(device, CHUNK_BYTES["cuda"]) // (n_class * 4))

        hidden_sum = hidden_in.sum(0, dtype=exact)
        weight_sum = weight_in.sum(0, dtype=exact) - weight_in[pad_idx]
        loss = -even * (hidden_sum * weight_sum).sum()
        d_hidden = torch.empty_like(hidden_in, dtype=exact) if need_grad else None
        d_weight = torch.zeros_like(weight, dtype=exact) if need_grad else None
        with torch.autocast(device, enabled=False):
            for start in range(0, hidden.size(0), chunk):
                h = hidden_in[start : start + chunk]
                target = gold[start : start + chunk].unsqueeze(1)
                z = (h @ weight_in.t()).to(exact)  # (chunk, V)
                loss -= (1 - smoothing) * z.gather(1, target).sum()
                top = z.amax(dim=1, keepdim=True)
                p = z.sub_(top).exp_()
                total = p.sum(dim=1, keepdim=True)
                loss += (top + total.log()).sum()
                if d_hidden is None or d_weight is None:
                    continue
                p.scatter_add_(1, target, total * (smoothing - 1))
                p_in = p.to(dtype)
                d_hidden[start : start + chunk] = (p_in @ weight_in) / total
                h = (h / total).to(dtype)
                if dtype == exact:
                    d_weight.addmm_(p_in.t(), h)
                else:
                    d_weight += p_in.t() @ h
            if smoothing and d_hidden is not None and d_weight is not None:
                d_hidden -= even * weight_sum
                d_weight -= even * hidden_sum
                d_weight[pad_idx] += even * hidden_sum
        if d_hidden is not None and scale != 1.0:
            d_hidden *= scale
        ctx.save_for_backward(*(t for t in (d_hidden, d_weight) if t is not None))
        ctx.hidden_dtype, ctx.weight_dtype = hidden.dtype, weight.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        d_hidden, d_weight = ctx.saved_tensors
        (grad,) = grads
        return (
            (d_hidden * grad.to(d_hidden.dtype)).to(ctx.hidden_dtype),
            (d_weight * grad).to(ctx.weight_dtype),
            None,
            None,
            None,
            None,
        )


_cross_entropy: Callable[[Tensor, Tensor, Tensor, float, float, int], Tensor] = _SmoothedCrossEntropy.apply
