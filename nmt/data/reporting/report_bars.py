"""A histogram as inline SVG: of each bar a lower part in full colour, a higher one pale. Numbers and labels only."""

import html
from collections.abc import Sequence

_WIDTH, _HEIGHT, _FOOT = 320.0, 110.0, 16.0
_N_TICK = 6


def bars(whole: Sequence[int], part: Sequence[int], labels: Sequence[str], ticks: Sequence[str]) -> str:
    """whole, part: how high each bar and its lower part are; labels: what a pointer on a bar shows; ticks: below."""
    n, top = max(len(whole), 1), max([1, *whole])
    step = _WIDTH / n
    drawn = []
    for k, (high, low, label) in enumerate(zip(whole, part, labels, strict=True)):
        shares = ((high, "gone"), (low, "kept"))
        rects = "".join(
            f'<rect class="{name}" x="{k * step:.2f}" y="{_HEIGHT - tall:.2f}" width="{max(step - 0.7, 0.5):.2f}" '
            f'height="{tall:.2f}"/>'
            for count, name in shares
            if (tall := _height(count, top))
        )
        title = f"{html.escape(label)}: {low:,} kept, {high - low:,} dropped"
        area = f'<rect class="area" x="{k * step:.2f}" y="0" width="{step:.2f}" height="{_HEIGHT:g}"/>'
        drawn.append(f"<g><title>{title}</title>{area}{rects}</g>")
    every = -(-n // _N_TICK)
    marks = "".join(
        f'<text x="{k * step:.2f}" y="{_HEIGHT + 12:g}">{html.escape(ticks[k])}</text>' for k in range(0, n, every)
    )
    view = f"0 0 {_WIDTH:g} {_HEIGHT + _FOOT:g}"
    return f'<svg viewBox="{view}" role="img" aria-label="{n} bars, the highest {top:,}">{"".join(drawn)}{marks}</svg>'


def _height(count: int, top: int) -> float:
    """What is there is seen, however little it is."""
    return max(_HEIGHT * count / top, 0.8) if count else 0.0
