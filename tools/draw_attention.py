"""Draw the pictures of docs/attention.md: python tools/draw_attention.py [--out docs/attention] [--only NAME ...]

The package itself computes every picture, with seeds and one thread: a rerun on the same machine gives the same bytes.
Prints a table of numbers for each picture. --check PAGE fails unless the page has the same tables; decimal numbers may
differ by 5 %. Shapes: B sentences, S source length, T target length, D width.
"""

import argparse
import io
import itertools
import math
import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import NullLocator
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from nmt.masks import PackedMask, Packing
from nmt.models.build import build_model
from nmt.models.transformer.Layers import DecoderLayer
from nmt.models.transformer.Models import Transformer, get_pad_mask, get_subsequent_mask
from nmt.models.transformer.Modules import RotaryEncoding, ScaledDotProductAttention, sinusoids
from nmt.ops import rotate
from nmt.recipe.model_options import ModelConfig

N_VOCAB = 8_000
N_KEY = 32  # keys of a query in the picture of the scale
SHARES: dict[str, int | None] = {"MHA": None, "GQA": 2, "MQA": 1}  # n_kv_head, of base's 8 heads
DECODING: dict[str, Any] = {"preset": "base", "n_enc_layer": 1}  # a step needs no encoder
BLUE, RED, GREEN, GREY, PALE, INK = "#0072B2", "#D55E00", "#009E73", "#8C8C8C", "#EDEFF2", "#222222"
SHADES = ("#7FB8DA", "#2F8AC0", "#004C78")  # of blue, for an increasing quantity
STYLE: Any = {
    "svg.hashsalt": "nmt", "savefig.dpi": 110, "savefig.facecolor": "white", "figure.facecolor": "white",
    "font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.edgecolor": GREY, "axes.labelcolor": INK, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "axes.axisbelow": True, "grid.color": "#E3E5E8", "grid.linewidth": 0.7,
    "xtick.color": INK, "ytick.color": INK, "text.color": INK, "ytick.minor.size": 0,
    "legend.frameon": False, "legend.fontsize": 8.5, "lines.linewidth": 1.8, "lines.markersize": 4,
}  # fmt: skip
Picture = tuple[Figure, str]


def build(n_vocab: int = N_VOCAB, **options: Any) -> Transformer:
    """Return an untrained model with these options, without dropout."""
    torch.manual_seed(1)
    model = build_model(ModelConfig(**{"dropout": 0.0} | options), n_vocab, n_vocab)
    assert isinstance(model, Transformer)
    return model.eval()


def words(n_sentence: int, n: int, n_vocab: int = N_VOCAB) -> Tensor:
    """Return (B, L) random ids without padding."""
    return torch.randint(3, n_vocab, (n_sentence, n))


