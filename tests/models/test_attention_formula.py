"""Attention equals the formula of the paper, from one softmax to the whole sub-layer, under every kind of mask.

The formulas here share no code with the package: sums over named indices, and a loop over heads in numpy.
"""

import numpy as np
import pytest
import torch
from promises import check_search_steps
from torch import Tensor

from nmt.masks import PackedMask, Packing, as_matrix
from nmt.models.transformer import SubLayers
from nmt.models.transformer.Models import get_pad_mask, get_subsequent_mask
from nmt.models.transformer.Modules import ScaledDotProductAttention
from nmt.models.transformer.SubLayers import MultiHeadAttention
from nmt.recipe.model_options import ModelConfig

B, H, T, D_K, D_V = 3, 4, 6, 5, 3
SEQ = torch.tensor([[5, 6, 7, 8, 9, 4], [7, 6, 5, 0, 0, 0], [0, 0, 0, 0, 0, 0]])  # the last row is all padding
KV_HEADS = pytest.mark.parametrize("n_kv_head", [4, 2, 1], ids=["MHA", "GQA", "MQA"])


@pytest.fixture
def attention() -> ScaledDotProductAttention:
    """Attention with the temperature of the paper."""
    return ScaledDotProductAttention(D_K**0.5, attn_dropout=0.0)


def packed(causal: bool) -> PackedMask:
    start = torch.tensor([0, 2, 5, 5, 6], dtype=torch.int32)  # one sentence is empty
    sentences = Packing.of(start, longest=3, n=6)
    return PackedMask(sentences, sentences, causal)


MASKS = {
    "padding": get_pad_mask(SEQ, 0).unsqueeze(1),
    "not ahead": get_subsequent_mask(SEQ).unsqueeze(1),
    "both": (get_pad_mask(SEQ, 0) & get_subsequent_mask(SEQ)).unsqueeze(1),
    "packed": packed(causal=False),
    "packed, not ahead": packed(causal=True),
}
# Positions that each row of `packed` may attend to.
SENTENCE = [{0, 1}, {0, 1}, {2, 3, 4}, {2, 3, 4}, {2, 3, 4}, {5}]


def mask_by_definition(kind: str) -> np.ndarray:
    """Return the mask of this kind, from its definition: (B, T, T)."""
    ids = SEQ.tolist()
    allowed = np.zeros((B, T, T), dtype=bool)
    for b, t, s in np.ndindex(B, T, T):
        visible = {"padding": ids[b][s] != 0, "not ahead": s <= t, "both": ids[b][s] != 0 and s <= t}
        visible |= {"packed": s in SENTENCE[t], "packed, not ahead": s in SENTENCE[t] and s <= t}
        allowed[b, t, s] = visible[kind]
    return allowed


