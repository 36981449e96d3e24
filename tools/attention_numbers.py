"""What the pictures of docs/attention.md show, measured on the package itself. Nothing is drawn here.

Each function is seeded and builds what it measures through `build_model` or the classes of nmt/models. Shapes: B
sentences, S source length, T target length, H query heads, G key/value heads, K hypotheses a sentence.
"""

import functools
import itertools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from nmt.models.base import Packing
from nmt.models.build import build_model
from nmt.models.transformer.Layers import DecoderLayer, EncoderLayer
from nmt.models.transformer.Models import LearnedPositions, Transformer, get_pad_mask, get_subsequent_mask
from nmt.models.transformer.Modules import PackedMask, RotaryEncoding, ScaledDotProductAttention, rotate, sinusoids
from nmt.recipe.model_options import ModelConfig

SEED = 1
N_VOCAB = 8_000
N_KEY = 32  # keys that a query chooses among where the scale is measured
SHARES: dict[str, int | None] = {"MHA": None, "GQA": 2, "MQA": 1}  # of base's 8 heads: n_kv_head
# The encoder has no part in what a step costs and keeps.
DECODING: dict[str, Any] = {"preset": "base", "n_enc_layer": 1}


def build(n_vocab: int = N_VOCAB, seed: int = SEED, **options: Any) -> Transformer:
    """A model as a recipe with these options begins, without dropout."""
    torch.manual_seed(seed)
    model = build_model(ModelConfig(**{"dropout": 0.0} | options), n_vocab, n_vocab)
    assert isinstance(model, Transformer)
    return model.eval()


def words(n_sentence: int, n: int, n_vocab: int = N_VOCAB) -> Tensor:
    """(B, L) random ids, none of them padding."""
    return torch.randint(3, n_vocab, (n_sentence, n))


class Focus(NamedTuple):
    """What the softmax does with the scores of one width of keys, over many queries.

    variance: of the scores of one query. n_seen: exp(entropy) of the weights, so how many keys a query looks at. slope:
    the Frobenius norm of the softmax's Jacobian, d weights / d scores, by which every gradient through it goes.
    """

    variance: float
    n_seen: float
    slope: float
    mean_slope: float


def focus(d_k: int, *, scaled: bool, n_query: int = 1024) -> Focus:
    """Queries and keys of independent numbers with mean 0 and variance 1, as in the paper's footnote 4."""
    generator = torch.Generator().manual_seed(SEED)
    q, k = (torch.randn(n_query, 1, n, d_k, generator=generator, dtype=torch.float64) for n in (1, N_KEY))
    attention = ScaledDotProductAttention(d_k**0.5 if scaled else 1.0, attn_dropout=0.0)
    everywhere = torch.ones(1, 1, 1, N_KEY, dtype=torch.bool)
    _, attn = attention(q, k, k, everywhere, return_attns=True)
    assert attn is not None
    weight = attn.flatten(1)
    log_weight = weight.log()  # a score less the same number for all keys of a query: the variance is the scores'
    slope = torch.diag_embed(weight) - weight.unsqueeze(2) * weight.unsqueeze(1)
    norm = slope.flatten(1).norm(dim=1)
    n_seen = (-(weight * log_weight).sum(1)).exp()
    return Focus(*(float(x) for x in (log_weight.var(1).mean(), n_seen.median(), norm.median(), norm.mean())))


def variances_at_the_start(n_seed: int = 8) -> list[float]:
    """Variances of the products of queries and keys in the first layer of base, before they are divided, by seed."""
    found = []

    def note(module: nn.Module, args: tuple[Tensor, ...], output: object) -> None:
        q, k, *_ = args
        found.append(float((q @ k.transpose(-2, -1)).var()))

    for seed in range(n_seed):
        model = build(seed=seed, preset="base", n_enc_layer=1, n_dec_layer=1)
        layer = model.encoder.layer_stack[0]
        assert isinstance(layer, EncoderLayer)
        layer.slf_attn.attention.register_forward_hook(note)
        src_seq = words(8, 20)
        with torch.no_grad():
            model.encoder(src_seq, get_pad_mask(src_seq, 0).unsqueeze(1))
    return found


SRC, TRG = ["der", "Hund", "läuft", "sehr", "schnell", "PAD", "PAD"], ["BOS", "the", "dog", "runs", "fast", "PAD"]
PACKED_SRC, PACKED_TRG = ["der", "Hund", "läuft", "es", "regnet"], ["BOS", "the", "dog", "runs", "BOS", "it", "rains"]