def panels(n_panel: int, height: float, **options: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure with a row of panels."""
    figure = Figure(figsize=(9.0, height), layout="constrained")
    return figure, list(figure.subplots(1, n_panel, squeeze=False, **options)[0])


def table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table with a left-aligned first column and right-aligned numbers."""
    names, *cells = (list(map(str, row)) for row in (head, *rows))
    lines = [f"| {' | '.join(row)} |" for row in (names, *cells)]
    return "\n".join([lines[0], f"|---|{'---:|' * (len(names) - 1)}", *lines[1:]])


def brief(x: float) -> str:
    """Format a number with two or three significant digits."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2f}" if x >= 0.1 else f"{x:.2g}"


def powers(axes: Axes, values: Iterable[int]) -> None:
    """Give an x axis a logarithmic scale with ticks at these values only."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(values), [f"{value:,}" for value in values])
    axes.xaxis.set_minor_locator(NullLocator())


# -- scaled dot-product attention --------------------------------------------------------------------------------------


def focus(d_k: int, *, scaled: bool, n_query: int = 1024) -> tuple[float, float, float]:
    """Return variance of the scores, keys attended, and gradient of the softmax, for independent N(0, 1) q and k.

    Keys attended: exp(entropy) of the weights. Gradient: Frobenius norm of d weights / d scores. Medians over queries.
    """
    generator = torch.Generator().manual_seed(1)
    q, k = (torch.randn(n_query, 1, n, d_k, generator=generator, dtype=torch.float64) for n in (1, N_KEY))
    attention = ScaledDotProductAttention(d_k**0.5 if scaled else 1.0, attn_dropout=0.0)
    _, attn = attention(q, k, k, torch.ones(1, 1, 1, N_KEY, dtype=torch.bool), return_attns=True)
    assert attn is not None
    weight = attn.flatten(1)
    log_weight = weight.log()  # the scores minus a constant for each query, so of the same variance
    jacobian = torch.diag_embed(weight) - weight.unsqueeze(2) * weight.unsqueeze(1)
    n_seen = (-(weight * log_weight).sum(1)).exp()
    gradient = jacobian.flatten(1).norm(dim=1)
    return float(log_weight.var(1).mean()), float(n_seen.median()), float(gradient.median())


def scale() -> Picture:
    """The division by sqrt(d_k): score variance, keys attended, gradient."""
    widths = (4, 16, 64, 256, 1024)
    results = {scaled: [focus(d_k, scaled=scaled) for d_k in widths] for scaled in (False, True)}
    figure, all_axes = panels(3, 2.7)
    for scaled, color, label in ((False, RED, "q · k"), (True, BLUE, "q · k / √d_k")):
        for axes, values in zip(all_axes, zip(*results[scaled], strict=True), strict=True):
            axes.plot(widths, values, color=color, marker="o", label=label)
    all_axes[0].set(title="variance of the scores", yscale="log")
    all_axes[1].set(title=f"keys attended, of {N_KEY}", ylim=(0, N_KEY))
    all_axes[2].set(title="gradient through the softmax", yscale="log", ylim=(3e-5, 2))
    for axes in all_axes:
        powers(axes, widths)
        axes.set_xlabel("d_k")
    all_axes[0].legend()
    rows = [
        [f"{d_k:,}", *(f"{brief(plain)} / {brief(divided)}" for plain, divided in zip(*pair, strict=True))]
        for d_k, *pair in zip(widths, results[False], results[True], strict=True)
    ]
    return figure, table(["`d_k`", "variance", f"keys attended, of {N_KEY}", "gradient"], rows)


# -- masks -------------------------------------------------------------------------------------------------------------


def masks() -> Picture:
    """Every mask of the package."""
    src, trg = ["der", "Hund", "läuft", "sehr", "schnell", "PAD", "PAD"], ["BOS", "the", "dog", "runs", "fast", "PAD"]
    src_packed = ["der", "Hund", "läuft", "es", "regnet"]
    trg_packed = ["BOS", "the", "dog", "runs", "BOS", "it", "rains"]
    src_seq, trg_seq = (torch.tensor([[int(word != "PAD") for word in seq]]) for seq in (src, trg))
    pad_mask, causal_mask = get_pad_mask(src_seq, 0), get_subsequent_mask(trg_seq)
    trg_mask = get_pad_mask(trg_seq, 0) & causal_mask
    src_packing = Packing.of(torch.tensor([0, 3, 5], dtype=torch.int32), longest=3, n=5)
    trg_packing = Packing.of(torch.tensor([0, 4, 7], dtype=torch.int32), longest=4, n=7)
    encoder_mask = PackedMask(src_packing, src_packing, False).matrix()
    decoder_mask = PackedMask(trg_packing, trg_packing, True).matrix()
    cross_mask = PackedMask(trg_packing, src_packing, False).matrix()
    pictures = [
        ("padding", "get_pad_mask", pad_mask, src, src),
        ("causal", "get_subsequent_mask", causal_mask, trg, trg),
        ("both", "get_pad_mask & get_subsequent_mask", trg_mask, trg, trg),
        ("packed, encoder", "PackedMask", encoder_mask, src_packed, src_packed),
        ("packed, decoder", "PackedMask, causal", decoder_mask, trg_packed, trg_packed),
        ("packed, cross-attention", "PackedMask", cross_mask, trg_packed, src_packed),
    ]
    figure = Figure(figsize=(9.0, 6.2), layout=ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.1))
    for axes, (title, maker, mask, queries, keys) in zip(figure.subplots(2, 3).flat, pictures, strict=True):
        image = mask.flatten(0, -3)[0].expand(len(queries), len(keys))
        axes.imshow(image, cmap=ListedColormap([PALE, BLUE]), vmin=0, vmax=1, aspect="equal")
        axes.set_xticks(range(len(keys)), keys, rotation=55, ha="right", rotation_mode="anchor", fontsize=8.5)
        axes.set_yticks(range(len(queries)), queries, fontsize=8.5)
        axes.set_xticks([n - 0.5 for n in range(len(keys) + 1)], minor=True)
        axes.set_yticks([n - 0.5 for n in range(len(queries) + 1)], minor=True)
        axes.grid(False)
        axes.grid(which="minor", color="white", linewidth=2)
        axes.tick_params(which="both", left=False, bottom=False)
        axes.spines[:].set_visible(False)
        axes.set_title(title, pad=18)
        axes.text(0, 1.03, maker, transform=axes.transAxes, fontsize=8, color=GREY)
    shapes = [[title, f"`{maker}`", tuple(mask.shape), int(mask.sum())] for title, maker, mask, _, _ in pictures]
    return figure, table(["mask", "made by", "shape", "True"], shapes)


