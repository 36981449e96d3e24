"""Triton kernels of `spans.py`, and their launch. Shapes as there."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from nmt.kernels.on_gpu import dense, on_its_device
from nmt.kernels.tiles_triton import attend_to_tile, load_rows, load_spans

# Queries and keys of a block: about the length of two sentences. Larger blocks waste more work on pairs across
# sentences, and smaller ones do not fill the matrix units.
_FORWARD = {"N_QUERY": 64, "N_KEY": 64, "num_warps": 4, "num_stages": 2}
_BACKWARD_OF_QUERIES = {"N_QUERY": 64, "N_KEY": 64, "num_warps": 4, "num_stages": 2}
_BACKWARD_OF_KEYS = {"N_QUERY": 64, "N_KEY": 64, "num_warps": 4, "num_stages": 1}  # registers run out with two stages


@triton.jit
def _forward(
    q, k, v, out, log_total, first_key, end_key,
    q_place, q_head, k_place, k_head, v_place, v_head,
    n_query, n_head, n_share, slope,
    D_K: tl.constexpr, D_V: tl.constexpr, N_QUERY: tl.constexpr, N_KEY: tl.constexpr,
):  # fmt: skip
    """One program per block of queries and head. slope: scale · log2(e)."""
    head = tl.program_id(1)
    query = tl.program_id(0) * N_QUERY + tl.arange(0, N_QUERY)
    is_query = query < n_query
    first, end = load_spans(first_key, end_key, query, is_query)
    column_k, column_v = tl.arange(0, D_K), tl.arange(0, D_V)
    queries = load_rows(q + head * q_head, query, q_place, column_k, is_query)
    k += head // n_share * k_head
    v += head // n_share * v_head
    top = tl.full((N_QUERY,), -float("inf"), tl.float32)
    total = tl.zeros((N_QUERY,), tl.float32)
    weighted = tl.zeros((N_QUERY, D_V), tl.float32)
    last = tl.max(end, 0)
    for start in range(tl.min(first, 0), last, N_KEY):
        key = start + tl.arange(0, N_KEY)
        is_key = key < last
        keys = tl.load(k + key[None, :] * k_place + column_k[:, None], mask=is_key[None, :], other=0.0)
        values = load_rows(v, key, v_place, column_v, is_key)
        z = tl.dot(queries, keys, input_precision="ieee") * slope
        seen = (key[None, :] >= first[:, None]) & (key[None, :] < end[:, None])
        top, total, weighted = attend_to_tile(tl.where(seen, z, -float("inf")), values, top, total, weighted)
    is_empty = total == 0.0
    total = tl.where(is_empty, 1.0, total)
    place = out + (query[:, None] * n_head + head) * D_V + column_v[None, :]
    tl.store(place, (weighted / total[:, None]).to(out.dtype.element_ty), mask=is_query[:, None])
    # The weights of a query are exp2(z - log_total), all 0 for an empty span.
    tl.store(log_total + head * n_query + query, tl.where(is_empty, float("inf"), top + tl.log2(total)), mask=is_query)


@triton.jit
def _backward_of_queries(
    d_out, q, k, v, out, log_total, dot, d_q, first_key, end_key,
    q_place, q_head, k_place, k_head, v_place, v_head,
    n_query, n_head, n_share, slope, scale,
    D_K: tl.constexpr, D_V: tl.constexpr, N_QUERY: tl.constexpr, N_KEY: tl.constexpr,
):  # fmt: skip
    """Gradient of a block of queries of one head, and `dot`, (H, T): d_out · out, for the gradient of keys."""
    head = tl.program_id(1)
    query = tl.program_id(0) * N_QUERY + tl.arange(0, N_QUERY)
    is_query = query < n_query
    first, end = load_spans(first_key, end_key, query, is_query)
    column_k, column_v = tl.arange(0, D_K), tl.arange(0, D_V)
    queries = load_rows(q + head * q_head, query, q_place, column_k, is_query)
    place = (query[:, None] * n_head + head) * D_V + column_v[None, :]
    grads = tl.load(d_out + place, mask=is_query[:, None], other=0.0)
    outs = tl.load(out + place, mask=is_query[:, None], other=0.0)
    delta = tl.sum(grads.to(tl.float32) * outs.to(tl.float32), 1)
    tl.store(dot + head * n_query + query, delta, mask=is_query)
    row_log_total = tl.load(log_total + head * n_query + query, mask=is_query, other=float("inf"))
    k += head // n_share * k_head
    v += head // n_share * v_head
    d_queries = tl.zeros((N_QUERY, D_K), tl.float32)
    last = tl.max(end, 0)
    for start in range(tl.min(first, 0), last, N_KEY):
        key = start + tl.arange(0, N_KEY)
        is_key = key < last
        keys = load_rows(k, key, k_place, column_k, is_key)
        values = load_rows(v, key, v_place, column_v, is_key)
        z = tl.dot(queries, tl.trans(keys), input_precision="ieee") * slope
        seen = (key[None, :] >= first[:, None]) & (key[None, :] < end[:, None])
        p = tl.where(seen, tl.exp2(z - row_log_total[:, None]), 0.0)
        d_p = tl.dot(grads, tl.trans(values), input_precision="ieee")
        d_z = p * (d_p - delta[:, None])
        d_queries = tl.dot(d_z.to(keys.dtype), keys, d_queries, input_precision="ieee")
    place = d_q + (query[:, None] * n_head + head) * D_K + column_k[None, :]
    tl.store(place, (d_queries * scale).to(d_q.dtype.element_ty), mask=is_query[:, None])


@triton.jit
def _backward_of_keys(
    d_out, q, k, v, log_total, dot, d_k, d_v, first_query, end_query,
    q_place, q_head, k_place, k_head, v_place, v_head,
    n_query, n_key, n_head, n_share, slope, scale,
    D_K: tl.constexpr, D_V: tl.constexpr, N_QUERY: tl.constexpr, N_KEY: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and values of one head, summed over all query heads that share it."""
    group = tl.program_id(1)
    key = tl.program_id(0) * N_KEY + tl.arange(0, N_KEY)
    is_key = key < n_key
    first, end = load_spans(first_query, end_query, key, is_key)
    column_k, column_v = tl.arange(0, D_K), tl.arange(0, D_V)
    keys = load_rows(k + group * k_head, key, k_place, column_k, is_key)
    values = load_rows(v + group * v_head, key, v_place, column_v, is_key)
    d_keys = tl.zeros((N_KEY, D_K), tl.float32)
    d_values = tl.zeros((N_KEY, D_V), tl.float32)
    last = tl.max(end, 0)
    for head in range(group * n_share, (group + 1) * n_share):
        for start in range(tl.min(first, 0), last, N_QUERY):
            query = start + tl.arange(0, N_QUERY)
            is_query = query < last
            queries = tl.load(
                q + query[:, None] * q_place + head * q_head + column_k[None, :], mask=is_query[:, None], other=0.0
            )
            grads = tl.load(
                d_out + (query[:, None] * n_head + head) * D_V + column_v[None, :], mask=is_query[:, None], other=0.0
            )
            row_log_total = tl.load(log_total + head * n_query + query, mask=is_query, other=float("inf"))
            delta = tl.load(dot + head * n_query + query, mask=is_query, other=0.0)
            z = tl.dot(keys, tl.trans(queries), input_precision="ieee") * slope
            seen = (query[None, :] >= first[:, None]) & (query[None, :] < end[:, None])
            p = tl.where(seen, tl.exp2(z - row_log_total[None, :]), 0.0)
            d_values = tl.dot(p.to(grads.dtype), grads, d_values, input_precision="ieee")
            d_p = tl.dot(values, tl.trans(grads), input_precision="ieee")
            d_z = p * (d_p - delta[None, :])
            d_keys = tl.dot(d_z.to(queries.dtype), queries, d_keys, input_precision="ieee")
    n_group = n_head // n_share
    place = d_k + (key[:, None] * n_group + group) * D_K + column_k[None, :]
    tl.store(place, (d_keys * scale).to(d_k.dtype.element_ty), mask=is_key[:, None])
    place = d_v + (key[:, None] * n_group + group) * D_V + column_v[None, :]
    tl.store(place, d_values.to(d_v.dtype.element_ty), mask=is_key[:, None])