def inputs(n_kv_head: int) -> list[Tensor]:
    """q, k and v in double precision that require gradients."""
    torch.manual_seed(3)
    shapes = (H, T, D_K), (n_kv_head, T, D_K), (n_kv_head, T, D_V)
    return [torch.randn(B, *shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@KV_HEADS
@pytest.mark.parametrize("kind", MASKS)
def test_attention_equals_softmax_of_scaled_scores_times_values(kind, n_kv_head, attention):
    q, k, v = inputs(n_kv_head)
    allowed = torch.from_numpy(mask_by_definition(kind)).view(B, 1, 1, T, T)
    score = torch.einsum("bghtk,bgsk->bghts", q.view(B, n_kv_head, -1, T, D_K), k) / D_K**0.5
    share = score.exp() * allowed
    weight = share / share.sum(-1, keepdim=True).where(allowed.any(-1, keepdim=True), torch.ones(()).double())
    expected = torch.einsum("bghts,bgsv->bghtv", weight, v).reshape(B, H, T, D_V)
    output, no_weights = attention(q, k, v, MASKS[kind])
    assert no_weights is None
    assert output.shape == (B, H, T, D_V)
    assert (output - expected).abs().max() < 1e-12
    same, attn = attention(q, k, v, MASKS[kind], return_attns=True)
    assert (same - expected).abs().max() < 1e-12
    assert (attn - weight.reshape(B, H, T, T)).abs().max() < 1e-12
    all_masked = ~allowed.any(-1).expand(B, 1, 1, T)[:, 0, 0]
    assert all_masked.any() == (kind in ("padding", "both"))
    assert output.transpose(1, 2)[all_masked].eq(0).all() and attn.transpose(1, 2)[all_masked].eq(0).all()


@KV_HEADS
@pytest.mark.parametrize("kind", MASKS)
def test_gradient_of_attention_equals_finite_differences(kind, n_kv_head, attention):
    """For output and weights. Fast mode checks one random direction instead of every single input."""
    leaves = inputs(n_kv_head)
    assert torch.autograd.gradcheck(lambda *qkv: attention(*qkv, MASKS[kind])[0], leaves, fast_mode=True)
    assert attention(*leaves, MASKS[kind], return_attns=True)[1].requires_grad
    assert torch.autograd.gradcheck(
        lambda *qkv: attention(*qkv, MASKS[kind], return_attns=True), leaves, fast_mode=True
    )


def rotated(x: np.ndarray, position: int) -> np.ndarray:
    """Rotate a vector pair by pair, by position · 10000^(-2i / d): (d,)"""
    pairs = x.reshape(-1, 2)
    out = np.empty_like(pairs)
    for i, (a, b) in enumerate(pairs):
        angle = position * 10000.0 ** (-2 * i / len(x))
        out[i] = a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)
    return out.reshape(-1)


def layer_norm(x: np.ndarray, norm: torch.nn.Module) -> np.ndarray:
    """LayerNorm of each row."""
    weight, bias = norm.weight.detach().numpy(), norm.bias.detach().numpy()
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * weight + bias


def by_numpy(sublayer: MultiHeadAttention, x: Tensor, memory: Tensor, allowed: np.ndarray, first: int | None) -> list:
    """The sub-layer, token by token and head by head. first: position of the first token, for rotary positions.

    x: (B, T, D), memory: (B, S, D), or x itself. Returns the output and the weights (B, H, T, S).
    """
    matrices = {name: getattr(sublayer, name) for name in ("w_qs", "w_ks", "w_vs", "fc")}
    w = {name: (m.weight.detach().numpy(), m.bias.detach().numpy()) for name, m in matrices.items()}
    own, x, memory = memory is x, x.numpy(), memory.numpy()
    pre, d_k, d_v, n_share = sublayer.pre_norm, sublayer.d_k, sublayer.d_v, sublayer.n_head // sublayer.n_kv_head
    output, attns = np.empty_like(x), np.zeros((len(x), sublayer.n_head, x.shape[1], memory.shape[1]))
    for b in range(len(x)):
        query = layer_norm(x[b], sublayer.layer_norm) if pre else x[b]
        source = query if own else memory[b]
        q, k, v = ((rows @ w[n][0].T + w[n][1]) for n, rows in (("w_qs", query), ("w_ks", source), ("w_vs", source)))
        for t in range(x.shape[1]):
            heads = []
            for h in range(sublayer.n_head):
                g = h // n_share
                q_h = q[t, h * d_k : (h + 1) * d_k]
                keys = [k[s, g * d_k : (g + 1) * d_k] for s in range(len(k))]
                if first is not None:
                    q_h, keys = rotated(q_h, first + t), [rotated(key, first + s) for s, key in enumerate(keys)]
                total, value = 0.0, np.zeros(d_v)
                for s, key in enumerate(keys):
                    if allowed[b, t, s]:
                        attns[b, h, t, s] = np.exp(q_h @ key / np.sqrt(d_k))
                        total += attns[b, h, t, s]
                        value += attns[b, h, t, s] * v[s, g * d_v : (g + 1) * d_v]
                attns[b, h, t] /= total or 1.0
                heads.append(value / (total or 1.0))
            output[b, t] = x[b, t] + np.concatenate(heads) @ w["fc"][0].T + w["fc"][1]
        if not pre:
            output[b] = layer_norm(output[b], sublayer.layer_norm)
    return [output, attns]


@torch.no_grad()
@KV_HEADS
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("over", ["itself", "itself, rotary", "the source"])
def test_sublayer_equals_the_numpy_reference(over, norm, n_kv_head):
    torch.manual_seed(4)
    config = ModelConfig(d_model=8, n_head=H, n_kv_head=n_kv_head, d_k=6, d_v=D_V, attn_bias=True, norm=norm)
    sublayer = MultiHeadAttention(config, config.n_kv_head).double().eval()
    for parameter in sublayer.parameters():
        torch.nn.init.normal_(parameter)
    x, memory = torch.randn(B, T, 8).double(), torch.randn(B, T, 8).double()
    kind, rotation, first = ("padding" if over == "the source" else "both"), None, None
    if over == "itself, rotary":
        first = 2
        angle = torch.arange(first, first + T).double().unsqueeze(1) * 10000.0 ** (-torch.arange(3).double() / 3)
        rotation = angle.cos(), angle.sin()
    own = over != "the source"
    found = sublayer(x, None if own else memory, MASKS[kind], rotation, return_attns=True)
    expected = by_numpy(sublayer, x, x if own else memory, mask_by_definition(kind), first)
    for tensor, reference in zip(found, expected, strict=True):
        assert np.abs(tensor.numpy() - reference).max() < 1e-12


class SigmoidAttention(ScaledDotProductAttention):
    """A variant: independent sigmoid weights instead of a softmax."""

    def forward(self, q, k, v, mask, return_attns=False):
        k, v = (x.repeat_interleave(q.size(1) // x.size(1), 1) for x in (k, v))
        attn = torch.sigmoid(q @ k.mT / self.temperature).masked_fill(~as_matrix(mask), 0.0)
        return attn @ v, attn if return_attns else None


def test_one_attention_class_serves_padded_and_packed_batches_and_search(make, batch, monkeypatch):
    monkeypatch.setattr(SubLayers, "make_attention", lambda config, d_k: SigmoidAttention(d_k**0.5, 0.0))
    model, (src_seq, trg_seq) = make(n_kv_head=2), batch
    padded = model.decode_hidden(src_seq, trg_seq)[trg_seq != 0]
    sides = []
    for seq in batch:
        start = torch.tensor([0, *(seq != 0).sum(1)]).cumsum(0).to(torch.int32)
        sides.append((seq[seq != 0].unsqueeze(0), Packing.of(start, 7, int(start[-1]))))
    (src_row, src), (trg_row, trg) = sides
    assert (model.decode_hidden(src_row, trg_row, (src, trg))[0] - padded).abs().max() < 1e-12
    check_search_steps(model, src_seq, model.start(src_seq), torch.empty(4, 0, dtype=torch.int64), 1, [2, 3, 2, 1])
