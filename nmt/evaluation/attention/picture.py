"""Attention as a picture: matplotlib's figure objects, without its global state, so it draws on any machine."""

import gc
import io
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib import font_manager, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from nmt.evaluation.attention.page import KINDS, Alignment, Panel

Grid = tuple[Alignment, list[list[Panel]]]

# Inches. A cell is as high as a line of its label in a single picture, and smaller in a grid of many.
_CELL, _SMALL_CELL = 0.24, 0.13
_LETTER = 0.085
_GAP, _TITLE, _CAPTION = 0.3, 0.34, 0.2
_BAR = 1.0
# A picture never gets larger than this: agg cannot draw more than 2^16 pixels a side, and no screen needs them.
_LONGEST_SIDE, _DPI = 60.0, 144
_DATELESS: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
_INK, _FAINT = "#1f2933", "#7b8794"
_COLOURS = LinearSegmentedColormap.from_list("attention", ["#f7f9fb", "#b9d7ea", "#5b9bc8", "#1f5f99", "#0b2545"])
# matplotlib takes each character from the first of these that has it; those not installed are left out.
_FONTS = (
    "DejaVu Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans JP", "Noto Sans SC", "Hiragino Sans",
    "Yu Gothic", "Microsoft YaHei", "Malgun Gothic", "Arial Unicode MS", "WenQuanYi Zen Hei", "IPAexGothic",
    "Noto Sans", "Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans Devanagari", "Noto Sans Thai",
)  # fmt: skip


def picture(grids: Sequence[Grid], form: str = "png") -> bytes:
    """The bytes of a picture with the grids below each other: png, svg or pdf, the same ones for the same grids."""
    # A figure is full of reference cycles, clear() or not, and holds megabytes; in training Python would let a dozen of
    # them pile up before it looks for any. With nothing looked for while it is drawn, it is among the youngest, so that
    # all else in memory need not be looked through.
    was_enabled = gc.isenabled()
    gc.collect(0)
    gc.disable()
    try:
        return _drawn(grids, form)
    finally:
        gc.collect(0)
        if was_enabled:
            gc.enable()


def _drawn(grids: Sequence[Grid], form: str) -> bytes:
    blocks = [_Block(alignment, rows) for alignment, rows in grids]
    width = max(block.width for block in blocks)
    height = sum(block.height for block in blocks)
    shrink = min(1.0, _LONGEST_SIDE / width, _LONGEST_SIDE / height)
    figure = Figure(figsize=(width, height), dpi=_DPI * shrink, facecolor="white")
    FigureCanvasAgg(figure)
    top = height
    for block in blocks:
        block.draw(figure, top)
        top -= block.height
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # A character that no installed font has is drawn as a box; the page of HTML has the browser's fonts.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        with rc_context({"svg.hashsalt": "nmt"}):  # names inside a .svg are drawn by lot without it
            figure.savefig(buffer, format=form, metadata=_DATELESS.get(form))
    return buffer.getvalue()