def forward(q: Tensor, k: Tensor, v: Tensor, first_key: Tensor, end_key: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return attention in spans, (T, H, d_v), and the logarithm to base 2 of each softmax denominator, (H, T)."""
    q, k, v = (dense(x) for x in (q, k, v))
    n_query, n_head, n_share = q.size(0), q.size(1), q.size(1) // k.size(1)
    out, log_total = q.new_empty(n_query, n_head, v.size(2)), q.new_empty(n_head, n_query, dtype=torch.float32)
    with on_its_device(q):
        _forward[triton.cdiv(n_query, _FORWARD["N_QUERY"]), n_head](
            q, k, v, out, log_total, first_key, end_key,
            *_strides(q, k, v), n_query, n_head, n_share, scale * math.log2(math.e),
            **_widths(q, v), **_FORWARD,
        )  # fmt: skip
    return out, log_total


def backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, log_total: Tensor, *spans: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v. spans: the fields of `Spans`."""
    first_key, end_key, first_query, end_query = spans
    q, k, v, d_out = dense(q), dense(k), dense(v), d_out.contiguous()
    (n_query, n_head, _), (n_key, n_group, _) = q.shape, k.shape
    slope, dot = scale * math.log2(math.e), torch.empty_like(log_total)
    d_q, d_k, d_v = (x.new_empty(x.shape) for x in (q, k, v))
    with on_its_device(q):
        _backward_of_queries[triton.cdiv(n_query, _BACKWARD_OF_QUERIES["N_QUERY"]), n_head](
            d_out, q, k, v, out, log_total, dot, d_q, first_key, end_key,
            *_strides(q, k, v), n_query, n_head, n_head // n_group, slope, scale,
            **_widths(q, v), **_BACKWARD_OF_QUERIES,
        )  # fmt: skip
        _backward_of_keys[triton.cdiv(n_key, _BACKWARD_OF_KEYS["N_KEY"]), n_group](
            d_out, q, k, v, log_total, dot, d_k, d_v, first_query, end_query,
            *_strides(q, k, v), n_query, n_key, n_head, n_head // n_group, slope, scale,
            **_widths(q, v), **_BACKWARD_OF_KEYS,
        )  # fmt: skip
    return d_q, d_k, d_v


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    """Return the strides of places and heads of each tensor."""
    return tuple(stride for x in tensors for stride in x.stride()[:2])


def _widths(q: Tensor, v: Tensor) -> dict[str, int]:
    return {"D_K": q.size(2), "D_V": v.size(2)}