def masks() -> list[tuple[str, str, Tensor, list[str], list[str]]]:
    """Title, who makes it, the mask, the words that look and those that are looked at. The masks are (1, ..., T, S)."""
    src_seq, trg_seq = (torch.tensor([[int(word != "PAD") for word in seq]]) for seq in (SRC, TRG))
    pad, back = get_pad_mask(src_seq, 0), get_subsequent_mask(trg_seq)
    both = get_pad_mask(trg_seq, 0) & back
    src = Packing.of(torch.tensor([0, 3, 5], dtype=torch.int32), longest=3, n=5)
    trg = Packing.of(torch.tensor([0, 4, 7], dtype=torch.int32), longest=4, n=7)

    def packed(query: Packing, key: Packing, causal: bool) -> Tensor:
        return PackedMask(query, key, causal).written_out()

    return [
        ("padding", "get_pad_mask", pad, SRC, SRC),
        ("not ahead", "get_subsequent_mask", back, TRG, TRG),
        ("both", "get_pad_mask & get_subsequent_mask", both, TRG, TRG),
        ("packed, encoder", "PackedMask", packed(src, src, False), PACKED_SRC, PACKED_SRC),
        ("packed, decoder", "PackedMask, causal", packed(trg, trg, True), PACKED_TRG, PACKED_TRG),
        ("packed, target to source", "PackedMask", packed(trg, src, False), PACKED_TRG, PACKED_SRC),
    ]


class Sharing(NamedTuple):
    """One way to share keys and values. kept: numbers that one target token leaves behind, in one layer."""

    n_head: int
    n_kv_head: int
    n_weight: int
    kept: int
    kept_by_model: int


@torch.no_grad()
def sharing(n_kv_head: int | None) -> Sharing:
    """Weights of one attention of base, and what decoding has stored after its first step."""
    model = build(n_vocab=100, **DECODING, n_kv_head=n_kv_head)
    layer = model.decoder.layer_stack[0]
    assert isinstance(layer, DecoderLayer)
    attention = layer.slf_attn
    state = model.start(words(1, 20, 100))
    model.step(torch.tensor([5]), state)
    kept = {name: tensor[:, :, :1].numel() for name, tensor in state.seen.items()}
    n_weight = sum(p.numel() for p in attention.parameters() if p.dim() > 1)
    one = kept["slf_k.0"] + kept["slf_v.0"]
    return Sharing(attention.n_head, attention.n_kv_head, n_weight, one, sum(kept.values()))


class Start(NamedTuple):
    """Sizes at the start. word, position: root mean squares of what is added up before the first layer. logit: the
    standard deviation of the logits. excess: by how much the mean loss over all words is above that of no opinion."""

    word: float
    position: float
    logit: float
    excess: float


@torch.no_grad()
def start(emb_init: str, scale: str) -> Start:
    """The sizes of base over a shared vocabulary."""
    model = build(preset="base", emb_init=emb_init, scale_emb_or_prj=scale)
    src_seq, trg_seq = words(4, 20), words(4, 20)
    position = model.encoder.position_enc(torch.zeros(1, 20, 512))
    logits = model(src_seq, trg_seq)
    assert isinstance(logits, Tensor)
    loss = (logits.logsumexp(-1) - logits.mean(-1)).mean()  # the cross-entropy of every word as gold, averaged
    word = model.encoder.embed(src_seq).square().mean().sqrt()
    return Start(*map(float, (word, position.square().mean().sqrt(), logits.std(), loss - math.log(N_VOCAB))))


class Backward(NamedTuple):
    """Norms of gradients at the start. encoder, decoder: of each layer's feed-forward matrix w_2, the lowest first;
    through: by which factor a gradient changes on its way down through each kind of sub-layer of the decoder; added:
    how large what attention over the source adds is, beside what it is added to."""

    encoder: list[float]
    decoder: list[float]
    through: dict[str, float]
    added: float


