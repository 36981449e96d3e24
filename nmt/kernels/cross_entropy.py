"""Label-smoothed cross-entropy from hidden states, without ever holding all the logits.

The output layer is the widest of the model: (tokens x vocabulary) logits and as many gradients. Both are made and used
up chunk by chunk, while they are in the cache, on any device; `ops.py` has the formulas.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.kernels import passes, products, switch

# Bytes of logits that are alive at a time: on a CPU few enough for the last-level cache to help and enough for products
# of a good size; on a GPU at least enough to fill it, and this share of its memory: the gradient of the output matrix
# is read and written once for each chunk.
CHUNK_BYTES = {"cpu": 32 << 20, "cuda": 256 << 20}
_SHARE = 1 / 64
_STEP = 32  # rows of a chunk are a multiple: few numbers of them, or oneDNN would prepare products anew for each batch


def chunk_bytes(device: torch.device) -> int:
    """Bytes of logits, of 4 bytes each, that are to be alive at a time on a device."""
    if device.type != "cuda":
        return CHUNK_BYTES["cpu"]
    return max(CHUNK_BYTES["cuda"], int(torch.cuda.get_device_properties(device).total_memory * _SHARE))


def nll_and_gradient(z: Tensor, gold: Tensor, gold_weight: float, exact: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """A pass over logits z (N, V), which a kernel uses up, with gold (N, 1) ids.

    Returns the sum of the log of the softmax's denominator less gold_weight times the gold logit, which is the negative
    log-likelihood where that is 1; the gradient of it by z, (N, V), and what that is to be divided by, (N, 1). All but
    the gradient is of type `exact`.
    """
    if switch.takes(z):
        sums, values = passes.exponents(z, gold.squeeze(1), gold_weight)
        return values.sum(), z, sums.unsqueeze(1)
    wide = z.to(exact)
    top = wide.amax(dim=1, keepdim=True)
    p = (wide - top).exp()
    total = p.sum(dim=1, keepdim=True)
    # Not a scatter, which would cut a compiled pass in two.
    is_gold = torch.arange(z.size(1), device=z.device) == gold
    value = (top + total.log() - gold_weight * wide.gather(1, gold)).sum()
    d_z = torch.where(is_gold, p - gold_weight * total, p)
    if z.dtype == torch.float16:
        # The power of two nearest to the root of the total. What is divided by that is 1 at most, but up to V at the
        # gold token, more than fp16 can hold; and 1 / V, which hidden states are multiplied by, is less than it holds
        # to its last digit. The roots of both are within.
        root = total.log2().div(2).round().exp2()
        d_z, total = d_z / root, total / root
    return value, d_z.to(z.dtype), total


@functools.cache
def _compiled_nll_and_gradient() -> Callable[[Tensor, Tensor, float, torch.dtype], tuple[Tensor, Tensor, Tensor]]:
    # Once for chunks of the full size, and once for what is left of a batch, whatever its size.
    return torch.compile(nll_and_gradient)


class EvenPart:
    """Part of label smoothing that is the same for all classes but padding: a loss linear in the logits h·WT.

    Its sum over tokens and classes is a product of two sums, so it needs no pass over the (tokens x vocabulary) matrix.
    """

    def __init__(self, hidden: Tensor, weight: Tensor, mass: float, pad_idx: int, exact: torch.dtype) -> None:
        """hidden: (N, D), weight: (V, D); mass: of probability, to be spread over the classes."""
        self._each, self._pad_idx = mass / (weight.size(0) - 1), pad_idx
        self._hidden = hidden.sum(0, dtype=exact)
        self._weight = weight.sum(0, dtype=exact) - weight[pad_idx]
        self.loss = -self._each * (self._hidden * self._weight).sum()

    def by_hidden(self) -> Tensor:
        """The gradient by each row of hidden: (D,)."""
        return -self._each * self._weight

    def by_weight(self, n_class: int) -> Tensor:
        """The gradient by weight: (V, D), to which others may be added."""
        gradient = (-self._each * self._hidden).expand(n_class, -1).contiguous()
        gradient[self._pad_idx] = 0.0
        return gradient


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Computes the gradient together with the loss, so that logits are made once and never stored.

    With logits z = h·WT and p = exp(z) / total, the gradient of z is p - even, less 1 - smoothing at the gold token.
    Whatever needs no pass over the (tokens x vocabulary) matrix is done beside it: the total divides rows of width D.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        gold: Tensor,
        smoothing: float,
        scale: float,
        pad_idx: int,
        compiled: bool,
    ) -> Tensor:
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        exact = torch.promote_types(weight.dtype, torch.float32)
        need_grad = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        hidden = hidden if scale == 1.0 else hidden * scale
        hidden_in, weight_in = products.widened(hidden.to(dtype)), products.widened(weight.to(dtype))
        dtype = hidden_in.dtype
        own = switch.takes(hidden_in, weight)
        pass_over = _compiled_nll_and_gradient() if compiled and not own else nll_and_gradient
        chunk = chunk_bytes(hidden.device) // (weight.size(0) * (dtype.itemsize if own else 4))
        chunk = max(2 * _STEP, chunk // _STEP * _STEP)
        n_row = len(hidden)
        if own:
            hidden_in = F.pad(hidden_in, (0, 0, 0, -n_row % _STEP))

        even = EvenPart(hidden_in[:n_row], weight_in, smoothing, pad_idx, exact)
        loss = even.loss
        d_hidden = torch.empty_like(hidden, dtype=exact) if need_grad else None
        d_weight = even.by_weight(len(weight)) if need_grad else None
        with torch.autocast(device, enabled=False):
            # One place for all of them: it is in the cache.
            logits = hidden_in.new_empty(min(chunk, len(hidden_in)), weight.size(0))
            for start in range(0, n_row, chunk):
                h = hidden_in[start : start + chunk]
                target = gold[start : start + chunk].unsqueeze(1)
                z, n = products.product(h, weight_in.t(), logits[: len(h)]), len(target)
                value, p_in, total = pass_over(z[:n], target, 1 - smoothing, exact)
                loss += value
                if d_hidden is None or d_weight is None:
                    continue
                if n < len(z):  # behind the rows that were passed over in place there are zeros, products of zeros
                    p_in, total = z, F.pad(total, (0, 0, 0, len(z) - n), value=1.0)
                d_hidden[start : start + chunk] = products.product(p_in, weight_in)[:n] / total[:n]
                h = (h / total).to(dtype)
                if own:
                    products.add_weight_gradient(d_weight, p_in, h)
                elif dtype == exact:
                    d_weight.addmm_(p_in.t(), h)
                else:
                    d_weight += p_in.t() @ h
            if smoothing and d_hidden is not None:
                d_hidden += even.by_hidden()
        if d_hidden is not None and scale != 1.0:
            d_hidden *= scale
        ctx.save_for_backward(*(t for t in (d_hidden, d_weight) if t is not None))
        ctx.hidden_dtype, ctx.weight_dtype, ctx.own = hidden.dtype, weight.dtype, own
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight = ctx.saved_tensors
        # In place, since that of the weight is as large as the vocabulary: so there is one backward pass, and no other.
        # What torch.compile saved it would have to copy.
        scaled = torch.Tensor.mul_ if ctx.own else torch.mul
        grad = grads[0].to(d_hidden.dtype)
        return (scaled(d_hidden, grad).to(ctx.hidden_dtype), scaled(d_weight, grad).to(ctx.weight_dtype), *(None,) * 5)


# hidden (N, D), weight (V, D), gold (N,), smoothing, scale, pad_idx, compiled
smoothed_cross_entropy: Callable[[Tensor, Tensor, Tensor, float, float, int, bool], Tensor]
smoothed_cross_entropy = _SmoothedCrossEntropy.apply


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


# hidden of both passes (N, D), weight (V, D), gold (N,), ((ce_p, ce_q), (kl_pq, kl_qp), smoothing, pad_idx)
consistency: Callable[..., tuple[Tensor, Tensor]] = _Consistency.apply
