"""Attention as a picture: matplotlib's figure objects without its global state, which work on any machine."""

import io
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib import font_manager, rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure, SubFigure

if TYPE_CHECKING:
    from nmt.evaluation.attention_page import Grid

# Inches. A cell is as high as a line of its label in a single picture, and smaller in a grid of many.
_CELL, _SMALL_CELL, _LETTER = 0.24, 0.13, 0.085
# Bound on the size of a picture, since agg draws at most 2^16 pixels a side.
_LONGEST_SIDE, _DPI = 60.0, 144
_LONGEST_TITLE = 120  # letters
_DATELESS: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
_INK, _FAINT = "#1f2933", "#7b8794"
_COLOURS = LinearSegmentedColormap.from_list("attention", ["#f7f9fb", "#b9d7ea", "#5b9bc8", "#1f5f99", "#0b2545"])
# matplotlib takes each character from the first of these fonts that has it. Fonts that are not installed are left out.
_FONTS = (
    "DejaVu Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans JP", "Noto Sans SC", "Hiragino Sans",
    "Yu Gothic", "Microsoft YaHei", "Malgun Gothic", "Arial Unicode MS", "WenQuanYi Zen Hei", "IPAexGothic",
    "Noto Sans", "Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans Devanagari", "Noto Sans Thai",
)  # fmt: skip


def picture(grids: Sequence["Grid"], form: str = "png") -> bytes:
    """Return the bytes of a png, svg or pdf with the grids from top to bottom. Equal grids give equal bytes."""
    sizes = list(map(_size, grids))
    width, height = max(width for width, _ in sizes), sum(height for _, height in sizes)
    shrink = min(1.0, _LONGEST_SIDE / width, _LONGEST_SIDE / height)
    figure = Figure(figsize=(width, height), dpi=_DPI * shrink, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    blocks = figure.subfigures(len(grids), 1, height_ratios=[height for _, height in sizes], squeeze=False)
    for block, grid in zip(blocks[:, 0], grids, strict=True):
        _draw(block, grid)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # A character without a glyph in the installed fonts is drawn as a box. The HTML page has the browser's fonts.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        with rc_context({"svg.hashsalt": "nmt"}):  # without it, names inside a .svg are random
            figure.savefig(buffer, format=form, metadata=_DATELESS.get(form))
    return buffer.getvalue()


def _size(grid: "Grid") -> tuple[float, float]:
    """Return width and height, in inches, of a sentence's block: cells, labels, title and colour bar."""
    rows = grid.rows
    cell, letter = (_CELL, _LETTER) if len(rows) == len(rows[0]) == 1 else (_SMALL_CELL, 0.62 * _LETTER)
    left, above = (letter * _widest(pieces) for pieces in (grid.queries, grid.keys))
    width = 1.8 + left + len(rows[0]) * (max(len(grid.keys) * cell, 0.9) + 0.2)
    height = 1.2 + above + len(rows) * (len(grid.queries) * cell + 0.4)
    return max(width, 0.6 + 0.1 * min(len(grid.title), _LONGEST_TITLE), 4.0), height


def _draw(block: SubFigure, grid: "Grid") -> None:
    installed = set(font_manager.get_font_names())
    fonts = [name for name in _FONTS if name in installed] or ["sans-serif"]
    style: dict[str, Any] = {"fontfamily": fonts, "parse_math": False}
    rows = grid.rows
    is_single = len(rows) == len(rows[0]) == 1
    caption = grid.caption + (f", {rows[0][0].name}" if is_single else "")
    title = f"{grid.title[:_LONGEST_TITLE]}\n{caption}" if grid.title else caption
    block.suptitle(title, fontsize=10, color=_INK, **style)
    highest = max(float(panel.weights.max()) for row in rows for panel in row) or 1.0
    axes = block.subplots(len(rows), len(rows[0]), squeeze=False)
    style |= {"fontsize": 9.0 if is_single else 5.5}
    for i, row in enumerate(rows):
        for j, panel in enumerate(row):
            ax, (n_query, n_key) = axes[i, j], panel.weights.shape
            image = ax.imshow(
                panel.weights.numpy(), cmap=_COLOURS, vmin=0.0, vmax=highest, aspect="auto", interpolation="nearest"
            )
            if not is_single:  # the caption has the name of a single panel
                ax.set_title(panel.name, color=_FAINT, **style)
            ax.set(xticks=[], yticks=[])  # automatic ticks would take most of the time
            ax.xaxis.tick_top()
            if i == 0:
                ax.set_xticks(range(n_key), grid.keys, rotation=90, color=_INK, **style)
            if j == 0:
                ax.set_yticks(range(n_query), grid.queries, color=_INK, **style)
            ax.tick_params(which="both", length=0, pad=3)
            ax.spines[:].set_edgecolor("#d5dce3")
    bar = block.colorbar(image, ax=axes, fraction=0.05, aspect=12, shrink=0.6)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7, colors=_FAINT, length=2)


def _widest(pieces: Iterable[str]) -> int:
    """Return the width of the widest piece in letters; a Chinese, Japanese or Korean letter counts as two."""
    return max(sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in piece) for piece in pieces)