# -- heads and the cache -----------------------------------------------------------------------------------------------


def heads() -> Picture:
    """Query heads that share keys and values: weights of one attention, numbers kept a token and layer."""
    figure, all_axes = panels(3, 2.5)
    rows = []
    for axes, (name, n_kv_head) in zip(all_axes, SHARES.items(), strict=True):
        model = build(n_vocab=100, **DECODING, n_kv_head=n_kv_head)
        layer = model.decoder.layer_stack[0]
        assert isinstance(layer, DecoderLayer)
        n_head, n_group = layer.slf_attn.n_head, layer.slf_attn.n_kv_head
        n_weight = sum(p.numel() for p in layer.slf_attn.parameters() if p.dim() > 1)
        state = model.start(words(1, 20, 100))
        with torch.no_grad():
            model.step(torch.tensor([5]), state)
        n_kept = sum(state.kv_cache[key][:, :, :1].numel() for key in ("slf_k.0", "slf_v.0"))
        rows.append([name, n_group, f"{n_weight:,}", f"{n_kept:,}"])
        n_share = n_head // n_group
        for g in range(n_group):
            middle = g * n_share + (n_share - 1) / 2
            for h in range(g * n_share, (g + 1) * n_share):
                axes.plot([h, middle], [1, 0.1], color="#B9C2CC", linewidth=1.2, zorder=1)
            for y, color in ((0.1, GREEN), (-0.2, RED)):
                axes.scatter([middle], [y], s=190, marker="s", color=color, zorder=2)
        axes.scatter(range(n_head), [1] * n_head, s=190, marker="s", color=BLUE, zorder=2)
        for x in range(n_head):
            axes.text(x, 1, str(x), color="white", ha="center", va="center", fontsize=8, zorder=3)
        for y, letter in ((1, "q"), (0.1, "k"), (-0.2, "v")):
            axes.text(-0.75, y, letter, ha="right", va="center", style="italic")
        axes.text(3.5, -0.62, f"{n_kept:,} numbers a token and layer", ha="center", fontsize=9)
        axes.set(title=f"{name}: n_kv_head = {n_group}", xlim=(-1.3, 7.6), ylim=(-0.8, 1.3))
        axes.set_axis_off()
    return figure, table(["", "`n_kv_head`", "weights", "cached"], rows)


def flops_of(work: Callable[[], object]) -> int:
    """Count the operations of all matrix products in work(). A multiplication and an addition count as two."""
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        work()
    return int(counter.get_total_flops())


def flops(lengths: Iterable[int], n_src: int = 20) -> dict[int, tuple[int, int]]:
    """Return {t: operations of base for the t-th target token of a sentence, with and without the cache}."""
    model, last = build(**DECODING), torch.tensor([5])
    src_seq, counts = words(1, n_src), {}
    with torch.inference_mode():
        src_mask = get_pad_mask(src_seq, 0).unsqueeze(1)
        enc_output, _ = model.encoder(src_seq, src_mask)
        state = model.start(src_seq)

    def decode_prefix(trg_seq: Tensor) -> None:
        trg_mask = (get_pad_mask(trg_seq, 0) & get_subsequent_mask(trg_seq)).unsqueeze(1)
        hidden, *_ = model.decoder(trg_seq, trg_mask, enc_output, src_mask)
        model.project(hidden[:, -1])

    for t in sorted(lengths):
        while state.n_step < t - 1:
            with torch.inference_mode():
                model.step(last, state)
        counts[t] = flops_of(partial(model.step, last, state)), flops_of(partial(decode_prefix, words(1, t)))
    return counts


