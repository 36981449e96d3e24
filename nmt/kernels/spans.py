"""Attention on a GPU in which each query looks at a span of keys: of sentences that lie end to end, at its own.

Torch's flash attention of variable lengths computes blocks of 128 queries by 128 keys for each sentence, however short.
Here a block is of so many queries in a row, whatever sentences they are of, and takes the keys from the first that one
of them may look at to the last (T. Dao 2023, "FlashAttention-2"). A gradient is the same bit for bit each time.

Shapes: T queries, S keys, H query heads, G key/value heads (G divides H).
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from nmt.masks import Packing


class Spans(NamedTuple):
    """Spans of attention, both ways: query t at keys first_key[t], ..., end_key[t] - 1, and at key s look queries
    first_query[s], ..., end_query[s] - 1; int32 all. From one query to the next neither end of a span may go back."""

    first_key: Tensor
    end_key: Tensor
    first_query: Tensor
    end_query: Tensor

    @classmethod
    def within(cls, query: Packing, key: Packing, *, causal: bool) -> "Spans":
        """Those of sentences that lie end to end. causal: whether a query looks at its own place and back alone."""
        of_query, of_key = query.sentence, key.sentence
        first_key, end_key = key.start[of_query], key.start[of_query + 1]
        first_query, end_query = query.start[of_key], query.start[of_key + 1]
        if causal:
            end_key = torch.arange(1, len(of_query) + 1, device=end_key.device, dtype=end_key.dtype)
            first_query = torch.arange(len(of_key), device=first_query.device, dtype=first_query.dtype)
        return cls(first_key, end_key, first_query, end_query)


def are_near(*tensors: Tensor) -> bool:
    """True if all numbers of (T, H, d) are within reach of the kernels, which count in 32 bits."""
    return all(x.size(0) * x.stride(0) < 1 << 31 for x in tensors)


def attend(q: Tensor, k: Tensor, v: Tensor, spans: Spans, scale: float) -> Tensor:
    """softmax(scale · q kT) v within the spans: (T, H, d_k), (S, G, d_k), (S, G, d_v) -> (T, H, d_v). A query that
    looks nowhere finds zeros."""
    out: Tensor = torch.ops.nmt.attend_in_spans(q, k, v, *spans, scale)[0]
    return out


# As operators, so that the compiler takes them for one step each, and knows the gradient. Whoever calls what
# torch.library.custom_op makes imports the compiler, though nothing is compiled: so they are put together here.


# It ends with this module, which can be imported anew. It has no type hints.
_LIBRARY = cast(Any, torch.library).Library("nmt", "FRAGMENT")


def _operator(function: Callable[..., Any], likeness: Callable[..., Any]) -> None:
    """Make `nmt::` and the name of a function an operator that does the same. likeness: gives tensors like its own."""
    name = f"nmt::{function.__name__}"
    schema = torch.library.infer_schema(function, mutates_args=())
    torch.library.define(name, schema, lib=_LIBRARY, tags=torch.Tag.pt2_compliant_tag)
    torch.library.impl(name, "default", function, lib=_LIBRARY)
    torch.library.register_fake(name, likeness, lib=_LIBRARY)


def attend_in_spans(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    first_key: Tensor,
    end_key: Tensor,
    first_query: Tensor,
    end_query: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Attention in spans, and of each query the logarithm to base 2 of its softmax's denominator, (H, T) fp32."""
    from nmt.kernels import spans_triton

    return spans_triton.forward(q, k, v, first_key, end_key, scale)


def attend_in_spans_backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_total: Tensor,
    first_key: Tensor,
    end_key: Tensor,
    first_query: Tensor,
    end_query: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v."""
    from nmt.kernels import spans_triton

    spans = first_key, end_key, first_query, end_query
    return spans_triton.backward(d_out, q, k, v, out, log_total, *spans, scale=scale)


def _like_found(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    out = q.new_empty(q.size(0), q.size(1), v.size(2))
    return out, q.new_empty(q.size(1), q.size(0), dtype=torch.float32)


def _like_gradients(_d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, *spans, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, *output, *spans)


def _gradient(ctx: Any, d_out: Tensor, _d_log_total: Tensor) -> tuple[Tensor | None, ...]:
    found = torch.ops.nmt.attend_in_spans_backward(d_out, *ctx.saved_tensors, ctx.scale)
    return *found, None, None, None, None, None


_operator(attend_in_spans, _like_found)
_operator(attend_in_spans_backward, _like_gradients)
torch.library.register_autograd("nmt::attend_in_spans", _gradient, setup_context=_remember, lib=_LIBRARY)
