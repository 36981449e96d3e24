"""The report as one page of HTML, for people: numbers, bars, examples. It has no script and loads nothing.

Its frame and style are `report_page.html` and `.css`. Texts of a corpus are hostile: each is escaped where it enters
the page, in `_text`, and the page's policy lets neither a script nor a picture in.
"""

import base64
import hashlib
import html
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nmt.data.report_words import percent, remarks
from nmt.errors import DataError

# A histogram as inline SVG.
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
            if (tall := (max(_HEIGHT * count / top, 0.8) if count else 0.0))
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


Facts = dict[str, Any]

_N_SCRIPTS = 8
_N_ROWS = 12
_MARK = b'<meta name="generator" content="nmt-preprocess">'
_LONGEST_HEAD = 2000


def page(
    facts: Facts, name: str, langs: tuple[str, str], inputs: Sequence[Mapping[str, Any]] = (), made: str = ""
) -> str:
    """The text of the page. facts: the content of report.json; inputs: of the manifest; made: by what, and when."""
    style = _file("css")
    digest = base64.b64encode(hashlib.sha256(style.encode("utf-8")).digest()).decode("ascii")
    parts = {
        "policy": f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        "style": style,
        "title": f"{_text(name)}: {_text(langs[0])} → {_text(langs[1])}",
        "body": "\n".join((*_sections(facts, langs), *_origin(inputs, made))),
    }
    before, *rest = _file("html").split("{{")  # and not replaced one by one: a text may say {{style}}
    return before + "".join(parts[key] + after for key, _, after in (one.partition("}}") for one in rest))


def refuse_foreign_page(path: Path) -> None:
    """Raise DataError if a page cannot be written there, or would replace a file that is none of ours."""
    if path.is_dir():
        raise DataError(f"{path}: is a folder; expected the name of a page to write, as report.html.")
    if path.exists():
        with path.open("rb") as file:
            if _MARK not in file.read(_LONGEST_HEAD):
                raise DataError(f"{path}: holds something else than a report of nmt-preprocess. Choose another name.")


def _sections(facts: Facts, langs: tuple[str, str]) -> Iterable[str]:
    sides = dict(
        zip(
            ("src", "trg"),
            (f"{side} ({_text(lang)})" for side, lang in zip(("Source", "Target"), langs, strict=True)),
            strict=True,
        )
    )
    for one in facts["alarms"]:
        yield (
            f'<div class="alarm" role="alert"><p><strong>Alarm.</strong> {_text(one["found"])}.</p>'
            f"<p><strong>What to do.</strong> {_text(one['advice'])}</p></div>"
        )
    if not facts["alarms"]:
        yield f'<p class="fine"><strong>No alarm.</strong>{" See the warnings." if facts["warnings"] else ""}</p>'
    for text in facts["warnings"]:
        yield f'<p class="warning">{_text(text)}</p>'
    yield _tiles(facts)
    yield from _corpora(facts)
    yield from _dropped(facts)
    yield from _samples(facts.get("samples", {}))
    if "lengths" in facts:
        yield from _shapes(facts, sides)
        yield from _leaks(facts)
        yield from _alignment(facts)
        yield from _duplicates(facts)
    if "subwords" in facts:
        yield from _subwords(facts["subwords"], sides)
    if "scripts" in facts:
        yield from _scripts(facts["scripts"], sides)


def _tiles(facts: Facts) -> str:
    n_dropped = sum(each["count"] for each in facts["dropped"].values())
    told = [("pairs read", facts["read"]), ("dropped", n_dropped), ("kept", facts["kept"])]
    return '<dl class="tiles">' + "".join(f"<div><dt>{name}</dt><dd>{n:,}</dd></div>" for name, n in told) + "</dl>"


def _corpora(facts: Facts) -> Iterable[str]:
    if corpora := facts.get("corpora"):
        body = []
        for one in corpora:
            why = ", ".join(f"{_text(reason)} {n:,}" for reason, n in one["dropped"].items())
            numbers = (one["read"], sum(one["dropped"].values()), one["kept"])
            body.append([f"{_text(one['name'])} <small>{why}</small>", *(f"{n:,}" for n in numbers)])
        yield "<h2>Corpora</h2>"
        yield from _long_table(["Corpus", "read", "dropped", "kept"], body, 1, "corpora")
    if told := remarks(facts):
        yield (
            "<h2>Also noticed</h2><ul>"
            + "".join(f"<li>{_text(text.removeprefix('note: '))}</li>" for text in told)
            + "</ul>"
        )


