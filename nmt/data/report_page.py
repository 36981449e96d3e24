"""The report as one page of HTML, for people: the summary, examples, files. It has no script and loads nothing.

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

from nmt.data.report_words import percent, remarks, table
from nmt.errors import DataError

Facts = dict[str, Any]

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
    for one in facts["alarms"]:
        yield (
            f'<div class="alarm" role="alert"><p><strong>Alarm.</strong> {_text(one["found"])}.</p>'
            f"<p><strong>What to do.</strong> {_text(one['advice'])}</p></div>"
        )
    if not facts["alarms"]:
        yield f'<p class="fine"><strong>No alarm.</strong>{" See the warnings." if facts["warnings"] else ""}</p>'
    for text in facts["warnings"]:
        yield f'<p class="warning">{_text(text)}</p>'
    yield f"<h2>Summary</h2><p>Source: {_text(langs[0])}, target: {_text(langs[1])}</p>"
    summary = table({**facts, "alarms": [], "warnings": [], "corpora": []})
    yield f"<pre>{'<br>'.join(map(_text, summary))}</pre>"
    yield from _corpora(facts)
    yield from _dropped(facts)
    yield from _samples(facts.get("samples", {}))
    if "leaks" in facts:
        yield from _leaks(facts["leaks"]["examples"])
        yield from _alignment(facts)
        most = facts["duplicates"]["most"]
        if most:
            yield _more(
                "Most frequent pairs", _examples((f"{e['times']:,} times, first {e['place']}", e) for e in most)
            )
    for side, of in facts.get("subwords", {}).items():
        if "most_frequent" in of:
            pieces = (f"<bdi>{_text(piece)}</bdi> <small>{n:,}</small>" for piece, n in of["most_frequent"])
            inside = " ".join(f"<span class=piece>{piece}</span>" for piece in pieces)
            yield _more(f"Most frequent pieces, {side}", f"<p>{inside}</p>")


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


def _leaks(found: Sequence[Mapping[str, str]]) -> Iterable[str]:
    examples: list[tuple[str, Mapping[str, str]]] = []
    for each in found:
        there = {"src": each["train_src"], "trg": each["train_trg"]}
        examples += [(each["place"], each), (f"found at {each['train_place']}", there)]
    if examples:
        yield _more("Validation and test lines that are found again", _examples(examples))


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
