"""Attention on a GPU where each query attends to a span of keys: in a packed row, to those of its own sentence.

The flash attention of torch for variable lengths computes blocks of 128 queries by 128 keys for each sentence, however
short. Here a block has consecutive queries, of any sentences, and reads the keys from the first to the last that any
of them may look at (T. Dao 2023, "FlashAttention-2"). Gradients are deterministic.

Shapes: T queries, S keys, H query heads, G key/value heads (G divides H).
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from nmt.masks import Packing


class Spans(NamedTuple):
    """Spans of attention in both directions: query t looks at keys first_key[t], ..., end_key[t] - 1; queries
    first_query[s], ..., end_query[s] - 1 look at key s. All int32. Both ends of the spans must be non-decreasing."""

    first_key: Tensor
    end_key: Tensor
    first_query: Tensor
    end_query: Tensor

    @classmethod
    def within(cls, query: Packing, key: Packing, *, causal: bool) -> "Spans":
        """Return the spans of packed sentences. causal: a query looks only at its own place and earlier ones."""
        query_sentence, key_sentence = query.sentence, key.sentence
        first_key, end_key = key.start[query_sentence], key.start[query_sentence + 1]
        first_query, end_query = query.start[key_sentence], query.start[key_sentence + 1]
        if causal:
            end_key = torch.arange(1, len(query_sentence) + 1, device=end_key.device, dtype=end_key.dtype)
            first_query = torch.arange(len(key_sentence), device=first_query.device, dtype=first_query.dtype)
        return cls(first_key, end_key, first_query, end_query)


def are_near(*tensors: Tensor) -> bool:
    """True if the offsets of all numbers of (T, H, d) fit into 32 bits, as the kernels need."""
    return all(x.size(0) * x.stride(0) < 1 << 31 for x in tensors)


def attend(q: Tensor, k: Tensor, v: Tensor, spans: Spans, scale: float) -> Tensor:
    """softmax(scale · q kT) v within the spans: (T, H, d_k), (S, G, d_k), (S, G, d_v) -> (T, H, d_v). A query with an
    empty span gets zeros."""
    out: Tensor = torch.ops.nmt.attend_in_spans(q, k, v, *spans, scale)[0]
    return out


# Registered as operators, so that the compiler treats each as one step with a known gradient. An operator made by
# torch.library.custom_op would import the compiler at its first call, even if nothing is compiled.


# Its lifetime is that of this module, which can be imported again. It has no type hints.
_LIBRARY = cast(Any, torch.library).Library("nmt", "FRAGMENT")


def _register(function: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Register a function as the operator `nmt::name`. fake: returns tensors like its own, without values."""
    name = f"nmt::{function.__name__}"
    schema = torch.library.infer_schema(function, mutates_args=())
    torch.library.define(name, schema, lib=_LIBRARY, tags=torch.Tag.pt2_compliant_tag)
    torch.library.impl(name, "default", function, lib=_LIBRARY)
    torch.library.register_fake(name, fake, lib=_LIBRARY)


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
    """Return attention in spans, and for each query the logarithm to base 2 of the softmax denominator, (H, T) fp32."""
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
    """Return the gradients of q, k and v."""
    from nmt.kernels import spans_triton

    spans = first_key, end_key, first_query, end_query
    return spans_triton.backward(d_out, q, k, v, out, log_total, *spans, scale=scale)


def _fake_output(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    out = q.new_empty(q.size(0), q.size(1), v.size(2))
    return out, q.new_empty(q.size(1), q.size(0), dtype=torch.float32)


def _fake_gradients(_d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, *spans, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, *output, *spans)


def _gradient(ctx: Any, d_out: Tensor, _d_log_total: Tensor) -> tuple[Tensor | None, ...]:
    gradients = torch.ops.nmt.attend_in_spans_backward(d_out, *ctx.saved_tensors, ctx.scale)
    return *gradients, None, None, None, None, None


_register(attend_in_spans, _fake_output)
_register(attend_in_spans_backward, _fake_gradients)
torch.library.register_autograd("nmt::attend_in_spans", _gradient, setup_context=_save, lib=_LIBRARY)
