"""The operations that models are made of: each in plain torch, and by `nmt/kernels/` where that is faster."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.masks import Mask, PackedMask, Packing, as_matrix


class _NoKernels:
    """A module of `nmt/kernels/` where that folder is missing: each of its functions returns None."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_args, **_named: None


try:
    from nmt.kernels import attention as attentions
    from nmt.kernels import choice, cross_entropy, dropping, int8_products, linears, passes, products, sublayers, switch
    from nmt.kernels import on_gpu as gpu
except ImportError:
    missing: Any = _NoKernels()
    attentions = choice = cross_entropy = dropping = int8_products = missing
    linears = passes = products = sublayers = switch = gpu = missing


class Kernels(NamedTuple):
    """Abilities of the kernels for a CPU on this machine."""

    why_not: str  # the reason that there are none; "" where there are
    multiply_fp32: bool = False
    bf16_in_fp32: bool = False  # products of bf16 are made of fp32, for the processor has none


def kernels_here() -> Kernels:
    """Return what the kernels for a CPU can do here, compiled now if they never were."""
    why_not = switch.why_not()
    if why_not != "":
        return Kernels(why_not or "the folder nmt/kernels is missing")
    return Kernels("", products.fp32_in_kernels(), products.bf16_in_fp32())


def can_compile(device: torch.device) -> bool:
    """True if Triton can make kernels for a device: a GPU of Ampere or later, beside a C compiler."""
    return device.type == "cuda" and bool(gpu.works(device))


def use_kernels(wanted: bool) -> None:
    """Switch the kernels for a CPU on or off in this process."""
    switch.use(wanted)


def kernels_kept() -> AbstractContextManager[object]:
    """Context manager: `use_kernels` inside has no effect on what follows."""
    return switch.kept() or nullcontext()


def linear(x: Tensor, layer: nn.Module) -> Tensor:
    """layer(x), (..., D) -> (..., d_out)"""
    (out,) = fused_linear(x, [layer])
    return out


def fused_linear(x: Tensor, layers: Sequence[nn.Module]) -> tuple[Tensor, ...]:
    """layer(x) of layers that read the same x, (..., D): one (..., d_out) for each."""
    found = linears.fused_linear(x, layers)
    return tuple(layer(x) for layer in layers) if found is None else found


def linear_relu_linear(x: Tensor, first: nn.Module, second: nn.Module) -> Tensor:
    """second(relu(first(x))), (..., D) -> (..., d_out)"""
    found: Tensor | None = linears.linear_relu_linear(x, first, second)
    return second(F.relu(first(x), inplace=True)) if found is None else found


def dropout(x: Tensor, p: float, residual: Tensor | None = None) -> Tensor:
    """dropout(x), or residual + dropout(x), of one shape. p: the rate, on a CPU rounded to a multiple of 2^-16."""
    if p:
        found = dropping.drop_add(x, residual, p)
        if found is not None:
            return found
        x = F.dropout(x, p)
    return x if residual is None else residual + x


def normed(x: Tensor, norm: nn.Module, more: Tensor | None = None) -> Tensor:
    """norm(x), or norm(x + more), (..., D)"""
    found = sublayers.sum_and_norm(x, more, norm, keep_sum=False)
    if found is not None:
        return found[1]
    x = x if more is None else x + more
    by_row: Tensor | None = sublayers.normed(x, norm)
    return norm(x) if by_row is None else by_row


