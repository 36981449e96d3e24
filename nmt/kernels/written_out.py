"""Attention written out as two products and a softmax between them, with the gradient of the whole in one piece.

On a CPU torch has no fused kernel with dropout, and at the length of sentences this is as fast as one. What lies
between the products is fp32 at least, which is more exact than bf16 and, as rows are short, faster: torch's softmax
takes rows number by number that do not fill one vector of the processor. Those that still do not are made as long.

Shapes: B sentences, G key/value heads, N queries of each (those of all the query heads that share it), S keys.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.kernels.attention import Attention, Within
from nmt.kernels.dropping import dropped, n_drop, scale_up, seed, which

_FEW = 16  # queries for which it does not pay to turn the keys round
# How many numbers of fp32 the processor takes at a time.
_LANES = {"AVX512": 16, "AVX2": 8}.get(torch.backends.cpu.get_cpu_capability(), 4)


def written_out(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, blind: Tensor | None, scale: float, p: float
) -> tuple[Tensor, Tensor]:
    """dropout(softmax(scale · q kT + bias)) v, and the weights before dropout. p: its rate.

    q: (B, G, N, d_k), k: (B, G, S, d_k), v: (B, G, S, d_v), of one type; bias: (B or 1, 1, N or 1, S), of fp32 at
    least; blind: (B or 1, 1, N or 1, 1), True for queries that see nothing, which get zeros. Returns (B, G, N, d_v) in
    the type of v, and (B, G, N, S) in that of bias.
    """
    if torch.is_grad_enabled():
        return _written_out(q, k, v, bias, blind, scale, p)
    attn = _weights(q, k, bias, blind, scale)[..., : k.size(2)]
    used, keep = attn.to(v.dtype), which(attn, p)
    return torch.matmul(used if keep is None else dropped(used, keep, scale_up(p)), v), attn


class _WrittenOut(torch.autograd.Function):
    """Remembers the weights, which of them were dropped, and what entered the products."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor,
        blind: Tensor | None,
        scale: float,
        p: float,
    ) -> tuple[Tensor, Tensor]:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        wide = _weights(q, k, bias, blind, scale)
        attn = wide[..., : k.size(2)]
        used, keep = attn.to(v.dtype), which(attn, p)
        if keep is not None:
            used = dropped(used, keep, scale_up(p))
        ctx.save_for_backward(q, k, v, wide, used, keep)
        ctx.scale, ctx.scale_up = scale, scale_up(p)
        ctx.set_materialize_grads(False)
        return torch.matmul(used, v), attn

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        d_output, d_attn = grads
        q, k, v, wide, used, keep = ctx.saved_tensors
        n_key = k.size(2)
        d_v = None
        if d_output is not None:
            d_output = d_output.contiguous()
            d_v = torch.matmul(used.transpose(2, 3), d_output)
            d_used = torch.matmul(d_output, v.transpose(2, 3))
            if keep is not None:
                d_used = dropped(d_used, keep, ctx.scale_up)
            d_attn = d_used if d_attn is None else d_attn + d_used
        if d_attn is None:
            return (None,) * 7
        d_wide = d_attn.to(wide.dtype)
        if n_key < wide.size(3):
            d_wide = F.pad(d_wide, (0, wide.size(3) - n_key))
        d_score = torch._softmax_backward_data(d_wide, wide, -1, wide.dtype)[..., :n_key]
        d_score = d_score.mul_(ctx.scale).to(q.dtype)
        return torch.matmul(d_score, k), torch.matmul(d_score.transpose(2, 3), q), d_v, None, None, None, None


_written_out: Callable[..., tuple[Tensor, Tensor]] = _WrittenOut.apply


def _weights(q: Tensor, k: Tensor, bias: Tensor, blind: Tensor | None, scale: float) -> Tensor:
    """softmax(scale · q kT + bias): (B, G, N, S), and zeros behind it where S is less than _LANES."""
    n_key = k.size(2)
    if k.element_size() == 2:
        k = k.contiguous()  # oneDNN reads a copy of part of a cache much faster than the part itself
    score = torch.matmul(q, k.transpose(2, 3))
    # Adding is one pass less than filling, and takes the scale along.
    if n_key < _LANES:
        wide = bias.new_empty(*score.shape[:3], _LANES)
        wide[..., n_key:] = float("-inf")
        torch.add(bias, score, alpha=scale, out=wide[..., :n_key])
    else:
        wide = torch.add(bias, score, alpha=scale)
    attn = torch.softmax(wide, dim=-1)
    return attn if blind is None else attn.masked_fill_(blind, 0.0)


class _InKernel(torch.autograd.Function):
    """Attention by a kernel, which reads the heads where the projections wrote them and draws the dropout again."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, attention: Attention) -> Tensor:
        output, weight = attention.forward(q, k, v)
        ctx.save_for_backward(q, k, v, weight)
        ctx.attention = attention
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        (d_output,) = grads
        return *ctx.attention.backward(*ctx.saved_tensors, d_output), None


_in_kernel: Callable[[Tensor, Tensor, Tensor, Attention], Tensor] = _InKernel.apply


def in_kernel(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | Within, scale: float, p: float, *, in_search: bool = False
) -> Tensor:
    """dropout(softmax(scale · q kT)) v of what `switch.takes`: (B, H, T, d_v).

    q: (B, H, T, d_k), k: (B, G, S, d_k), v: (B, G, S, d_v), of one type; mask: bool, (B or 1, 1, T or 1, S), True where
    looking is allowed, or how sentences lie that are all in one row; a query that may look nowhere gets zeros.
    in_search: queries are hypotheses of a sentence. Only then their number, which never is that of what else is in a
    batch, decides how the sums are made: a translation is the same to the bit in any batch.
    """
    if isinstance(mask, Tensor) and mask.stride(3) != 1:
        mask = mask.contiguous()
    if not p:
        attention = Attention(mask, scale)
        if in_search and isinstance(mask, Tensor) and not torch.is_grad_enabled() and q.size(2) <= _FEW:
            return attention.look_up(q, k, v)
        return _in_kernel(q, k, v, attention)
    return _in_kernel(q, k, v, Attention(mask, scale, seed(), n_drop(p), scale_up(p)))