@torch.no_grad()
def cache_error(n_kv_head: int | None, position: str, n_step: int = 24) -> float:
    """Return the largest difference between the logits of steps and of a forward pass, in double precision."""
    model = build(n_vocab=1000, preset="small", n_head=8, n_kv_head=n_kv_head, position=position).double()
    src_seq, trg_seq = words(3, 20, 1000), words(3, n_step, 1000)
    logits, state = model(src_seq, trg_seq), model.start(src_seq)
    steps = torch.stack([model.step(trg_seq[:, t], state) for t in range(n_step)], dim=1)
    return float((steps - logits).abs().max())


@torch.no_grad()
def cache_sizes(n_kv_head: int | None, n_hypothesis: int = 5, n_src: int = 20, n_step: int = 20) -> tuple[int, int]:
    """Count the numbers that base caches for a sentence after n_step steps: source and target."""
    model = build(n_vocab=100, **DECODING, n_kv_head=n_kv_head)
    state = model.start(words(1, n_src, 100))
    state.reorder(torch.zeros(n_hypothesis, dtype=torch.long))
    for _ in range(n_step):
        model.step(torch.full((n_hypothesis,), 5), state)
    source = sum(tensor.numel() for name, tensor in state.per_sentence.items() if name.startswith("enc_"))
    assert state.ancestry is not None
    n_slot = state.ancestry.size(1)  # the tensors have spare room
    return source, sum(tensor[:, :, :n_slot].numel() for tensor in state.kv_cache.values())


def cache() -> Picture:
    """Cost and memory of a decoding step."""
    figure, (cost_axes, memory_axes) = panels(2, 2.8)
    lengths = (1, 2, 4, 8, 16, 32, 64)
    counts = flops(lengths)
    for n, (color, label) in enumerate(((BLUE, "with the cache"), (RED, "without"))):
        cost_axes.plot(lengths, [counts[t][n] / 1e6 for t in lengths], color=color, marker="o", label=label)
    cost_axes.set(title="MFLOP for target token t", yscale="log", xlabel="t", ylim=(40, 6000))
    powers(cost_axes, lengths)
    cost_axes.legend()
    sizes = {name: cache_sizes(n_kv_head) for name, n_kv_head in SHARES.items()}
    names = list(sizes)[::-1]
    source, target = ([sizes[name][i] / 1e3 for name in names] for i in (0, 1))
    memory_axes.barh(names, source, 0.55, color=GREEN, label="source, once a sentence")
    memory_axes.barh(names, target, 0.55, left=source, color=BLUE, label="target, 5 hypotheses")
    for n, parts in enumerate(zip(source, target, strict=True)):
        memory_axes.text(sum(parts) + 10, n, f"{sum(parts):,.0f}", va="center", fontsize=8.5)
    memory_axes.set(title="numbers held, in thousands", xlim=(0, 850))
    memory_axes.grid(axis="y", visible=False)
    memory_axes.legend(loc="lower right")
    kinds = itertools.product(SHARES.values(), ("sinusoid", "learned", "rotary"))
    error = max(cache_error(n_kv_head, position) for n_kv_head, position in kinds)
    rows = [[f"MFLOP for token {t}", *(f"{x / 1e6:,.1f}" for x in counts[t])] for t in (1, 8, 64)]
    same = "below 1e-12" if error < 1e-12 else f"{error:.1e}"
    return figure, table(["", "with the cache", "without"], [*rows, ["largest difference of a logit", same, ""]])


# -- norms -------------------------------------------------------------------------------------------------------------


def backward(norm: str, n_layer: int) -> tuple[list[float], list[float]]:
    """Return the gradient norms of w_2 by layer in encoder and decoder, lowest first, for a loss on random words."""
    sizes = {"d_model": 256, "d_inner": 1024, "n_head": 4, "n_enc_layer": n_layer, "n_dec_layer": n_layer}
    model = build(n_vocab=1000, norm=norm, **sizes).train()
    src_seq, trg_seq, gold = words(8, 20, 1000), words(8, 20, 1000), words(8, 20, 1000)
    torch.autograd.backward(F.cross_entropy(model(src_seq, trg_seq).flatten(0, 1), gold.flatten()))
    encoder, decoder = (
        [float(p.grad.norm()) for name, p in stack.named_parameters() if "pos_ffn.w_2.w" in name and p.grad is not None]
        for stack in (model.encoder, model.decoder)
    )
    return encoder, decoder


