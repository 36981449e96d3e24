"""Cross-entropy of two passes over the same batch and how far the passes disagree, from one set of logits.

As in `loss.py`, logits and their gradients are made and used up chunk by chunk, and never all there.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nmt.kernels import products
from nmt.training.losses.loss import EvenPart, chunk_bytes, rows_of


def consistency(
    p_hidden: Tensor,
    q_hidden: Tensor,
    weight: Tensor,
    gold: Tensor,
    *,
    ce: tuple[float, float],
    kl: tuple[float, float],
    smoothing: float,
    scale: float = 1.0,
    pad_idx: int = 0,
    n_gold: int | None = None,
) -> tuple[Tensor, Tensor]:
    """ce_p · CE(P) + ce_q · CE(Q) + kl_pq · KL(P || Q) + kl_qp · KL(Q || P), and its cross-entropies alone, in nats.

    Summed over gold tokens; the gradient goes through both passes, the second number has none. CE is that of
    `smoothed_cross_entropy`, P and Q are distributions over all V classes: softmax(scale * hidden @ weight.T).
    p_hidden, q_hidden: (B, T, D) last hidden states of the two passes. weight: (V, D) output embedding.
    gold: (B, T) ids; positions that are pad_idx do not count. n_gold: how many do, by which a GPU need not be waited
    for. Returns scalars in fp32 (fp64 for fp64 input).
    """
    rows = rows_of(gold != pad_idx, n_gold)
    # Scaled before the product, over D numbers instead of V.
    p, q = (scale * hidden.flatten(0, 1).index_select(0, rows) for hidden in (p_hidden, q_hidden))
    return _consistency(p, q, weight, gold.flatten()[rows], (ce, kl, smoothing, pad_idx))


class _Consistency(torch.autograd.Function):
    """Computes the gradient together with the value, so that logits are made once and never stored."""

    @staticmethod
    def forward(
        ctx: Any,
        p_hidden: Tensor,
        q_hidden: Tensor,
        weight: Tensor,
        gold: Tensor,
        how: tuple[tuple[float, float], tuple[float, float], float, int],
    ) -> tuple[Tensor, Tensor]:
        (ce_p, ce_q), (pq, qp), smoothing, pad_idx = how
        device = weight.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        exact = torch.promote_types(weight.dtype, torch.float32)
        p_in, q_in, weight_in = (products.widened(x.to(dtype)) for x in (p_hidden, q_hidden, weight))
        dtype = weight_in.dtype
        # Two passes, so twice the logits of a chunk of the loss.
        chunk = max(32, chunk_bytes(weight.device) // (weight.size(0) * 8))

        even = [
            EvenPart(hidden, weight_in, part * smoothing, pad_idx, exact)
            for hidden, part in ((p_in, ce_p), (q_in, ce_q))
        ]
        entropy, apart = even[0].loss + even[1].loss, torch.zeros((), dtype=exact, device=weight.device)
        d_p, d_q = torch.empty_like(p_in, dtype=exact), torch.empty_like(q_in, dtype=exact)
        d_weight = even[0].by_weight(len(weight)).add_(even[1].by_weight(len(weight)))
        with torch.autocast(device, enabled=False):
            for start in range(0, p_in.size(0), chunk):
                rows = slice(start, start + chunk)
                hidden = torch.cat([p_in[rows], q_in[rows]])
                target = gold[rows].unsqueeze(1)
                each = torch.cat([torch.full_like(target, part, dtype=exact) for part in (ce_p, ce_q)])
                target = target.repeat(2, 1)
                z = products.product(hidden, weight_in.t()).to(exact)  # (2 chunk, V)
                picked = z.gather(1, target)
                logs = torch.log_softmax(z, dim=1)
                # The log of the denominator, less 1 - smoothing times the gold logit.
                entropy += (each * (smoothing * picked - logs.gather(1, target))).sum()
                p, q = torch.exp(logs, out=z).chunk(2)
                d_logits = logs  # whose memory serves once more, since what follows needs but the difference
                ratio, d_q_logits = logs.chunk(2)
                ratio.sub_(d_q_logits)  # log p/q
                kl_pq = torch.linalg.vecdot(p, ratio).unsqueeze(1)
                kl_qp = -torch.linalg.vecdot(q, ratio).unsqueeze(1)
                apart += pq * kl_pq.sum() + qp * kl_qp.sum()
                # The gradient of KL(P || Q) by the logits of P is p (log p/q - KL), by those of Q it is q - p; that of
                # CE(P) is p, less 1 - smoothing at the gold token.
                torch.add(pq + ce_q - qp * kl_qp, ratio, alpha=-qp, out=d_q_logits).mul_(q).sub_(p, alpha=pq)
                ratio.mul_(pq).add_(qp + ce_p - pq * kl_pq).mul_(p).sub_(q, alpha=qp)
                d_logits = d_logits.scatter_add_(1, target, each * (smoothing - 1)).to(dtype)
                d_p[rows], d_q[rows] = products.product(d_logits, weight_in).chunk(2)
                if dtype == exact:
                    d_weight.addmm_(d_logits.t(), hidden)
                else:
                    d_weight += d_logits.t() @ hidden
            for part, d_hidden in zip(even, (d_p, d_q), strict=True):
                d_hidden += part.by_hidden()
        ctx.save_for_backward(d_p, d_q, d_weight)
        ctx.dtypes = p_hidden.dtype, q_hidden.dtype, weight.dtype
        ctx.mark_non_differentiable(entropy)
        return entropy + apart, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad, _ = grads
        made = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        return *((d * grad.to(d.dtype)).to(dtype) for d, dtype in made), None, None


_consistency: Callable[..., tuple[Tensor, Tensor]] = _Consistency.apply
