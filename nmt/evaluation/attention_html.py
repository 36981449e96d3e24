"""Attention as one page of HTML: no script, no font and no style from anywhere else.

Point at a word of the translation and the source is shaded by how much the model looked at it; below is the same
as a table. What is in the texts is escaped: a piece `<b>` is shown as such.
"""

from collections.abc import Sequence
from html import escape

from nmt.evaluation.attention_panels import Alignment, Panel

Grid = tuple[Alignment, list[list[Panel]]]

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Attention</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #1f2933; background: #fff; margin: 2rem; }}
h1 {{ font-size: 1.15rem; margin: 2.5rem 0 .2rem; }}
h1:first-of-type {{ margin-top: 0; }}
h2 {{ font-size: .85rem; font-weight: normal; color: #7b8794; margin: 0 0 .4rem; }}
p.hint {{ color: #7b8794; margin: 0 0 1.5rem; }}
.row {{ display: flex; flex-wrap: wrap; gap: 1.5rem 2.5rem; margin: 1rem 0; }}
.panel {{ max-width: 100%; overflow-x: auto; padding-bottom: .3rem; }}
.words {{ position: relative; padding-bottom: 2.6rem; }}
.words > b {{ font-weight: normal; display: inline-block; padding: 0 .2rem; border-radius: 3px; cursor: default; }}
.words > b:hover {{ background: #ffe8b3; }}
.words > b > span {{ visibility: hidden; position: absolute; left: 0; bottom: .3rem; white-space: nowrap; }}
.words:not(:hover) > b:first-child > span, .words > b:hover > span {{ visibility: visible; }}
.words i {{ font-style: normal; padding: .15rem .2rem; border-radius: 3px; }}
table {{ border-collapse: separate; border-spacing: 1px; font-size: .72rem; line-height: 1; }}
thead th {{ writing-mode: vertical-rl; transform: rotate(180deg); text-align: left; padding: .3rem 0; }}
th {{ font-weight: normal; }}
tbody th {{ text-align: right; padding-right: .4rem; white-space: nowrap; }}
td {{ width: 1.1rem; min-width: 1.1rem; height: 1.1rem; padding: 0; }}
tbody tr:hover th {{ font-weight: bold; }}
td:hover {{ outline: 2px solid #e0a100; }}
</style>
</head>
<body>
<p class="hint">Point at a piece of the translation: the darker a source piece, the more the model looked at it.</p>
{body}
</body>
</html>
"""


def page(grids: Sequence[Grid]) -> str:
    """The text of the page, the grids below each other."""
    body = []
    for alignment, rows in grids:
        if alignment.title:
            body.append(f"<h1>{escape(alignment.title)}</h1>")
        for row in rows:
            body.append('<div class="row">')
            body.extend(_panel(alignment, panel) for panel in row)
            body.append("</div>")
    return _PAGE.format(body="\n".join(body))


def _panel(alignment: Alignment, panel: Panel) -> str:
    src, trg = list(map(escape, alignment.src_pieces)), list(map(escape, alignment.trg_pieces))
    weights: list[list[float]] = panel.weights.tolist()
    highest = max(map(max, weights)) or 1.0
    words, table = [], []
    for piece, row in zip(trg, weights, strict=True):
        shaded = "".join(f'<i style="{_shade(w / highest)}">{s}</i>' for s, w in zip(src, row, strict=True))
        words.append(f"<b>{piece}<span>{shaded}</span></b>")
        cells = "".join(
            f'<td style="{_shade(w / highest)}" title="{piece} → {s}: {w:.3f}"></td>'
            for s, w in zip(src, row, strict=True)
        )
        table.append(f"<tr><th>{piece}</th>{cells}</tr>")
    head, rows = "".join(f"<th>{s}</th>" for s in src), "\n".join(table)
    return (
        f'<div class="panel"><h2>{escape(panel.name)}</h2><div class="words">{"".join(words)}</div>\n'
        f"<table><thead><tr><td></td>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
    )


def _shade(share: float) -> str:
    """Background for a weight as a share of the highest; light text where it would not be legible."""
    light = ";color:#fff" if share > 0.6 else ""
    return f"background:rgba(11,60,110,{share:.3f}){light}"