def norms() -> Picture:
    """Gradients by layer, for post-norm and pre-norm."""
    depths = (6, 12, 24)
    figure, all_axes = panels(4, 2.7, sharey=True)
    rows = []
    for k, norm in enumerate(("post", "pre")):
        for n, color in zip(depths, SHADES, strict=True):
            stacks = backward(norm, n)
            for axes, gradients in zip(all_axes[2 * k : 2 * k + 2], stacks, strict=True):
                axes.plot(range(1, n + 1), gradients, color=color, label=f"{n} layers")
            ratios = (brief(gradients[0] / gradients[-1]) for gradients in stacks)
            rows.append([f"{norm}, {n}", f"{stacks[1][-1]:.4f}", *ratios])
        for axes, stack in zip(all_axes[2 * k : 2 * k + 2], ("encoder", "decoder"), strict=True):
            axes.set(title=f"{norm}-norm, {stack}", yscale="log", xlabel="layer, 1 = lowest")
            axes.set_xticks([1, 6, 12, 18, 24])
    all_axes[0].set_ylabel("gradient norm of w_2")
    all_axes[0].legend(loc="lower right")
    head = ["`norm`, layers", "top of decoder", "encoder, lowest / top", "decoder, lowest / top"]
    return figure, table(head, rows)


@torch.no_grad()
def batchnorm() -> Picture:
    """A padded sentence in batches with other sentences, normalised by BatchNorm and by LayerNorm."""
    model = build(preset="base", emb_init="normal", scale_emb_or_prj="emb")
    sentence, n_draw, sizes = words(1, 12)[0], 32, (1, 2, 4, 8, 16, 32, 64)
    generator = torch.Generator().manual_seed(1)

    def normalised(n: int) -> list[Tensor]:
        """Return (12, 64) columns of the sentence in a batch of n: BatchNorm, BatchNorm without padding, LayerNorm."""
        lengths = [12, *torch.randint(3, 40, (n - 1,), generator=generator).tolist()]
        src_seq = torch.zeros(n, max(lengths), dtype=torch.long)
        for row, length in zip(src_seq, lengths, strict=True):
            row[:length] = torch.randint(3, N_VOCAB, (length,), generator=generator)
        src_seq[0, :12] = sentence
        x = model.encoder.embed(src_seq) + sinusoids(0, src_seq.size(1), 512)  # (B, L, D)
        is_word = src_seq != 0
        with_padding = (x[..., :64] * is_word.unsqueeze(-1)).flatten(0, 1)  # padding is zeros
        inputs = with_padding, x[is_word][:, :64]
        layer = F.layer_norm(x[0, :12], (512,))[:, :64]
        return [*(F.batch_norm(columns, None, None, training=True)[:12] for columns in inputs), layer]

    outputs = {
        n: [torch.stack(draws) for draws in zip(*(normalised(n) for _ in range(n_draw)), strict=True)] for n in sizes
    }
    names = {"BatchNorm, padding counted": RED, "BatchNorm, words alone": "#E8A33F", "LayerNorm": BLUE}
    figure, (values, change) = panels(2, 2.8)
    rows = []
    for k, (name, color) in enumerate(names.items()):
        values.plot(range(1, n_draw + 1), outputs[8][k][:, 3, 1], "o", color=color, label=name)
        by_size = [float((outputs[n][k] - outputs[1][k][0]).abs().mean()) for n in sizes]
        change.plot(sizes, by_size, color=color, marker="o", label=name)
        rows.append([name, *(f"{x:.2f}" for x in by_size)])
    values.set(title="one column of one token, in 32 batches of 8", xlabel="batch", ylabel="normalised value")
    change.set(title="mean change from a batch of one", xlabel="sentences in the batch", ylim=(-0.02, 0.62))
    powers(change, sizes)
    change.legend()
    return figure, table(["sentences in the batch", *sizes], rows)


# -- positions ---------------------------------------------------------------------------------------------------------


def scores(first: int, n: int, d_k: int) -> dict[str, Tensor]:
    """Return scores of a query at position `first` with a key 0, ..., n - 1 positions later: added and rotated."""
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 1, 1, 1, d_k, generator=generator, dtype=torch.float64)
    k = (q + k) / 2**0.5  # similar to q, so that the score is large
    codes = sinusoids(first, n, d_k).double()
    added = (k + codes) @ (q + codes[0]).flatten()
    encoding = RotaryEncoding(d_k, first + n).double()
    rotated = rotate(k.expand(1, 1, n, d_k), encoding(first, n)) @ rotate(q, encoding(first, 1)).flatten()
    return {"added": added.flatten() / d_k**0.5, "rotated": rotated.flatten() / d_k**0.5}