def residual_and_input(x: Tensor, norm: nn.Module | None, more: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x, or x + more, as it goes past a sub-layer, and as it enters it, normalised if there is a norm: (..., D) both.

    What enters may be of the type that products are made in, and so is its gradient: one product should read it.
    """
    found = sublayers.sum_and_norm(x, more, norm)
    if found is not None:
        return found
    x = x if more is None else x + more
    found = sublayers.residual_and_input(x, norm)
    return (x, x if norm is None else norm(x)) if found is None else found


def add_and_norm(x: Tensor, residual: Tensor, p: float, norm: nn.Module) -> Tensor:
    """norm(residual + dropout(x)), (..., D): the end of a sub-layer with norm 'post'. p: the rate of dropout."""
    found = sublayers.add_and_norm(x, residual, p, norm)
    if found is not None:
        return found
    return normed(dropout(x, p, residual), norm) if p else normed(residual, norm, x)


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, p: float = 0.0, return_attns: bool = False
) -> tuple[Tensor, Tensor | None]:
    """dropout(softmax(scale · q kᵀ)) v; a query that may look nowhere gets zeros. p: the rate of dropout.

    q: (B, H, T, d_k), k: (B, G, S, d_k), v: (B, G, S, d_v), where H / G heads share keys and values; mask:
    (B or 1, 1, T or 1, S). Returns (B, H, T, d_v), and the weights before dropout, (B, H, T, S), or None.
    """
    found = attentions.attention(q, k, v, mask, scale, p, return_attns)
    if found is not None:
        return found
    n_share, allowed = q.size(1) // k.size(1), as_matrix(mask)
    if n_share > 1:
        # The heads that share a key/value head become further queries of it: nothing is copied per head.
        q, of_heads = q.reshape(len(q), k.size(1), -1, q.size(3)), q.shape[:3]
        allowed = allowed.repeat(1, 1, n_share if allowed.size(2) > 1 else 1, 1)
        output, attn = attention(q, k, v, allowed, scale, p, return_attns)
        return output.reshape(*of_heads, -1), None if attn is None else attn.reshape(*of_heads, -1)
    if not return_attns:
        return F.scaled_dot_product_attention(q, k, v, allowed, p, scale=scale), None
    score = scale * (q @ k.mT)
    score = score.to(torch.promote_types(score.dtype, torch.float32))
    # Half the lowest number, not -inf: a row that is all -inf would become NaN.
    attn = torch.softmax(score.masked_fill(~allowed, torch.finfo(score.dtype).min / 2), dim=-1)
    attn = attn.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
    return F.dropout(attn, p).to(v.dtype) @ v, attn


def packed_mask(query: Packing, key: Packing, *, causal: bool) -> PackedMask:
    """The mask of a packed row, with what kernels want of it. Not to be compiled."""
    return PackedMask(query, key, causal, attentions.prepared(query, key, causal))


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair of neighbouring columns of x, (B, H, T, d), by its angle: cosines and sines, (T, d / 2) both."""
    found: Tensor | None = attentions.rotate(x, *rotation)
    if found is not None:
        return found
    (cos, sin), even, odd = rotation, x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)


