"""Label-smoothed cross-entropy from hidden states, without storing all logits.

The output layer is the widest of the model: (tokens x vocabulary) logits and as many gradients. Both are computed and
consumed chunk by chunk, in the cache, on any device. `ops.py` has the formulas.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.kernels import passes, products, switch

# Bytes of logits in memory at a time. On a CPU: few enough for the last-level cache, enough for products of a good
# size. On a GPU: enough to fill it, and at least this share of its memory, since each chunk reads and writes the
# gradient of the output matrix once.
CHUNK_BYTES = {"cpu": 32 << 20, "cuda": 256 << 20}
_SHARE = 1 / 64
_STEP = 32  # rows of a chunk are a multiple of it: oneDNN prepares a product for each new number of rows


def chunk_bytes(device: torch.device) -> int:
    """Return the bytes of logits, of 4 bytes each, of a chunk on a device."""
    if device.type != "cuda":
        return CHUNK_BYTES["cpu"]
    return max(CHUNK_BYTES["cuda"], int(torch.cuda.get_device_properties(device).total_memory * _SHARE))


def nll_and_gradient(z: Tensor, gold: Tensor, gold_weight: float, exact: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Loss and gradient in one pass over logits z (N, V), which a kernel overwrites. gold: (N, 1) ids.

    Returns the sum of the log of the softmax's denominator less gold_weight times the gold logit: the negative
    log-likelihood if gold_weight is 1; its gradient by z, (N, V), times a divisor; and that divisor, (N, 1). All but
    the gradient are of type `exact`.
    """
    if switch.takes(z):
        sums, values = passes.exponents(z, gold.squeeze(1), gold_weight)
        return values.sum(), z, sums.unsqueeze(1)
    wide = z.to(exact)
    top = wide.amax(dim=1, keepdim=True)
    p = (wide - top).exp()
    total = p.sum(dim=1, keepdim=True)
    # Not a scatter, which would split a compiled pass in two.
    is_gold = torch.arange(z.size(1), device=z.device) == gold
    value = (top + total.log() - gold_weight * wide.gather(1, gold)).sum()
    d_z = torch.where(is_gold, p - gold_weight * total, p)
    if z.dtype == torch.float16:
        # Both are divided by the power of two nearest to the root of the total. Without that, the gradient at the gold
        # token is up to V, which overflows fp16, and 1 / V, a factor of hidden states, is subnormal. The roots of both
        # are within the range.
        root = total.log2().div(2).round().exp2()
        d_z, total = d_z / root, total / root
    return value, d_z.to(z.dtype), total


@functools.cache
def _compiled_nll_and_gradient() -> Callable[[Tensor, Tensor, float, torch.dtype], tuple[Tensor, Tensor, Tensor]]:
    # Compiled once for full chunks, and once for the rest of a batch of any size.
    return torch.compile(nll_and_gradient)