def positions() -> Picture:
    """Sinusoids, their products, and scores with positions added and rotated."""
    figure, (sines, products, by_distance) = panels(3, 3.0)
    n, width = 64, 64
    image = sinusoids(0, n, width)[:, 0::2].T
    sines.imshow(image, cmap="RdBu_r", vmin=-1.3, vmax=1.3, aspect="auto", interpolation="nearest")
    sines.set(title=f"sinusoids, width {width}", xlabel="position", ylabel="column (sines only)")
    sines.set_yticks(range(0, width // 2, 8), [str(2 * column) for column in range(0, width // 2, 8)])
    sines.grid(False)
    codes = sinusoids(0, n, 512).double()
    products.plot(codes @ codes[0] / 256, color=BLUE)
    products.set(title="p · p′ by distance", xlabel="distance")
    firsts = (0, 20, 100)
    by_first = {first: scores(first, n, 64) for first in firsts}
    for first, color in zip(firsts, SHADES, strict=True):
        by_distance.plot(by_first[first]["added"], color=color, linewidth=1.2, label=f"added, q at {first}")
    for first, color, linewidth in zip(firsts, ("#F6CDB0", "#E8873F", "#7A3300"), (6.0, 3.0, 0.9), strict=True):
        by_distance.plot(by_first[first]["rotated"], color=color, linewidth=linewidth, label=f"rotated, q at {first}")
    by_distance.set(title="score of one q and one k", xlabel="distance", ylim=(-1, 17))
    by_distance.legend(fontsize=8, ncols=2, loc="upper right", columnspacing=1, handlelength=1.2)
    added, rotated = (
        max(float((by_first[first][kind] - by_first[0][kind]).abs().max()) for first in firsts)
        for kind in ("added", "rotated")
    )
    same = "below 1e-6" if rotated < 1e-6 else f"{rotated:.1e}"
    row = ["largest change of a score when both words move", f"{added:.2f}", same]
    return figure, table(["", "sinusoids added", "rotary"], [row])


PICTURES: dict[str, Callable[[], Picture]] = {
    draw.__name__: draw for draw in (scale, masks, heads, norms, batchnorm, positions, cache)
}


# -- the command -------------------------------------------------------------------------------------------------------

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)?")


def alike(text: str, other: str) -> bool:
    """Return whether two texts differ only in the last digits of measured numbers, which depend on the machine."""
    if NUMBER.sub("#", text) != NUMBER.sub("#", other):
        return False
    values = [[float(number.replace(",", "")) for number in NUMBER.findall(line)] for line in (text, other)]
    return all(a == b or (a % 1 + b % 1 > 0 and math.isclose(a, b, rel_tol=0.05)) for a, b in zip(*values, strict=True))


def missing(table: str, page: str) -> list[str]:
    """Return the rows of a table that the page lacks."""
    lines = page.split("\n")
    return [row for row in table.split("\n") if not any(alike(row, line) for line in lines)]


def lean(svg: str) -> str:
    """Shrink an SVG to two thirds: no group names, hundredths of a point, no indentation."""
    svg = re.sub(r'<!--.*?-->| id="[A-Za-z0-9.]+_\d+"', "", svg)
    return re.sub(r"\s*\n\s*", "\n", re.sub(r"(\d*[1-9]\d*\.\d\d)\d+", r"\1", svg))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/attention"), help="the folder of the pictures")
    parser.add_argument("--only", nargs="+", choices=sorted(PICTURES), default=list(PICTURES), metavar="NAME")
    parser.add_argument("--check", type=Path, metavar="PAGE", help="fail unless this page has the numbers printed here")
    args = parser.parse_args()
    page = args.check.read_text(encoding="utf-8") if args.check else None
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # with more, the order of a sum and its last digits depend on the load of the machine
    absent = []
    for name in args.only:
        with matplotlib.rc_context(STYLE):
            figure, rows = PICTURES[name]()
            svg = io.StringIO()  # without date and version, the bytes change only with the picture
            figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
            (args.out / f"{name}.svg").write_text(lean(svg.getvalue()), encoding="utf-8")
        print(f"{name}\n\n{rows}\n", flush=True)
        if page is not None:
            absent += [f"{name}: {row}" for row in missing(rows, page)]
    if absent:
        sys.exit("\n".join([f"draw_attention: error: {args.check} does not have what was measured:", *absent]))


if __name__ == "__main__":
    main()