def backward(norm: str, n_layer: int) -> Backward:
    """The gradients of a model with n_layer layers in each stack, learning random words."""
    sizes = {"d_model": 256, "d_inner": 1024, "n_head": 4, "n_enc_layer": n_layer, "n_dec_layer": n_layer}
    model = build(n_vocab=1000, norm=norm, **sizes).train()
    outputs: list[tuple[str, Tensor]] = []

    def note(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            x = output[0] if isinstance(output, tuple) else output
            x.retain_grad()
            outputs.append((name, x))

        return hook

    branch: list[Tensor] = []
    residual: list[Tensor] = []
    for layer in model.decoder.layer_stack:
        assert isinstance(layer, DecoderLayer)
        for name, sublayer in layer.named_children():
            sublayer.register_forward_hook(note(name))
        layer.enc_attn.fc.register_forward_hook(lambda module, args, output: branch.append(output))
        layer.enc_attn.register_forward_pre_hook(lambda module, args: residual.append(args[0]))
    src_seq, trg_seq, gold = words(8, 20, 1000), words(8, 20, 1000), words(8, 20, 1000)
    logits = model(src_seq, trg_seq)
    assert isinstance(logits, Tensor)
    torch.autograd.backward(F.cross_entropy(logits.flatten(0, 1), gold.flatten()))
    norms = [(name, norm_of(x.grad)) for name, x in outputs]
    factors: dict[str, list[float]] = {name: [] for name in ("slf_attn", "enc_attn", "pos_ffn")}
    for (_, below), (name, above) in itertools.pairwise(norms):
        factors[name].append(below / above)
    through = {name: math.exp(sum(map(math.log, each)) / len(each)) for name, each in factors.items()}
    encoder, decoder = (
        [norm_of(weight.grad) for name, weight in stack.named_parameters() if name.endswith("pos_ffn.w_2.weight")]
        for stack in (model.encoder, model.decoder)
    )
    added = sum(norm_of(new) / norm_of(old) for new, old in zip(branch, residual, strict=True)) / n_layer
    return Backward(encoder, decoder, through, added)


def norm_of(x: Tensor | None) -> float:
    """The Euclidean norm of all numbers of x, which must be there."""
    assert x is not None
    return float(x.detach().norm())


def position_products(n: int, width: int, first: int) -> dict[str, Tensor]:
    """p_first · p_(first + distance) / width for distances 0, ..., n - 1: of the sinusoids, and of learned positions at
    the start."""
    table = sinusoids(0, first + n, width).double()
    table_alone = {"d_model": width, "d_inner": 1, "n_enc_layer": 1, "n_dec_layer": 1}
    model = build(n_vocab=100, position="learned", n_position=first + n, **table_alone)
    assert isinstance(model.encoder.position_enc, LearnedPositions)
    found = {"sinusoid": table, "learned": model.encoder.position_enc.pos_emb.weight.detach().double()}
    size = {name: rows.square().sum(1).mean() for name, rows in found.items()}
    return {name: rows[first:] @ rows[first] / size[name] for name, rows in found.items()}


def scores(first: int, n: int, d_k: int) -> dict[str, Tensor]:
    """Scores of one and the same query at position `first` with one and the same key 0, ..., n - 1 places further on:
    positions added, as sinusoids are, and turned, as by `rotate`. Products divided by sqrt(d_k)."""
    generator = torch.Generator().manual_seed(SEED)
    q, k = torch.randn(2, 1, 1, 1, d_k, generator=generator, dtype=torch.float64)
    k = (q + k) / 2**0.5  # alike, so that there is something to see
    table = sinusoids(first, n, d_k).double()
    added = (k + table) @ (q + table[0]).flatten()
    encoding = RotaryEncoding(d_k, first + n).double()
    turned = rotate(k.expand(1, 1, n, d_k), encoding(first, n)) @ rotate(q, encoding(first, 1)).flatten()
    return {"added": added.flatten() / d_k**0.5, "turned": turned.flatten() / d_k**0.5}


def flops_of(work: Any) -> int:
    """The operations of all matrix products in work(), a multiplication and an addition being two."""
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        work()
    return int(counter.get_total_flops())


def flops(lengths: Iterable[int], n_src: int = 20) -> dict[int, tuple[int, int]]:
    """{t: operations for the t-th target token of one sentence, by base: from the cache, and all computed again}."""
    model, last = build(**DECODING), torch.tensor([5])
    src_seq, found = words(1, n_src), {}
    with torch.inference_mode():
        src_mask = get_pad_mask(src_seq, 0).unsqueeze(1)
        enc_output, _ = model.encoder(src_seq, src_mask)
        state = model.start(src_seq)

    def again(trg_seq: Tensor) -> None:
        trg_mask = (get_pad_mask(trg_seq, 0) & get_subsequent_mask(trg_seq)).unsqueeze(1)
        hidden, *_ = model.decoder(trg_seq, trg_mask, enc_output, src_mask)
        model.project(hidden[:, -1])

    for t in sorted(lengths):
        while state.n_step < t - 1:
            with torch.inference_mode():
                model.step(last, state)
        cached = flops_of(lambda: model.step(last, state))
        found[t] = cached, flops_of(functools.partial(again, words(1, t)))
    return found


@torch.no_grad()
def cache_error(n_kv_head: int | None, position: str, n_step: int = 24) -> float:
    """The largest difference between the logits of steps and those of a whole forward pass, in double precision."""
    model = build(n_vocab=1000, preset="small", n_head=8, n_kv_head=n_kv_head, position=position).double()
    src_seq, trg_seq = words(3, 20, 1000), words(3, n_step, 1000)
    logits, state = model(src_seq, trg_seq), model.start(src_seq)
    assert isinstance(logits, Tensor)
    steps = torch.stack([model.step(trg_seq[:, t], state) for t in range(n_step)], dim=1)
    return float((steps - logits).abs().max())


@torch.no_grad()
def cache_sizes(n_kv_head: int | None, n_hypothesis: int, n_src: int = 20, n_step: int = 20) -> tuple[int, int]:
    """Numbers that base keeps of one sentence after so many steps: of the source, and of the target."""
    model = build(n_vocab=100, **DECODING, n_kv_head=n_kv_head)
    state = model.start(words(1, n_src, 100))
    state.reorder(torch.zeros(n_hypothesis, dtype=torch.long))
    for _ in range(n_step):
        model.step(torch.full((n_hypothesis,), 5), state)
    source = sum(tensor.numel() for name, tensor in state.per_sentence.items() if name.startswith("enc_"))
    assert state.ancestry is not None
    n_slot = state.ancestry.size(1)  # the tensors have room for more
    return source, sum(tensor[:, :, :n_slot].numel() for tensor in state.seen.values())
