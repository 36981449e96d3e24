"""How far two passes over the same batch disagree, without ever holding all the logits.

As in `loss.py`, logits and their gradients are made and used up chunk by chunk.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nmt.training.loss import CHUNK_BYTES, rows_of


def divergence(
    p_hidden: Tensor,
    q_hidden: Tensor,
    weight: Tensor,
    real: Tensor,
    *,
    pq: float,
    qp: float,
    scale: float = 1.0,
    n_real: int | None = None,
) -> Tensor:
    """pq · KL(P || Q) + qp · KL(Q || P), summed over real positions, in nats; the gradient goes through both.

    P and Q are distributions over all V classes: softmax(scale * hidden @ weight.T).
    p_hidden, q_hidden: (B, T, D) last hidden states of the two passes. weight: (V, D) output embedding.
    real: (B, T), False at positions that do not count; n_real: how many do, by which a GPU need not be waited for.
    Returns a scalar in fp32 (fp64 for fp64 input).
    """
    rows = rows_of(real, n_real)
    # Scaled before the product, over D numbers instead of V.
    p, q = (scale * hidden.flatten(0, 1).index_select(0, rows) for hidden in (p_hidden, q_hidden))
    return _divergence(p, q, weight, pq, qp)


class _Divergence(torch.autograd.Function):
    """Computes the gradient together with the value, so that logits are made once and never stored."""

    @staticmethod
    def forward(ctx: Any, p_hidden: Tensor, q_hidden: Tensor, weight: Tensor, pq: float, qp: float) -> Tensor:
        device = weight.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        exact = torch.promote_types(weight.dtype, torch.float32)
        weight_in = weight.to(dtype)
        # Two passes, so twice the logits of a chunk of the loss.
        chunk = max(32, CHUNK_BYTES.get(device, CHUNK_BYTES["cuda"]) // (weight.size(0) * 8))

        value = torch.zeros((), dtype=exact, device=weight.device)
        d_p, d_q = torch.empty_like(p_hidden, dtype=dtype), torch.empty_like(q_hidden, dtype=dtype)
        d_weight = torch.zeros_like(weight, dtype=exact)
        with torch.autocast(device, enabled=False):
            for start in range(0, p_hidden.size(0), chunk):
                rows = slice(start, start + chunk)
                hidden = torch.cat([p_hidden[rows], q_hidden[rows]]).to(dtype)
                logs = torch.log_softmax((hidden @ weight_in.t()).to(exact), dim=1)  # (2 chunk, V)
                p, q = logs.exp().chunk(2)
                d_logits = logs  # whose memory serves once more, since what follows needs but the difference
                ratio, d_q_logits = logs.chunk(2)
                ratio.sub_(d_q_logits)  # log p/q
                kl_pq = torch.linalg.vecdot(p, ratio).unsqueeze(1)
                kl_qp = -torch.linalg.vecdot(q, ratio).unsqueeze(1)
                value += pq * kl_pq.sum() + qp * kl_qp.sum()
                # The gradient of KL(P || Q) by the logits of P is p (log p/q - KL), by those of Q it is q - p.
                torch.add(pq - qp * kl_qp, ratio, alpha=-qp, out=d_q_logits).mul_(q).sub_(p, alpha=pq)
                ratio.mul_(pq).add_(qp - pq * kl_pq).mul_(p).sub_(q, alpha=qp)
                d_logits = d_logits.to(dtype)
                d_p[rows], d_q[rows] = (d_logits @ weight_in).chunk(2)
                if dtype == exact:
                    d_weight.addmm_(d_logits.t(), hidden)
                else:
                    d_weight += d_logits.t() @ hidden
        ctx.save_for_backward(d_p, d_q, d_weight)
        ctx.dtypes = p_hidden.dtype, q_hidden.dtype, weight.dtype
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        made = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        return *((d * grad.to(d.dtype)).to(dtype) for d, dtype in made), None, None


_divergence: Callable[[Tensor, Tensor, Tensor, float, float], Tensor] = _Divergence.apply
