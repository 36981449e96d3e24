"""Operations of models, losses and search: in plain torch, or by a kernel of `nmt/kernels/` where that is faster."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.masks import Mask, PackedMask, Packing, as_matrix


class _NoKernels:
    """Stand-in for a module of `nmt/kernels/` where that folder is missing: each function returns None."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_args, **_kwargs: None


try:
    from nmt.kernels import attention as attentions
    from nmt.kernels import choice, cross_entropy, dropping, int8_products, linears, passes, products, sublayers, switch
    from nmt.kernels import int8_layers as int8
    from nmt.kernels import on_gpu as gpu
except ImportError:
    missing: Any = _NoKernels()
    attentions = choice = cross_entropy = dropping = int8_products = missing
    linears = passes = products = sublayers = switch = int8 = gpu = missing

# Operations of the kernels alone, described there. Without kernels they do nothing and return None.
use_kernels = switch.use  # for a CPU, in this process
bf16_in_fp32 = products.bf16_in_fp32  # for this CPU
prepacked_linear = products.prepacked_linear
fuse_weights = linears.lay_beside_each_other  # for `fused_linear` in a search on a GPU
int8_product: Callable[[], Any] = int8_products.int8_product
int8_linear: Callable[..., Any] = int8.Int8Linear
int8_feed_forward: Callable[..., Any] = int8.Int8FeedForward
int8_spread_of_outputs: Callable[..., Any] = int8.spread_of_outputs
end_of_step = choice.end_of_step  # of `fixed_search.Table`, on a GPU


def why_no_kernels() -> str:
    """Return the reason that there are no kernels for this CPU, or "", after compiling them if necessary."""
    why_not: str | None = switch.why_not()  # None without that folder
    return "the folder nmt/kernels is missing" if why_not is None else why_not


def can_compile(device: torch.device) -> bool:
    """True if Triton can compile kernels for a device: a GPU of Ampere or later, with a C compiler on the machine."""
    return device.type == "cuda" and bool(gpu.works(device))


def kernels_kept() -> AbstractContextManager[object]:
    """Context manager: restores the switch of `use_kernels` at the end."""
    return switch.kept() or nullcontext()


def linear(x: Tensor, layer: nn.Module) -> Tensor:
    """layer(x), (..., D) -> (..., d_out)"""
    (out,) = fused_linear(x, [layer])
    return out


def fused_linear(x: Tensor, layers: Sequence[nn.Module]) -> tuple[Tensor, ...]:
    """layer(x) for each of the layers, which read the same x, (..., D): one (..., d_out) per layer."""
    outputs = linears.fused_linear(x, layers)
    return tuple(layer(x) for layer in layers) if outputs is None else outputs


def linear_relu_linear(x: Tensor, first: nn.Module, second: nn.Module) -> Tensor:
    """second(relu(first(x))), (..., D) -> (..., d_out)"""
    output: Tensor | None = linears.linear_relu_linear(x, first, second)
    return second(F.relu(first(x), inplace=True)) if output is None else output


def dropout(x: Tensor, p: float, residual: Tensor | None = None) -> Tensor:
    """dropout(x), or residual + dropout(x), of one shape. p: the rate, on a CPU rounded to a multiple of 2^-16."""
    if p:
        output = dropping.drop_add(x, residual, p)
        if output is not None:
            return output
        x = F.dropout(x, p)
    return x if residual is None else residual + x


def normed(x: Tensor, norm: nn.Module, addend: Tensor | None = None) -> Tensor:
    """norm(x), or norm(x + addend), (..., D)"""
    sum_and_norm = sublayers.sum_and_norm(x, addend, norm, for_product=False)
    if sum_and_norm is not None:
        return sum_and_norm[1]
    output: Tensor = norm(x if addend is None else x + addend)
    return output