class _Block:
    """One sentence pair: where its panels go, in inches, from the top left corner."""

    def __init__(self, alignment: Alignment, rows: list[list[Panel]]) -> None:
        self.alignment, self.rows = alignment, rows
        n_trg, n_src = len(alignment.trg_pieces), len(alignment.src_pieces)
        self.single = single = len(rows) == len(rows[0]) == 1
        cell = _CELL if single else _SMALL_CELL
        self.font_size = 9.0 if single else 5.5
        letter = _LETTER if single else _LETTER * 0.62
        self.panel_width, self.panel_height = n_src * cell, n_trg * cell
        self.left = 0.35 + letter * _widest(alignment.trg_pieces)
        self.above = 0.15 + letter * _widest(alignment.src_pieces)
        self.caption = KINDS[alignment.kind] + (f", {rows[0][0].name}" if single else "")
        self.title_height = (_TITLE if alignment.title else 0.1) + _CAPTION
        # The name of a panel stands over the labels of its columns, the labels only over the first row.
        self.name_height = 0.1 if single else 0.28
        self.step_x = max(self.panel_width, 0.9) + _GAP
        self.step_y = self.panel_height + self.name_height + 0.1
        body_width = self.left + len(rows[0]) * self.step_x + _BAR
        self.width = max(body_width, 0.4 + 0.088 * len(self._title()), 0.4 + 0.075 * len(self.caption), 3.0)
        self.height = self.title_height + self.above + len(rows) * self.step_y + 0.35

    def draw(self, figure: Figure, top: float) -> None:
        """Draw below `top`, inches from the bottom of the figure."""
        if self.alignment.title:
            self._write(figure, 0.2, top - 0.2, self._title(), size=10.5, weight="bold")
        caption_y = top - self.title_height + _CAPTION / 2
        self._write(figure, 0.2, caption_y, self.caption, size=9.0, colour=_FAINT)
        highest = max(float(panel.weights.max()) for row in self.rows for panel in row) or 1.0
        width, height = figure.get_size_inches()
        first_y = top - self.title_height - self.name_height - self.above
        axes = None
        for i, row in enumerate(self.rows):
            for j, panel in enumerate(row):
                x, y = self.left + j * self.step_x, first_y - i * self.step_y - self.panel_height
                axes = figure.add_axes((x / width, y / height, self.panel_width / width, self.panel_height / height))
                self._heat_map(axes, panel, highest, label_columns=i == 0, label_rows=j == 0)
                name_y = y + self.panel_height + (self.above + 0.05 if i == 0 else 0.09)
                if not self.single:  # one alone has its name in the caption
                    self._write(figure, x, name_y, panel.name, size=self.font_size, colour=_FAINT)
        assert axes is not None
        x = self.left + len(self.rows[0]) * self.step_x - 0.05
        bar_height = min(1.6, self.panel_height)
        bar = figure.add_axes((x / width, (first_y - bar_height) / height, 0.12 / width, bar_height / height))
        colour_bar = figure.colorbar(axes.images[0], cax=bar)
        colour_bar.outline.set_visible(False)
        bar.tick_params(labelsize=7, colors=_FAINT, length=2)

    def _title(self) -> str:
        title = self.alignment.title
        return title if len(title) <= 120 else title[:119] + "…"

    def _write(
        self, figure: Figure, x: float, y: float, text: str, *, size: float, colour: str = _INK, weight: str = "normal"
    ) -> None:
        width, height = figure.get_size_inches()
        figure.text(
            x / width, y / height, text, fontsize=size, fontfamily=_fonts(), fontweight=weight, color=colour,
            parse_math=False, va="center",
        )  # fmt: skip

    def _heat_map(self, axes: Axes, panel: Panel, highest: float, *, label_columns: bool, label_rows: bool) -> None:
        n_trg, n_src = panel.weights.shape
        axes.imshow(
            panel.weights.numpy(), cmap=_COLOURS, vmin=0.0, vmax=highest, aspect="auto", interpolation="nearest"
        )
        style: dict[str, Any] = {"fontsize": self.font_size, "fontfamily": _fonts(), "parse_math": False, "color": _INK}
        axes.set(xticks=[], yticks=[])  # those that it would find by itself take longer than all else
        axes.xaxis.tick_top()
        if label_columns:
            axes.set_xticks(range(n_src), self.alignment.src_pieces, rotation=90, **style)
        if label_rows:
            axes.set_yticks(range(n_trg), self.alignment.trg_pieces, **style)
        white: dict[str, Any] = {"color": "white", "linewidth": 0.6}
        axes.vlines([column - 0.5 for column in range(1, n_src)], -0.5, n_trg - 0.5, **white)
        axes.hlines([row - 0.5 for row in range(1, n_trg)], -0.5, n_src - 0.5, **white)
        axes.tick_params(which="both", length=0, pad=3)
        for spine in axes.spines.values():
            spine.set_edgecolor("#d5dce3")


def _widest(pieces: Iterable[str]) -> int:
    """Width of the widest piece in letters; Chinese, Japanese and Korean ones are two wide."""
    return max(sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in piece) for piece in pieces)


def _fonts() -> list[str]:
    installed = set(font_manager.get_font_names())
    return [name for name in _FONTS if name in installed] or ["sans-serif"]