def _dropped(facts: Facts) -> Iterable[str]:
    if not facts["dropped"]:
        return
    yield "<h2>Why pairs were dropped</h2>"
    for reason, each in facts["dropped"].items():
        first = ", ".join(f"<bdi>{_text(place)}</bdi>" for place in each["first"])
        examples = [(example["place"], example) for example in facts["examples"].get(reason, ())]
        inside = _examples(examples) if examples else f"<p>At {first}</p>"
        share = percent(each["count"], facts["read"])
        yield _more(f"<b>{each['count']:,}</b> {_text(reason)} <small>{_text(share)}</small>", inside)


def _samples(samples: Mapping[str, Sequence[Mapping[str, str]]]) -> Iterable[str]:
    if any(samples.values()):
        yield "<h2>Pairs that are kept</h2>"
    for kind, name in (("random", "drawn at random"), ("longest", "the longest"), ("shortest", "the shortest")):
        if pairs := samples.get(kind):
            shown = _examples((each["place"], each) for each in pairs)
            yield _more(f"{len(pairs)} pairs, {name}" if kind == "random" else f"{name.capitalize()} pairs", shown)


def _origin(inputs: Sequence[Mapping[str, Any]], made: str) -> Iterable[str]:
    if inputs:
        body = [
            [
                f"{_text(each['name'])} <small>{_text(each.get('split', ''))} {_text(each.get('side', ''))}</small>",
                f"{each['size']:,}",
                f"<code>{_text(each['sha256'][:16])}</code>",
            ]
            for each in inputs
        ]
        yield "<h2>Files</h2>"
        yield from _long_table(["File", "bytes", "SHA-256 begins"], body, 1, "files")
    if made:
        yield f"<p><small>{_text(made)}</small></p>"


