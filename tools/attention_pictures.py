"""How the pictures of docs/attention.md look: one function a picture, each with the table that goes below it.

Nothing is measured here, but in attention_numbers.py; and nothing is written, but by draw_attention.py.
"""

from collections.abc import Callable, Iterable
from typing import Any

import attention_numbers as measured
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import NullLocator

from nmt.models.transformer.Modules import sinusoids

BLUE, RED, GREEN, GREY, PALE, INK = "#0072B2", "#D55E00", "#009E73", "#8C8C8C", "#EDEFF2", "#222222"
SHADES = ("#7FB8DA", "#2F8AC0", "#004C78")  # of blue, for what grows
WIDTH = 9.0  # inches, of every picture

STYLE: Any = {
    "svg.hashsalt": "nmt",
    "savefig.dpi": 110,
    "savefig.facecolor": "white",
    "figure.facecolor": "white",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E5E8",
    "grid.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "ytick.minor.size": 0,
    "lines.linewidth": 1.8,
    "lines.markersize": 4,
}

Picture = tuple[Figure, str]


def panels(n: int, height: float, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure with n panels beside each other."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, list(figure.subplots(1, n, squeeze=False, **options)[0])


def table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Markdown: the first column to the left, numbers to the right."""
    names = [str(name) for name in head]
    lines = [names, ["---", *["---:"] * (len(names) - 1)], *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def brief(x: float) -> str:
    """Two or three digits that matter."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2f}" if x >= 0.1 else f"{x:.2g}"


def powers(axes: Axes, values: Iterable[int]) -> None:
    """A logarithmic x axis with these ticks alone, written out."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(values), [f"{value:,}" for value in values])
    axes.xaxis.set_minor_locator(NullLocator())


def scale() -> Picture:
    """What the division by sqrt(d_k) is for."""
    widths = (4, 16, 64, 256, 1024)
    found = {scaled: [measured.focus(d_k, scaled=scaled) for d_k in widths] for scaled in (False, True)}
    figure, (variance, n_seen, slope) = panels(3, 2.9)
    for scaled, color, label in ((False, RED, "q · k"), (True, BLUE, "q · k / √d_k")):
        rows = found[scaled]
        style: dict[str, Any] = {"color": color, "marker": "o", "label": label}
        variance.plot(widths, [row.variance for row in rows], **style)
        n_seen.plot(widths, [row.n_seen for row in rows], **style)
        slope.plot(widths, [row.slope for row in rows], **style)
        slope.plot(widths, [row.mean_slope for row in rows], color=color, linewidth=0.9)
    variance.set(title="variance of the scores", yscale="log")
    n_seen.set(title=f"keys looked at, of {measured.N_KEY}", ylim=(0, measured.N_KEY))
    slope.set(title="gradient through the softmax", yscale="log", ylim=(3e-5, 2))
    slope.text(4.3, 6e-5, "dots: median query\nthin: mean", fontsize=8.5, color=GREY)
    for axes in (variance, n_seen, slope):
        powers(axes, widths)
        axes.set_xlabel("d_k")
    variance.legend()
    names = ("variance", "n_seen", "slope", "mean_slope")
    cells = [
        [f"{d_k:,}", *(f"{brief(getattr(plain, name))} / {brief(getattr(divided, name))}" for name in names)]
        for d_k, plain, divided in zip(widths, found[False], found[True], strict=True)
    ]
    at_start = measured.variances_at_the_start()
    mean = sum(at_start) / len(at_start)
    cells.append([f"base, 64: mean of {len(at_start)} seeds", f"{brief(mean)} / {brief(mean / 64)}", "", "", ""])
    cells.append(["lowest … highest of them", f"{brief(min(at_start))} … {brief(max(at_start))}", "", "", ""])
    head = ["`d_k`", "variance", f"keys looked at, of {measured.N_KEY}", "gradient, median", "gradient, mean"]
    return figure, table(head, cells)


def masks() -> Picture:
    """Every mask of the package as it is."""
    found = measured.masks()
    figure = Figure(figsize=(WIDTH, 6.2), layout=ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.1))
    for axes, (title, maker, mask, queries, keys) in zip(figure.subplots(2, 3).flat, found, strict=True):
        shown = mask.flatten(0, -3)[0].expand(len(queries), len(keys))
        axes.imshow(shown, cmap=ListedColormap([PALE, BLUE]), vmin=0, vmax=1, aspect="equal")
        axes.set_xticks(range(len(keys)), keys, rotation=55, ha="right", rotation_mode="anchor", fontsize=8.5)
        axes.set_yticks(range(len(queries)), queries, fontsize=8.5)
        axes.set_xticks([n - 0.5 for n in range(len(keys) + 1)], minor=True)
        axes.set_yticks([n - 0.5 for n in range(len(queries) + 1)], minor=True)
        axes.grid(False)
        axes.grid(which="minor", color="white", linewidth=2)
        axes.tick_params(which="both", left=False, bottom=False)
        axes.spines[:].set_visible(False)
        axes.set_title(f"{title}", pad=18)
        axes.text(0, 1.03, maker, transform=axes.transAxes, fontsize=8, color=GREY)
    shapes = [[title, f"`{maker}`", tuple(mask.shape), int(mask.sum())] for title, maker, mask, _, _ in found]
    return figure, table(["mask", "made by", "shape", "places that are True"], shapes)


def heads() -> Picture:
    """Which query heads share which keys and values, and what that saves."""
    found = {name: measured.sharing(n_kv_head) for name, n_kv_head in measured.SHARES.items()}
    figure, all_axes = panels(3, 2.5)
    for axes, (name, one) in zip(all_axes, found.items(), strict=True):
        n_share = one.n_head // one.n_kv_head
        for g in range(one.n_kv_head):
            middle = g * n_share + (n_share - 1) / 2
            for h in range(g * n_share, (g + 1) * n_share):
                axes.plot([h, middle], [1, 0.1], color="#B9C2CC", linewidth=1.2, zorder=1)
            for y, color in ((0.1, GREEN), (-0.2, RED)):
                axes.scatter([middle], [y], s=190, marker="s", color=color, zorder=2)
        axes.scatter(range(one.n_head), [1] * one.n_head, s=190, marker="s", color=BLUE, zorder=2)
        for x in range(one.n_head):
            axes.text(x, 1, str(x), color="white", ha="center", va="center", fontsize=8, zorder=3)
        for y, word in ((1, "q"), (0.1, "k"), (-0.2, "v")):
            axes.text(-0.75, y, word, ha="right", va="center", style="italic")
        axes.text(3.5, -0.62, f"{one.kept:,} numbers a token and layer", ha="center", fontsize=9)
        axes.set(title=f"{name}: n_kv_head = {one.n_kv_head}", xlim=(-1.3, 7.6), ylim=(-0.8, 1.3))
        axes.set_axis_off()
    rows = [
        [name, one.n_kv_head, f"{one.n_weight:,}", f"{one.kept:,}", f"{one.kept_by_model:,}"]
        for name, one in found.items()
    ]
    head = ["", "`n_kv_head`", "weights of one attention", "numbers kept a token: one layer", "six layers"]
    return figure, table(head, rows)


def embeddings() -> Picture:
    """How large words, positions and logits are before the first update."""
    scales = ("emb", "prj", "none")
    found = {(init, scale): measured.start(init, scale) for init in ("xavier", "normal") for scale in scales}
    figure, (words, logits) = panels(2, 3.0)
    lowest = 5e-3
    for n, init in enumerate(("xavier", "normal")):
        places = [i + 0.36 * (n - 0.5) for i in range(len(scales))]
        for axes, name in ((words, "word"), (logits, "logit")):
            sizes = [getattr(found[init, scale], name) for scale in scales]
            heights = [size - lowest for size in sizes]
            axes.bar(places, heights, 0.34, lowest, color=(SHADES[0], SHADES[2])[n], label=f"emb_init: {init}")
            for x, size in zip(places, sizes, strict=True):
                axes.text(x, size * 1.1, brief(size), ha="center", fontsize=8.5)
    position = found["normal", "emb"].position
    words.axhline(position, color=RED, linewidth=1.5)
    words.text(2.45, position * 1.12, f"positions {brief(position)}", color=RED, ha="right", fontsize=8.5)
    words.set_title("words that enter the first layer (r.m.s.)")
    logits.set_title("logits (standard deviation)")
    for axes in (words, logits):
        axes.set(yscale="log", ylim=(lowest, 4), xlabel="scale_emb_or_prj")
        axes.set_xticks(range(len(scales)), scales)
        axes.grid(axis="x", visible=False)
    logits.legend(loc="upper center", ncols=2)
    rows = [
        [f"{init}, {scale}", *map(brief, (one.word, one.position, one.logit)), f"{one.excess:.2f}"]
        for (init, scale), one in found.items()
    ]
    return figure, table(["`emb_init`, `scale_emb_or_prj`", "words", "positions", "logits", "loss less ln V"], rows)


def norms() -> Picture:
    """How far down a gradient comes, by where the norms are."""
    depths = (6, 12, 24)
    found = {(norm, n): measured.backward(norm, n) for norm in ("post", "pre") for n in depths}
    figure, all_axes = panels(4, 2.9, sharey=True)
    stacks = [(norm, stack) for norm in ("post", "pre") for stack in ("encoder", "decoder")]
    for axes, (norm, stack) in zip(all_axes, stacks, strict=True):
        for n, color in zip(depths, SHADES, strict=True):
            gradients = getattr(found[norm, n], stack)
            axes.plot(range(1, n + 1), gradients, color=color, label=f"{n} layers")
        axes.set(title=f"{norm}-norm, {stack}", yscale="log", xlabel="layer, 1 = lowest")
        axes.set_xticks([1, 6, 12, 18, 24])
    all_axes[0].set_ylabel("norm of the gradient of w_2")
    all_axes[0].legend(loc="lower right")
    rows = []
    for (norm, n), one in found.items():
        ratios = (stack[0] / stack[-1] for stack in (one.encoder, one.decoder))
        through = ", ".join(f"{one.through[name]:.2f}" for name in ("slf_attn", "enc_attn", "pos_ffn"))
        rows.append([f"{norm}, {n}", f"{one.decoder[-1]:.4f}", *map(brief, ratios), through, f"{one.added:.2f}"])
    head = ["`norm`, layers", "top of decoder", "encoder, lowest / top", "decoder, lowest / top"]
    return figure, table([*head, "through `slf_attn`, `enc_attn`, `pos_ffn`", "added by `enc_attn`"], rows)


def positions() -> Picture:
    """Where position is added, and where it is turned."""
    figure, (rows, products, scores) = panels(3, 3.0)
    n, width = 64, 64
    sines = sinusoids(0, n, width)[:, 0::2].T
    rows.imshow(sines, cmap="RdBu_r", vmin=-1.3, vmax=1.3, aspect="auto", interpolation="nearest")
    rows.set(title=f"sinusoids, width {width}", xlabel="position", ylabel="column (sines only)")
    rows.set_yticks(range(0, width // 2, 8), [str(2 * column) for column in range(0, width // 2, 8)])
    rows.grid(False)
    found = measured.position_products(n, 512, first=50)
    products.plot(found["sinusoid"], color=BLUE, label="sinusoid")
    products.plot(found["learned"], color=GREY, linewidth=1.2, label="learned, at the start")
    products.set(title="p · p′ by distance", xlabel="distance")
    products.legend()
    firsts = (0, 20, 100)
    by_first = {first: measured.scores(first, n, 64) for first in firsts}
    for first, color in zip(firsts, SHADES, strict=True):
        scores.plot(by_first[first]["added"], color=color, linewidth=1.2, label=f"added, q at {first}")
    for first, color, thick in zip(firsts, ("#F6CDB0", "#E8873F", "#7A3300"), (6.0, 3.0, 0.9), strict=True):
        scores.plot(by_first[first]["turned"], color=color, linewidth=thick, label=f"turned, q at {first}")
    scores.set(title="score of one q and one k", xlabel="distance", ylim=(-1, 17))
    scores.legend(fontsize=8, ncols=2, loc="upper right", columnspacing=1, handlelength=1.2)
    spread = {
        kind: max(float((by_first[first][kind] - by_first[0][kind]).abs().max()) for first in firsts)
        for kind in ("added", "turned")
    }
    turned = "below 1e-6" if spread["turned"] < 1e-6 else f"{spread['turned']:.1e}"
    return figure, table(
        ["", "sinusoids added", "rotary"],
        [["largest change of a score where both words move on", f"{spread['added']:.2f}", turned]],
    )


def cache() -> Picture:
    """What a step costs and what it leaves behind."""
    figure, (work, held) = panels(2, 3.0)
    lengths = (1, 2, 4, 8, 16, 32, 64)
    flops = measured.flops(lengths)
    for n, (color, label) in enumerate(((BLUE, "from the cache"), (RED, "all computed again"))):
        values = [flops[t][n] / 1e6 for t in lengths]
        work.plot(lengths, values, color=color, marker="o", label=label)
    work.set(title="MFLOP for target token t", yscale="log", xlabel="t", ylim=(40, 6000))
    powers(work, lengths)
    work.legend()
    sizes = {name: measured.cache_sizes(n_kv_head, 5) for name, n_kv_head in measured.SHARES.items()}
    names = list(sizes)[::-1]
    source, target = ([sizes[name][i] / 1e3 for name in names] for i in (0, 1))
    held.barh(names, source, 0.55, color=GREEN, label="source, once for the sentence")
    held.barh(names, target, 0.55, left=source, color=BLUE, label="target, 5 hypotheses")
    for n, (one, other) in enumerate(zip(source, target, strict=True)):
        held.text(one + other + 10, n, f"{one + other:,.0f}", va="center", fontsize=8.5)
    held.set(title="numbers held, in thousands", xlim=(0, 850))
    held.grid(axis="y", visible=False)
    held.legend(loc="lower right")
    error = max(
        measured.cache_error(n_kv_head, position)
        for n_kv_head in measured.SHARES.values()
        for position in ("sinusoid", "learned", "rotary")
    )
    rows: list[list[object]] = [[f"MFLOP for token {t}", *(f"{x / 1e6:,.1f}" for x in flops[t])] for t in (1, 8, 64)]
    total = [f"{x:,}" for x in map(sum, sizes.values())]
    found = table(["", "from the cache", "computed again"], rows)
    found += "\n\n" + table(
        ["numbers held", *sizes],
        [
            ["source, once for the sentence", *(f"{one[0]:,}" for one in sizes.values())],
            ["target, 5 hypotheses", *(f"{one[1]:,}" for one in sizes.values())],
            ["together", *total],
        ],
    )
    verdict = "below 1e-12" if error < 1e-12 else f"{error:.1e}"
    return figure, found + f"\n\nLargest difference of a logit, cached and computed again: {verdict}."


PICTURES: dict[str, Callable[[], Picture]] = {
    one.__name__: one for one in (scale, masks, heads, embeddings, norms, positions, cache)
}