def recurrence(x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """An LSTM, of two states, or a GRU, of one, over whole sentences: (B, L, d_in) -> the h of every place,
    (B, L, width), and the last state.

    state: (B, width) each. weights: of the input and of the state, and the biases of both.
    """
    device, dtype = x.device.type, x.dtype
    # Cast here: autocast has a GPU compute in fp16, whatever it was told, and a CPU in bf16 where it has none.
    casts = device in ("cuda", "cpu") and torch.is_autocast_enabled(device)
    if casts:
        dtype = torch.get_autocast_dtype(device)
    before = [widened(part.unsqueeze(0).to(x.dtype).to(dtype)) for part in state]
    x, weights = widened(x.to(dtype)), [widened(weight.to(dtype)) for weight in weights]
    how = (True, 1, 0.0, torch.is_grad_enabled(), False, True)  # with biases, one layer, no dropout
    with torch.autocast(device, enabled=False) if casts else nullcontext():
        output, *after = (
            torch.lstm(x, before, weights, *how) if len(state) > 1 else torch.gru(x, before[0], weights, *how)
        )
    return output.to(dtype), [part.squeeze(0).to(dtype) for part in after]


def laid_out(weight: Tensor) -> Callable[[Tensor, Tensor | None], Tensor] | None:
    """Function that multiplies by a fixed weight (E, D): (..., D), bias (E,) or None -> (..., E); None: as torch."""
    found: Callable[[Tensor, Tensor | None], Tensor] | None = products.laid_out(weight)
    return found


def lay_side_by_side(layers: Sequence[nn.Linear]) -> None:
    """Prepare layers that read the same x for `fused_linear` in a search on a GPU; they are not to be trained."""
    linears.lay_beside_each_other(layers)


def int8_product() -> Any:
    """The class that multiplies states by a matrix in whole numbers of 8 bits; None if nothing does exactly here."""
    return int8_products.int8_product()


def widened(x: Tensor) -> Tensor:
    """x as it is multiplied: by kernels in fp32 in place of bf16 where the processor has no products of that."""
    found: Tensor | None = products.widened(x)
    return x if found is None else found


def product_of_each(a: Tensor, b: Tensor, *, symmetric: bool = False) -> Tensor:
    """a · b one by one, (M, N, D) and (M, D, E) -> (M, N, E). symmetric: the results are known to be."""
    found = products.product_of_each(a, b, symmetric=symmetric)
    return torch.bmm(a, b) if found is None else found


def total_norm(tensors: list[Tensor]) -> Tensor:
    """The root of the sum of all squares, 0-dim."""
    found = passes.norm(tensors)
    return torch.nn.utils.get_total_norm(tensors) if found is None else found


def smoothed_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    gold: Tensor,
    *,
    smoothing: float,
    scale: float = 1.0,
    pad_idx: int = 0,
    n_gold: int | None = None,
    compiled: bool = False,
) -> Tensor:
    """Sum over gold tokens of the cross-entropy against the smoothed target distribution, in nats: a scalar in fp32.

    The target gives 1 - smoothing to the gold token and spreads `smoothing` evenly over the V - 1 classes that are
    not padding, the gold one included (Szegedy et al. 2016, section 7, with the padding class left out).

    hidden: (B, T, D) last hidden states. weight: (V, D) output embedding; logits = scale * hidden @ weight.T. gold:
    (B, T) ids, of which pad_idx do not count. n_gold: the number of those that count, None where a GPU may be waited
    for. compiled: torch.compile may make one pass of those over the logits.
    """
    rows = _rows_of(gold != pad_idx, n_gold)
    hidden, gold = hidden.flatten(0, 1).index_select(0, rows), gold.flatten()[rows]
    found = cross_entropy.smoothed_cross_entropy(hidden, weight, gold, smoothing, scale, pad_idx, compiled)
    if found is not None:
        return found
    return _cross_entropy(_log_softmax(F.linear(scale * hidden, weight)), gold, smoothing, pad_idx)


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
    `smoothed_cross_entropy`, which has the other arguments; P and Q are distributions over all V classes.
    p_hidden, q_hidden: (B, T, D) last hidden states of two passes over the same batch.
    """
    rows = _rows_of(gold != pad_idx, n_gold)
    gold = gold.flatten()[rows]
    # Scaled before the product, over D numbers instead of V.
    p, q = (scale * hidden.flatten(0, 1).index_select(0, rows) for hidden in (p_hidden, q_hidden))
    found = cross_entropy.consistency(p, q, weight, gold, (ce, kl, smoothing, pad_idx))
    if found is not None:
        return found
    log_p, log_q = _log_softmax(F.linear(p, weight)), _log_softmax(F.linear(q, weight))
    of_p, of_q = (_cross_entropy(z, gold, smoothing, pad_idx) for z in (log_p, log_q))
    entropy = ce[0] * of_p + ce[1] * of_q
    # torch's kl_div(log Q, log P) is KL(P || Q).
    pq, qp = (F.kl_div(*pair, reduction="sum", log_target=True) for pair in ((log_q, log_p), (log_p, log_q)))
    return entropy + kl[0] * pq + kl[1] * qp, entropy.detach()


def _rows_of(real: Tensor, n: int | None) -> Tensor:
    """Indices of the True in (B, T), flattened: (n,). Unless n is known the device must be waited for."""
    if n is None:
        return real.flatten().nonzero().squeeze(1)
    return torch.nonzero_static(real.flatten(), size=n).squeeze(1)


def _log_softmax(logits: Tensor) -> Tensor:
    """log softmax(logits), (N, V), in fp32 at least."""
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def _cross_entropy(log_p: Tensor, gold: Tensor, smoothing: float, pad_idx: int) -> Tensor:
    """Sum of the smoothed cross-entropies of log-probabilities, (N, V), with gold tokens, (N,)."""
    of_gold = log_p.gather(1, gold.unsqueeze(1)).sum()
    even = log_p.sum() - log_p[:, pad_idx].sum()
    return -(1 - smoothing) * of_gold - smoothing / (log_p.size(1) - 1) * even


# Widths of the blocks in which `best_columns` looks; vocabularies are multiples of 8.
_BLOCK_WIDTHS = (64, 32, 16, 8)


def best_continuations(logits: Tensor, n: int, eos: int, never: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The n best tokens after each row of logits (R, V), which may be changed, but for those of `never`, ids.

    eos: a column whose logits are finite. Returns logits, best first, and their columns, (R, n), and the normaliser
    that is taken from a logit for its log-probability, (R,), of all columns: numbers in fp32 at least.
    """
    found = choice.choose(logits, n, never)
    if found is not None:
        return found
    width = _width_of_blocks(logits.size(-1), n)
    normaliser, maxima = choice.scan(logits, never, width) or (log_total(logits, eos), None)
    best, token = best_columns(logits.index_fill_(1, never, -torch.inf), n, maxima)
    return best.to(torch.promote_types(best.dtype, torch.float32)), token, normaliser