def _range(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _shapes(facts: Facts, sides: Mapping[str, str]) -> Iterable[str]:
    yield "<h2>Lengths</h2><p class=legend><span class=kept></span> kept <span class=gone></span> dropped</p>"
    yield '<div class="charts">'
    for side, name in sides.items():
        of = facts["lengths"][side]
        *edges, beyond = of["from"]
        width = (beyond - edges[-1]) if edges else 1
        labels = [f"{_range(a, a + width - 1)} characters" for a in edges] + [f"{beyond:,} characters and more"]
        ticks = [f"{edge:,}" for edge in edges] + [f"{beyond:,}+"]
        q = of["kept_quantiles"]
        note = f"characters a line; median {q['50']:,}, 99 % up to {q['99']:,}"
        yield _figure(name, note, bars(of["read"], of["kept"], labels, ticks))
    of = facts["ratios"]
    labels = [f"target/source about {middle:.3g}" for middle in of["middle"]]
    q = of["kept_quantiles"]
    note = (
        f"characters of the target for one of the source; median {q['50']:.2f}, 98 % from {q['1']:.2f} to {q['99']:.2f}"
    )
    yield _figure("Ratio", note, bars(of["read"], of["kept"], labels, [f"{m:.2g}" for m in of["middle"]]))
    yield "</div>"


def _leaks(facts: Facts) -> Iterable[str]:
    rows = facts["leaks"]["rows"]
    if not rows:
        return
    yield "<h2>Validation and test lines that are found again</h2>"
    yield (
        "<p>How many lines have the same source, target, or both, among the kept training pairs or in another set, or "
        "both with the sides exchanged: to the letter; nearly, but for case, punctuation and white space; but for "
        "numbers, too. Each level contains the one before.</p>"
    )
    yield '<div class="charts">'
    levels = {"exact": "to the letter", "near": "nearly", "numberless": "but for numbers"}
    for row in rows:
        parts = {"src": "source", "trg": "target", "pair": "pair", "reversed": "exchanged"}
        head = [f"{row['lines']:,} {_text(row['split'])} lines in {_text(row['in'])}", *parts.values()]
        yield _table(
            head, [[name, *(f"{row[level].get(part, 0):,}" for part in parts)] for level, name in levels.items()]
        )
    yield "</div>"
    examples = []
    for each in facts["leaks"]["examples"]:
        there = {"src": each["train_src"], "trg": each["train_trg"]}
        examples += [(each["place"], each), (f"found at {each['train_place']}", there)]
    if examples:
        yield _more("Examples", _examples(examples))


def _alignment(facts: Facts) -> Iterable[str]:
    yield "<h2>Are the files parallel?</h2>"
    bad: list[list[str]] = []
    fine: list[list[str]] = []
    for one in facts["alignment"]:
        found = [
            f"lines {each['first']:,} to {each['last']:,}: "
            + ("go with none near" if each["offset"] is None else f"shifted by {each['offset']:+d}")
            for each in one["stretches"]
        ]
        verdict = "; ".join(found) or ("yes" if one["judged"] else "cannot be told")
        names = dict.fromkeys((one["src"], one["trg"]))
        files = f"{'<br>'.join(map(_text, names))} <small>{_text(one['split'])}</small>"
        (bad if one["stretches"] else fine).append([files, verdict, f"{one['pairs']:,}"])
    yield from _long_table(["Files", "line by line", "pairs"], [*bad, *fine], 2, "pairs of files")


def _duplicates(facts: Facts) -> Iterable[str]:
    of = facts["duplicates"]
    yield "<h2>Repetitions</h2>"
    yield (
        f"<p><b>{of['pairs']:,}</b> kept pairs came before. <b>{of['sources']:,}</b> sources have several targets, "
        f"<b>{of['targets']:,}</b> targets several sources.</p>"
    )
    if of["most"]:
        yield _more(
            "Most frequent pairs", _examples((f"{e['times']:,} times, first {e['place']}", e) for e in of["most"])
        )


def _subwords(subwords: Facts, sides: Mapping[str, str]) -> Iterable[str]:
    yield "<h2>Subwords</h2>"
    head = ["", "words", "subwords", "a word", "characters each"]
    body = [
        [
            name,
            f"{of['words']:,}" if "words" in of else "–",
            f"{of['pieces']:,}",
            f"{of['pieces_per_word']:.2f}" if "words" in of else "–",
            f"{of['characters_per_piece']:.2f}",
        ]
        for name, of in ((name, subwords[side]) for side, name in sides.items())
    ]
    yield _table(head, body)
    named = {**sides, "joint": "Joint"} if "joint" in subwords else dict(sides)
    bounds = list(subwords["src"]["fewer_than"])
    head = ["Pieces of", "there are", "occur", *(f"fewer than {int(n):,} times" for n in bounds)]
    body = [
        [name, f"{of['size']:,}", f"{of['occur']:,}", *(f"{of['fewer_than'][n]:,}" for n in bounds)]
        for name, of in ((name, subwords[side]) for side, name in named.items())
    ]
    yield _table(head, body)
    for side, name in named.items():
        pieces = " ".join(
            f"<span class=piece><bdi>{_text(piece)}</bdi> <small>{n:,}</small></span>"
            for piece, n in subwords[side]["most_frequent"]
        )
        yield _more(f"Most frequent pieces, {name}", f"<p>{pieces}</p>")


def _scripts(scripts: Facts, sides: Mapping[str, str]) -> Iterable[str]:
    yield "<h2>Characters</h2>"
    for side, name in sides.items():
        counts = scripts[side]
        total = max(sum(counts.values()), 1)
        shown = list(counts.items())[:_N_SCRIPTS]
        if len(counts) > _N_SCRIPTS:
            shown.append((f"{len(counts) - _N_SCRIPTS} other kinds", sum(list(counts.values())[_N_SCRIPTS:])))
        rows = [[_text(kind), f"{n:,}", _text(percent(n, total))] for kind, n in shown]
        yield _table([name, "characters", "share"], rows)


def _figure(name: str, note: str, svg: str) -> str:
    return f"<figure><figcaption><b>{name}</b> <small>{note}</small></figcaption>{svg}</figure>"


def _table(head: Sequence[str], body: Iterable[Sequence[str]], n_text: int = 1) -> str:
    """Cells are HTML. n_text: columns that hold text; the others hold numbers."""

    def row(cells: Sequence[str], tag: str) -> str:
        of = (f"<{tag}{' class=n' if k >= n_text else ''}>{cell}</{tag}>" for k, cell in enumerate(cells))
        return f"<tr>{''.join(of)}</tr>"

    rows = "".join(row(cells, "td") for cells in body)
    return f'<div class="wide" tabindex="0"><table><thead>{row(head, "th")}</thead><tbody>{rows}</tbody></table></div>'


def _long_table(head: Sequence[str], body: Sequence[Sequence[str]], n_text: int, what: str) -> Iterable[str]:
    """A table of which the first rows are seen at once, the others when asked for."""
    yield _table(head, body[:_N_ROWS], n_text)
    if rest := body[_N_ROWS:]:
        yield _more(f"{len(rest):,} more {what}", _table(head, rest, n_text))


def _examples(examples: Iterable[tuple[str, Mapping[str, str]]]) -> str:
    rows = (
        f"<li><small class=place>{_text(place)}</small>{_line(each['src'])}{_line(each['trg'])}</li>"
        for place, each in examples
    )
    return f'<ul class="examples">{"".join(rows)}</ul>'


def _more(summary: str, inside: str) -> str:
    return f"<details><summary>{summary}</summary>{inside}</details>"


def _text(text: str) -> str:
    """A text as HTML that shows it: no markup, and nothing that acts on what stands around it."""
    shown = "".join(f"\\u{ord(c):04x}" if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") else c for c in text)
    return html.escape(shown, quote=True)


def _line(text: str) -> str:
    return f'<p dir="auto">{_text(text)}</p>' if text.strip() else "<p><small>(empty)</small></p>"


def _file(ending: str) -> str:
    return Path(__file__).with_name(f"report_page.{ending}").read_text(encoding="utf-8")