class EvenPart:
    """Part of label smoothing that is uniform over all classes except padding: a loss linear in the logits h·WT.

    Its sum over tokens and classes is a product of two sums, so it needs no pass over the (tokens x vocabulary) matrix.
    """

    def __init__(self, hidden: Tensor, weight: Tensor, mass: float, pad_idx: int, exact: torch.dtype) -> None:
        """hidden: (N, D), weight: (V, D); mass: probability to spread over the classes."""
        self._share, self._pad_idx = mass / (weight.size(0) - 1), pad_idx
        self._hidden = hidden.sum(0, dtype=exact)
        self._weight = weight.sum(0, dtype=exact) - weight[pad_idx]
        self.loss = -self._share * (self._hidden * self._weight).sum()

    def by_hidden(self) -> Tensor:
        """Return the gradient by each row of hidden: (D,)."""
        return -self._share * self._weight

    def by_weight(self, n_class: int) -> Tensor:
        """Return the gradient by weight: (V, D), a new tensor."""
        gradient = (-self._share * self._hidden).expand(n_class, -1).contiguous()
        gradient[self._pad_idx] = 0.0
        return gradient


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Computes the gradient together with the loss, so that logits are computed once and never stored.

    With logits z = h·WT and p = exp(z) / total, the gradient of z is p - even, less 1 - smoothing at the gold token.
    Operations that need no pass over the (tokens x vocabulary) matrix run outside of it: the total divides rows of
    width D.
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
        dtype = switch.dtype_of_products(weight)
        exact = torch.promote_types(weight.dtype, torch.float32)
        need_grad = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        hidden = hidden if scale == 1.0 else hidden * scale
        hidden_in, weight_in = products.widened(hidden.to(dtype)), products.widened(weight.to(dtype))
        dtype = hidden_in.dtype
        by_kernels = switch.takes(hidden_in, weight)
        loss_pass = _compiled_nll_and_gradient() if compiled and not by_kernels else nll_and_gradient
        chunk = chunk_bytes(hidden.device) // (weight.size(0) * (dtype.itemsize if by_kernels else 4))
        chunk = max(2 * _STEP, chunk // _STEP * _STEP)
        n_row = len(hidden)
        if by_kernels:
            hidden_in = F.pad(hidden_in, (0, 0, 0, -n_row % _STEP))

        even = EvenPart(hidden_in[:n_row], weight_in, smoothing, pad_idx, exact)
        loss = even.loss
        d_hidden = torch.empty_like(hidden, dtype=exact) if need_grad else None
        d_weight = even.by_weight(len(weight)) if need_grad else None
        with torch.autocast(weight.device.type, enabled=False):
            # One buffer for all chunks, so that it stays in the cache.
            logits = hidden_in.new_empty(min(chunk, len(hidden_in)), weight.size(0))
            for start in range(0, n_row, chunk):
                h = hidden_in[start : start + chunk]
                target = gold[start : start + chunk].unsqueeze(1)
                z, n = products.product(h, weight_in.t(), out=logits[: len(h)]), len(target)
                value, d_z, total = loss_pass(z[:n], target, 1 - smoothing, exact)
                loss += value
                if d_hidden is None or d_weight is None:
                    continue
                if n < len(z):  # a kernel writes d_z into z; the padding behind it is zero, as products of zeros
                    d_z, total = z, F.pad(total, (0, 0, 0, len(z) - n), value=1.0)
                d_hidden[start : start + chunk] = products.product(d_z, weight_in)[:n] / total[:n]
                h = (h / total).to(dtype)
                if by_kernels:
                    products.weight_gradient(d_z, h, d_weight)
                elif dtype == exact:
                    d_weight.addmm_(d_z.t(), h)
                else:
                    d_weight += d_z.t() @ h
            if smoothing and d_hidden is not None:
                d_hidden += even.by_hidden()
        if d_hidden is not None and scale != 1.0:
            d_hidden *= scale
        ctx.save_for_backward(*(t for t in (d_hidden, d_weight) if t is not None))
        ctx.hidden_dtype, ctx.weight_dtype, ctx.by_kernels = hidden.dtype, weight.dtype, by_kernels
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight = ctx.saved_tensors
        # In place, since the gradient of the weight is as large as the vocabulary; a second backward pass is not
        # possible then. Under torch.compile the saved tensors would be copied.
        times = torch.Tensor.mul_ if ctx.by_kernels else torch.mul
        grad = grads[0].to(d_hidden.dtype)
        return (times(d_hidden, grad).to(ctx.hidden_dtype), times(d_weight, grad).to(ctx.weight_dtype), *(None,) * 5)


# hidden (N, D), weight (V, D), gold (N,), smoothing, scale, pad_idx, compiled
smoothed_cross_entropy: Callable[[Tensor, Tensor, Tensor, float, float, int, bool], Tensor]
smoothed_cross_entropy = _SmoothedCrossEntropy.apply


class _Consistency(torch.autograd.Function):
    """Computes the gradient together with the value, so that logits are computed once and never stored."""

    @staticmethod
    def forward(
        ctx: Any,
        p_hidden: Tensor,
        q_hidden: Tensor,
        weight: Tensor,
        gold: Tensor,
        options: tuple[tuple[float, float], tuple[float, float], float, int],
    ) -> tuple[Tensor, Tensor]:
        (ce_p, ce_q), (pq, qp), smoothing, pad_idx = options
        dtype = switch.dtype_of_products(weight)
        exact = torch.promote_types(weight.dtype, torch.float32)
        p_in, q_in, weight_in = (products.widened(x.to(dtype)) for x in (p_hidden, q_hidden, weight))
        dtype = weight_in.dtype
        # A chunk has the logits of two forward passes.
        chunk = max(32, chunk_bytes(weight.device) // (weight.size(0) * 8))

        even = [
            EvenPart(hidden, weight_in, ce * smoothing, pad_idx, exact) for hidden, ce in ((p_in, ce_p), (q_in, ce_q))
        ]
        entropy, divergence = even[0].loss + even[1].loss, torch.zeros((), dtype=exact, device=weight.device)
        d_p, d_q = torch.empty_like(p_in, dtype=exact), torch.empty_like(q_in, dtype=exact)
        d_weight = even[0].by_weight(len(weight)).add_(even[1].by_weight(len(weight)))
        with torch.autocast(weight.device.type, enabled=False):
            for start in range(0, p_in.size(0), chunk):
                rows = slice(start, start + chunk)
                hidden = torch.cat([p_in[rows], q_in[rows]])
                target = gold[rows].unsqueeze(1)
                ce = torch.cat([torch.full_like(target, factor, dtype=exact) for factor in (ce_p, ce_q)])
                target = target.repeat(2, 1)
                z = products.product(hidden, weight_in.t()).to(exact)  # (2 chunk, V)
                picked = z.gather(1, target)
                logs = torch.log_softmax(z, dim=1)
                # The log of the denominator, less 1 - smoothing times the gold logit.
                entropy += (ce * (smoothing * picked - logs.gather(1, target))).sum()
                p, q = torch.exp(logs, out=z).chunk(2)
                d_logits = logs  # its memory is reused, since only the difference is needed from here on
                ratio, d_q_logits = logs.chunk(2)
                ratio.sub_(d_q_logits)  # log p/q
                kl_pq = torch.linalg.vecdot(p, ratio).unsqueeze(1)
                kl_qp = -torch.linalg.vecdot(q, ratio).unsqueeze(1)
                divergence += pq * kl_pq.sum() + qp * kl_qp.sum()
                # The gradient of KL(P || Q) by the logits of P is p (log p/q - KL), by those of Q it is q - p; that of
                # CE(P) is p, less 1 - smoothing at the gold token.
                torch.add(pq + ce_q - qp * kl_qp, ratio, alpha=-qp, out=d_q_logits).mul_(q).sub_(p, alpha=pq)
                ratio.mul_(pq).add_(qp + ce_p - pq * kl_pq).mul_(p).sub_(q, alpha=qp)
                d_logits = d_logits.scatter_add_(1, target, ce * (smoothing - 1)).to(dtype)
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
        return entropy + divergence, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad, _ = grads
        gradients = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        return *((d * grad.to(d.dtype)).to(dtype) for d, dtype in gradients), None, None


# hidden of both passes (N, D), weight (V, D), gold (N,), ((ce_p, ce_q), (kl_pq, kl_qp), smoothing, pad_idx)
consistency: Callable[..., tuple[Tensor, Tensor]] = _Consistency.apply