def best_columns(logits: Tensor, n: int, maxima: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The n best columns of each row: two (R, n), value and column. maxima: those of the blocks, if they are known.

    They lie in the n blocks with the best maxima: on a CPU a third of the time of `topk` over a vocabulary.
    """
    width = _width_of_blocks(logits.size(-1), n)
    if width is None:
        best, column = logits.topk(n, dim=-1)
        return best, column
    blocks = logits.view(logits.size(0), -1, width)
    block = (blocks.amax(-1) if maxima is None else maxima).topk(n, dim=-1).indices  # (R, n)
    # Blocks are looked up among those of all rows: whole ones are copied faster than value by value.
    first = torch.arange(0, blocks[..., 0].numel(), blocks.size(1), device=logits.device).unsqueeze(1)
    inside = blocks.flatten(0, 1).index_select(0, (first + block).flatten()).view(-1, n * width)  # (R, n·width)
    best, place = inside.topk(n, dim=-1)
    return best, block.gather(1, place // width) * width + place % width


def _width_of_blocks(n_column: int, n: int) -> int | None:
    """The width of blocks for the n best of so many columns; None: all columns are looked at together."""
    return next((width for width in _BLOCK_WIDTHS if n_column % width == 0 and n_column // width >= 2 * n), None)


def log_total(logits: Tensor, column: int) -> Tensor:
    """Logsumexp of each row of (R, V), in fp32 at least: (R,).

    column: a finite one, by whose log-softmax it is found: one pass on a CPU where `logsumexp` is several.
    """
    exact = torch.promote_types(logits.dtype, torch.float32)
    return logits[:, column] - logits.log_softmax(-1, dtype=exact)[:, column]


def store(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, slots: Tensor, n_step: Tensor) -> None:
    """Store keys and values (B, G, K, d) of the K newest tokens of each sentence in caches (B, G, ·, d).

    slots: (K,) those of this step, n_step · K + 0 … K-1. n_step: (1,) steps that were made.
    """
    if not choice.store(keys, values, k, v, n_step):
        keys.index_copy_(2, slots, k)
        values.index_copy_(2, slots, v)


def end_of_step(
    logits: Tensor,
    allowed: Callable[[], Tensor],
    state: Tensor,
    of: Mapping[str, Tensor],
    notes: Mapping[str, Tensor],
    last: Tensor,
    n_step: Tensor,
    divisors: Tensor,
    *,
    eos: int,
) -> Tensor | None:
    """Carry out `fixed_search.Table.go_on` by kernels of a GPU: (R,) rows that hypotheses continue; None: as `go_on`.

    of, notes, last: those of a `Table`, changed. allowed: makes (S, V) uint8, 0 where a column may not follow in a
    state; state: (R,) of each row. n_step: (1,) steps that were made. divisors: (T + 2,) of each length.
    """
    return choice.end_of_step(logits, allowed, state, of, notes, last, n_step, divisors, eos)