def residual_and_input(x: Tensor, norm: nn.Module | None, addend: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Residual of a sub-layer, x or x + addend, and its input, the same normalised if there is a norm: (..., D) both.

    The input may have the type of products, and so has its gradient: only one product should read it.
    """
    pair = sublayers.sum_and_norm(x, addend, norm, for_product=True)
    if pair is not None:
        return pair
    x = x if addend is None else x + addend
    return x, x if norm is None else norm(x)


def add_and_norm(x: Tensor, residual: Tensor, p: float, norm: nn.Module) -> Tensor:
    """norm(residual + dropout(x)), (..., D): the end of a sub-layer with norm 'post'. p: the rate of dropout."""
    output = sublayers.add_and_norm(x, residual, p, norm)
    if output is not None:
        return output
    return normed(dropout(x, p, residual), norm) if p else normed(residual, norm, x)


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, p: float = 0.0, return_attns: bool = False
) -> tuple[Tensor, Tensor | None]:
    """dropout(softmax(scale · q kᵀ)) v; a query whose mask is all False gets zeros. p: the rate of dropout.

    q: (B, H, T, d_k), k: (B, G, S, d_k), v: (B, G, S, d_v), where H / G heads share keys and values; mask:
    (B or 1, 1, T or 1, S). Returns (B, H, T, d_v), and the weights before dropout, (B, H, T, S), or None.
    """
    by_kernel: Tensor | None = None if return_attns else attentions.attention(q, k, v, mask, scale, p)
    if by_kernel is not None:
        return by_kernel, None
    n_share, allowed = q.size(1) // k.size(1), as_matrix(mask)
    if n_share > 1:
        # Heads that share a key/value head become further queries of it, so nothing is copied per head.
        q, q_shape = q.reshape(len(q), k.size(1), -1, q.size(3)), q.shape[:3]
        allowed = allowed.repeat(1, 1, n_share if allowed.size(2) > 1 else 1, 1)
        output, attn = attention(q, k, v, allowed, scale, p, return_attns)
        return output.reshape(*q_shape, -1), None if attn is None else attn.reshape(*q_shape, -1)
    if not return_attns:
        return F.scaled_dot_product_attention(q, k, v, allowed, p, scale=scale), None
    score = scale * (q @ k.mT)
    score = score.to(torch.promote_types(score.dtype, torch.float32))
    # Half the lowest number, not -inf: a row that is all -inf would become NaN.
    attn = torch.softmax(score.masked_fill(~allowed, torch.finfo(score.dtype).min / 2), dim=-1)
    attn = attn.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
    return F.dropout(attn, p).to(v.dtype) @ v, attn


def packed_mask(query: Packing, key: Packing, *, causal: bool) -> PackedMask:
    """Mask of a packed row, with the data that kernels derive from it. Not to be compiled."""
    return PackedMask(query, key, causal, attentions.prepared(query, key, causal))


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
    """Rotate each pair of neighbouring columns of x, (B, H, T, d), by its angle: cosines and sines, (T, d / 2) both."""
    if rotation is None:
        return x
    rotated: Tensor | None = attentions.rotate(x, *rotation)
    if rotated is not None:
        return rotated
    (cos, sin), even, odd = rotation, x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)


def recurrence(x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Run an LSTM, of two states, or a GRU, of one, over whole sentences: (B, L, d_in) -> h at all positions,
    (B, L, width), and the last state.
    state: (B, width) each. weights: of the input and of the state, and the biases of both."""
    device = x.device.type
    # Cast here: autocast would run it in fp16 on a GPU, whatever its own type, and in bf16 on a CPU without bf16.
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    initial = [widened(part.unsqueeze(0).to(x.dtype).to(dtype)) for part in state]
    x, weights = widened(x.to(dtype)), [widened(weight.to(dtype)) for weight in weights]
    options = (True, 1, 0.0, torch.is_grad_enabled(), False, True)  # with biases, one layer, no dropout
    with torch.autocast(device, enabled=False):
        output, *last = (
            torch.lstm(x, initial, weights, *options) if len(state) > 1 else torch.gru(x, initial[0], weights, *options)
        )
    return output.to(dtype), [part.squeeze(0).to(dtype) for part in last]


def widened(x: Tensor) -> Tensor:
    """x as a factor of a product: kernels take fp32 instead of bf16 if the processor has no bf16 products."""
    factor: Tensor | None = products.widened(x)
    return x if factor is None else factor


def product_of_each(a: Tensor, b: Tensor, *, symmetric: bool = False) -> Tensor:
    """Batched product a · b, (M, N, D) and (M, D, E) -> (M, N, E). symmetric: the results are symmetric matrices."""
    product = products.product_of_each(a, b, symmetric=symmetric)
    return torch.bmm(a, b) if product is None else product


def total_norm(tensors: list[Tensor]) -> Tensor:
    """Root of the sum of all squares in the tensors, 0-dim."""
    norm = passes.norm(tensors)
    return torch.nn.utils.get_total_norm(tensors) if norm is None else norm


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
    (B, T) ids; padding, pad_idx, is left out. n_gold: number of the other tokens; None counts them, which waits for a
    GPU. compiled: torch.compile may fuse the passes over the logits.
    """
    rows = _true_rows(gold != pad_idx, n_gold)
    hidden, gold = hidden.flatten(0, 1).index_select(0, rows), gold.flatten()[rows]
    loss = cross_entropy.smoothed_cross_entropy(hidden, weight, gold, smoothing, scale, pad_idx, compiled)
    if loss is not None:
        return loss
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

    Summed over gold tokens; the gradient goes through both passes, the second number has none. CE and the other
    arguments are those of `smoothed_cross_entropy`; P and Q are distributions over all V classes. p_hidden, q_hidden:
    (B, T, D) last hidden states of two passes over the same batch.
    """
    rows = _true_rows(gold != pad_idx, n_gold)
    gold = gold.flatten()[rows]
    # Scaled before the product, over D numbers instead of V.
    p, q = (scale * hidden.flatten(0, 1).index_select(0, rows) for hidden in (p_hidden, q_hidden))
    losses = cross_entropy.consistency(p, q, weight, gold, (ce, kl, smoothing, pad_idx))
    if losses is not None:
        return losses
    log_p, log_q = _log_softmax(F.linear(p, weight)), _log_softmax(F.linear(q, weight))
    ce_p, ce_q = (_cross_entropy(log_probs, gold, smoothing, pad_idx) for log_probs in (log_p, log_q))
    ce_sum = ce[0] * ce_p + ce[1] * ce_q
    # torch's kl_div(log Q, log P) is KL(P || Q).
    kl_pq, kl_qp = (F.kl_div(*pair, reduction="sum", log_target=True) for pair in ((log_q, log_p), (log_p, log_q)))
    return ce_sum + kl[0] * kl_pq + kl[1] * kl_qp, ce_sum.detach()


def _true_rows(mask: Tensor, n: int | None) -> Tensor:
    """Indices of True in a mask (B, T), flattened: (n,). Without n the host waits for the device."""
    return torch.nonzero_static(mask.flatten(), size=int(mask.sum()) if n is None else n).squeeze(1)


def _log_softmax(logits: Tensor) -> Tensor:
    """log softmax(logits), (N, V), in fp32 at least."""
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def _cross_entropy(log_p: Tensor, gold: Tensor, smoothing: float, pad_idx: int) -> Tensor:
    """Sum of the smoothed cross-entropies of log-probabilities, (N, V), with gold tokens, (N,)."""
    gold_sum = log_p.gather(1, gold.unsqueeze(1)).sum()
    class_sum = log_p.sum() - log_p[:, pad_idx].sum()
    return -(1 - smoothing) * gold_sum - smoothing / (log_p.size(1) - 1) * class_sum


# Widths of the blocks that `best_columns` searches; vocabularies are multiples of 8.
_BLOCK_WIDTHS = (64, 32, 16, 8)


def best_continuations(logits: Tensor, n: int, eos: int, never: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Find the n best next tokens of each row of logits (R, V), without the ids `never`. The logits may be overwritten.

    eos: a column with finite logits. Returns the best logits, best first, and their columns, (R, n) both, and the
    normaliser over all columns, (R,): logit - normaliser is the log-probability. Numbers are in fp32 at least.
    """
    chosen = choice.choose(logits, n, never)
    if chosen is not None:
        return chosen
    width = _block_width(logits.size(-1), n)
    normaliser, maxima = choice.scan(logits, never, width) or (log_total(logits, eos), None)
    best, token = best_columns(logits.index_fill_(1, never, -torch.inf), n, maxima)
    return best.to(torch.promote_types(best.dtype, torch.float32)), token, normaliser


def best_columns(logits: Tensor, n: int, maxima: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Find the n best columns of each row: values and columns, (R, n) both. maxima: of the blocks, if known.

    They lie in the n blocks with the best maxima: on a CPU a third of the time of `topk` over a vocabulary.
    """
    width = _block_width(logits.size(-1), n)
    if width is None:
        best, column = logits.topk(n, dim=-1)
        return best, column
    blocks = logits.view(logits.size(0), -1, width)
    block = (blocks.amax(-1) if maxima is None else maxima).topk(n, dim=-1).indices  # (R, n)
    # Indices among the blocks of all rows, since whole blocks are copied faster than single values.
    first = torch.arange(0, blocks[..., 0].numel(), blocks.size(1), device=logits.device).unsqueeze(1)
    candidates = blocks.flatten(0, 1).index_select(0, (first + block).flatten()).view(-1, n * width)  # (R, n·width)
    best, index = candidates.topk(n, dim=-1)
    return best, block.gather(1, index // width) * width + index % width


def _block_width(n_column: int, n: int) -> int | None:
    """Width of the blocks for the n best of n_column columns; None: search all columns at once."""
    return next((width for width in _BLOCK_WIDTHS if n_column % width == 0 and n_column // width >= 2 * n), None)


def log_total(logits: Tensor, column: int) -> Tensor:
    """Logsumexp of each row of (R, V), in fp32 at least: (R,). column: one with finite logits. Its logit less its
    log-softmax is the result: one pass on a CPU, not several as in `logsumexp`."""
    return logits[:, column] - _log_softmax(logits)[:, column]


def store(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, slots: Tensor, n_step: Tensor) -> None:
    """Store keys and values (B, G, K, d) of the K newest tokens of each sentence in caches (B, G, ·, d).

    slots: (K,) of this step, n_step · K + 0 … K-1. n_step: (1,) number of earlier steps.
    """
    if not choice.store(keys, values, k, v, n_step):
        keys.index_copy_(2, slots, k)
        values.index_copy_(2, slots, v)
