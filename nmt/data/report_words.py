"""The report in words: alarms, warnings, a summary of one screen, and a page.

All of it is made from the entries of report.json and nothing else. The page has no script and loads nothing; its frame
and style are `report_page.html` and `.css`. Texts of a corpus are hostile: `_text` escapes each, and the policy of the
page lets neither script nor picture in.
"""

import base64
import hashlib
import html
import itertools
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from nmt.data.letters import LINE_CAP, WORD_CAP
from nmt.data.text import Dress
from nmt.errors import DataError

# Beyond these shares something is seriously wrong.
MOST_LEAKED = 0.01  # of a validation or test set, as whole pairs
FEWEST_LEAKED = 2  # pairs
MOST_DROPPED = 0.5  # of the training pairs
MOST_SHIFTED = 0.01  # of the pairs of two files
SWAPPED = 0.9  # of the words that tell, on each side; in right order it is a few in a hundred

_MOST_STRETCHES = 3  # of a file, in words
_MOST_OF_A_KIND = 8  # corpora, notes, warnings that the summary has
_N_ROWS = 12  # of a table of the page that are seen at once
_MARK = b'<meta name="generator" content="nmt-preprocess">'
_LONGEST_HEAD = 2000

Facts = Mapping[str, Any]


class Alarm(TypedDict):
    """One thing that is seriously wrong."""

    found: str
    advice: str


_NOTES = {
    "crlf": "{n} lines ended with a carriage return, which was removed",
    "line_feed": "{n} texts had line feeds inside, which became spaces",
    "bom": "{n} files began with a byte order mark, which was removed",
    "bom_inside": "{n} lines have a byte order mark inside (files put together?), which was kept",
    "line_cap": f"{{n}} lines are longer than {LINE_CAP:,} characters: subwords were not learnt from their ends",
    "word_cap": f"{{n}} words are longer than {WORD_CAP:,} characters: subwords were learnt from their parts",
    "protected": "{n} pairs have the same items of data.protect on both sides: placeholders stand for them",
    "unlike_items": "{n} pairs have other items of data.protect on one side than on the other: they stay as they are",
    "language": "of {n} languages no script is known, so that no pair is dropped for another script (data.min_script; "
    "und: data.src_lang or data.trg_lang is missing)",
    "other_language": "{n} sides of training files look like another language than the recipe says "
    "(data.max_other_language drops such pairs)",
    "blank": "{n} pairs of validation or test sets have a side without text: they lower the scores",
    "base": "the training pairs of {n} runs or folders that this one begins with cannot be read: overlap with them is "
    "unknown",
    "control": "{n} lines have control characters or Unicode line breaks inside, which were kept",
}
_SIDE = {"src": "source", "trg": "target"}


def alarms(facts: Facts, on_dropped: str = "") -> list[Alarm]:
    """Alarms, each beyond a threshold that it names. on_dropped: advice where most pairs are."""
    found = [
        Alarm(
            found=f"the training files look swapped: the words of {one['train_src']}, the source, are those of "
            f"{one['trg']}, a target, and the words of {one['train_trg']} those of {one['src']} (alarm above "
            f"{percent(SWAPPED, 1)} of the words that tell)",
            advice="Swap the two files of --train (data.train.src and trg), or those of the other set, whichever are "
            "the wrong way round: a model learns the direction of the training files.",
        )
        for one in facts.get("swapped", ())
    ]
    for one in facts.get("alignment", ()):
        if (n := _n_shifted(one)) > MOST_SHIFTED * one["pairs"]:
            told, advice = _shift(one, one["stretches"][0])
            if n_more := len(one["stretches"]) - 1:
                told += f"; {n_more:,} more stretches are in the report"
            share = _share(n, one["pairs"], MOST_SHIFTED)
            found.append(
                Alarm(found=f"misaligned lines in {n:,} of {one['pairs']:,} pairs {share}: {told}", advice=advice)
            )
    n_dropped = _n_dropped(facts)
    if n_dropped > MOST_DROPPED * facts["read"]:
        reason = max(facts["dropped"], key=lambda reason: facts["dropped"][reason]["count"])
        told = f"{n_dropped:,} of {facts['read']:,} training pairs are dropped"
        told += f" {_share(n_dropped, facts['read'], MOST_DROPPED)}"
        found.append(
            Alarm(
                found=f"{told}, most for {reason} ({facts['dropped'][reason]['count']:,})",
                advice=on_dropped or "Look at the reasons, and at the first lines dropped for each.",
            )
        )
    for split, side, train, held in _dresses(facts):
        if split != "train" and train.differs(held):
            found.append(
                Alarm(
                    found=f"the {_SIDE[side]} side of {split} is written otherwise than that of training: "
                    f"{_dress(held)}, in training {_dress(train)} (alarm where only one looks processed by Moses)",
                    advice="Undo it there (unescape: true of the corpus in the recipe), or take text of one kind.",
                )
            )
    for row, part, n, chance in _overlaps(facts):
        if n > chance:
            share = _share(n, row["lines"], chance_overlap(facts))
            turned = " with source and target exchanged" if part == "reversed" else ""
            found.append(
                Alarm(
                    found=f"{n:,} of {row['lines']:,} {row['split']} pairs {share} are in {_where(row)}{turned}, "
                    f"ignoring case and punctuation; {row['exact'].get(part, 0):,} exactly",
                    advice="Take them out of the training files: a score on them measures memorisation.",
                )
            )
    return found


def warnings(facts: Facts) -> list[str]:
    """Return findings that are worth a look and may be right."""
    found = []
    for one in facts.get("alignment", ()):
        files = f"{one['src']} and {one['trg']}"
        if 0 < _n_shifted(one) <= MOST_SHIFTED * one["pairs"]:
            found += [" ".join(_shift(one, stretch)) for stretch in one["stretches"][:_MOST_STRETCHES]]
            if (n_more := len(one["stretches"]) - _MOST_STRETCHES) > 0:
                found.append(f"{files}: {n_more:,} more stretches of misaligned lines: see the report.")
        if not one["judged"] and one["pairs"] >= 1000:
            found.append(
                f"{files}: lines of one side tell nothing of their lines of the other, as where one file is in another "
                "order. Check that line n of one translates line n of the other; misaligned lines would not be found."
            )
    for row, part, n, chance in _overlaps(facts):
        of = f"of {row['lines']:,} {row['split']}"
        if 0 < n <= chance:
            turned = ", with source and target exchanged" if part == "reversed" else ""
            found.append(f"{n:,} {of} pairs are in {_where(row)}{turned}.")
        if part == "pair" and (n_src := row["near"]["src"]) > n:
            found.append(f"{n_src:,} {of} sources are in {_where(row)}, {n_src - n:,} of them with another target.")
    for row in facts.get("leaks", {}).get("rows", ()):
        if row["in"] == "valid" and (n := row["near"]["pair"]):
            of = f"{n:,} of {row['lines']:,} {row['split']} pairs"
            found.append(f"{of} are in the validation pairs, by which the best model is chosen.")
    again = facts.get("duplicates", {}).get("pairs", 0)
    if again > 0.1 * max(facts["kept"], 1):
        share = percent(again, facts["kept"])
        found.append(f"{again:,} kept pairs ({share}) are duplicates: data.drop_duplicates keeps one of each.")
    return found


def _share(n: float, of: float, limit: float) -> str:
    return f"({percent(n, of)}; alarm above {percent(limit, 1)})"


def _n_dropped(facts: Facts) -> int:
    return sum(each["count"] for each in facts["dropped"].values())


def _n_shifted(one: Facts) -> int:
    return sum(each["last"] - each["first"] + 1 for each in one["stretches"])


def _shift(one: Facts, stretch: Facts) -> tuple[str, str]:
    """A stretch of misaligned lines, and what to do about it."""
    src, trg, offset, first, last = one["src"], one["trg"], stretch["offset"], stretch["first"], stretch["last"]
    whole = last == one["pairs"] + one["from"] - 1
    lines = f"{src}:{first}: " + (f"from line {first:,} to the end" if whole else f"lines {first:,} to {last:,}")
    look = f"Look at both files around line {first:,}" + ("" if whole else f" and around line {last:,}")
    if offset is None:
        return f"{lines}, {src} and {trg} do not match, also not a few lines apart.", f"{look}."
    of_file = offset + one["trg_from"] - one["from"]  # a line of names above one side is none of the pairs
    n = "a line" if abs(offset) == 1 else f"{abs(offset)} lines"
    longer, shorter = (trg, src) if offset > 0 else (src, trg)
    harm = "training on such pairs teaches nothing" if one["split"] == "train" else "a score on such pairs is void"
    return (
        f"{lines}, line n of {src} goes with line n{of_file:+d} of {trg}: {n} too many in {longer}, or missing from "
        f"{shorter}, at about line {first:,}.",
        f"{look}, repair them and prepare again: {harm}.",
    )


def _dresses(facts: Facts) -> Iterable[tuple[str, str, Dress, Dress]]:
    """Of each split and side: how training is written there, and how the split is."""
    of = facts.get("dress", {})
    return ((split, side, Dress(**of["train"][side]), Dress(**of[split][side])) for split in of for side in of[split])


def _dress(of: Dress) -> str:
    apart = percent(of.apart, of.ends)
    return f"{of.entities:,} entities in {of.lines:,} lines, a space before {apart} of the full stops at their ends"


def _overlaps(facts: Facts) -> Iterable[tuple[Facts, str, int, float]]:
    """Each set, as pairs and with its sides exchanged: how many are in training, and how many may be by chance."""
    for row in facts.get("leaks", {}).get("rows", ()):
        if row["in"].startswith("train") and " or " not in row["in"]:
            chance = max(FEWEST_LEAKED - 1, chance_overlap(facts) * row["lines"])
            yield from ((row, part, row["near"].get(part, 0), chance) for part in ("pair", "reversed"))


def chance_overlap(facts: Facts) -> float:
    """The share of a validation or test set that may be in training: 1 %, and more where training repeats itself.

    A pair drawn as the training pairs were is one of them about as often as those occur more than once (Good and
    Turing): twice that share is allowed, up to 90 %.
    """
    again: float = facts.get("duplicates", {}).get("again", 0) / max(facts["kept"], 1)
    return min(0.9, MOST_LEAKED + 2 * again)


def _where(row: Facts) -> str:
    """Training pairs, those of this data or of the run that it begins with."""
    return f"the training pairs{row['in'].removeprefix('train')}"


def table(facts: Facts) -> list[str]:
    """One screen: the pairs, why some were dropped, what they are like, and at the end what is wrong with them."""
    corpora = facts.get("corpora", [])
    worst = sorted(range(len(corpora)), key=lambda n: corpora[n]["kept"] / max(1, corpora[n]["read"]))
    lines = []
    for one in (corpora[n] for n in sorted(worst[:_MOST_OF_A_KIND])):
        told = ", ".join(f"{reason} {n:,}" for reason, n in one["dropped"].items())
        n_dropped = f"{sum(one['dropped'].values()):,} dropped{f' ({told})' if told else ''}"
        lines.append(f"{one['name']}: {one['read']:,} read, {n_dropped}, {one['kept']:,} kept")
    return [
        *_counts(facts),
        *_first(lines, "corpora", len(corpora)),
        *_first(remarks(facts), "notes"),
        *_measures(facts),
        *_first([f"ALARM: {sentence(one)}" for one in facts.get("alarms", ())], "alarms"),
        *_first([f"warning: {text}" for text in facts.get("warnings", ())], "warnings"),
    ]


def _counts(facts: Facts) -> Iterable[str]:
    yield f"training pairs: {facts['read']:,} read, {_n_dropped(facts):,} dropped, {facts['kept']:,} kept"
    for reason, each in facts["dropped"].items():
        yield f"  {each['count']:>9,}  {reason:<18}  {shortened(each['first'])}"


def _first(texts: Sequence[str], what: str, n: int = 0) -> Iterable[str]:
    """Lines of the summary, not more than a screen has room for. n: how many there are, if these are not all."""
    yield from (f"  {text}" for text in texts[:_MOST_OF_A_KIND])
    if (n_more := max(n, len(texts)) - _MOST_OF_A_KIND) > 0:
        yield f"  ... {n_more:,} more {what}: see the report"


def remarks(facts: Facts) -> list[str]:
    """Return oddities that are harmless, and usual ratios of lengths."""
    lines = []
    for key, text in _NOTES.items():
        if n := facts["notes"].get(key):
            places = f": {shortened(facts['noted'][key])}" if key in facts["noted"] else ""
            lines.append(f"note: {text.format(n=f'{n:,}')}{places}")
    for split, side, _, one in _dresses(facts):
        if one.is_escaped or one.is_apart:
            lines.append(
                f"note: the {_SIDE[side]} side of {split} looks processed by the scripts of Moses: {_dress(one)}; a "
                "model learns to write so (unescape: true of the corpus undoes it)"
            )
    for name, usual in facts["usual_ratio"].items():
        kept = f"kept: {usual['low']:.2f} to {usual['high']:.2f}"
        lines.append(f"{name}: target/source length {usual['median']:.2f} (median, in characters); {kept}")
    return lines


def _measures(facts: Facts) -> Iterable[str]:
    if "lengths" in facts:
        ratio = facts["ratios"]
        told = [f"{side} {of['50']:,} (99 %: {of['99']:,})" for side, of in facts["lengths"].items()]
        told.append(f"trg/src {ratio['50']:.2f} (98 %: {ratio['1']:.2f} to {ratio['99']:.2f})")
        yield f"characters per line: {'; '.join(told)}"
        yield f"scripts: {'; '.join(f'{side} {_shares(of)}' for side, of in facts['scripts'].items())}"
    if subwords := facts.get("subwords"):
        told = []
        for side in _SIDE:
            per_word = f"{subwords[side]['pieces_per_word']:.2f} per word, " if "words" in subwords[side] else ""
            told.append(f"{side} {per_word}{subwords[side]['characters_per_piece']:.2f} characters each")
        yield f"subwords: {'; '.join(told)}"
        for side in ("joint",) if "joint" in subwords else _SIDE:
            use, rare = subwords[side], subwords[side]["fewer_than"]
            yield (
                f"  {side} vocabulary: {use['occur']:,} of {use['size']:,} pieces occur, {rare['10']:,} fewer than 10 "
                f"times, {rare['100']:,} fewer than 100 times"
            )
    if "duplicates" in facts:
        of = facts["duplicates"]
        yield (
            f"duplicates: {of['pairs']:,} pairs; {of['sources']:,} sources with several targets, {of['targets']:,} "
            "targets with several sources"
        )
        if rows := facts["leaks"]["rows"]:
            yield "overlap (source / target / pair / exchanged):        exactly         ignoring case and punctuation"
        for row in rows:
            exact, near = (
                " / ".join(f"{row[level].get(part, 0):,}" for part in ("src", "trg", "pair", "reversed"))
                for level in ("exact", "near")
            )
            yield f"  {row['lines']:>7,} {row['split']} lines in {row['in']:<16}  {exact:<20}  {near}"
        n_judged = sum(one["judged"] for one in facts["alignment"])
        stretches = [len(one["stretches"]) for one in facts["alignment"] if one["stretches"]]
        found = f"found in {len(stretches):,}" if stretches else "none found in any"
        more = f", stretches: {sum(stretches):,}" if stretches else ""
        judged = f"{len(facts['alignment']):,} pairs of files; {n_judged:,} could be judged"
        yield f"misaligned lines: {found} of {judged}{more}"


def sentence(alarm: Alarm) -> str:
    """An alarm as sentences: what was found, and the advice."""
    return f"{alarm['found'].rstrip('.')}. {alarm['advice']}"


def _shares(counts: dict[str, int]) -> str:
    """Scripts of letters by their share: `Latin 99.9 %, Greek 0.1 %`."""
    letters = {name: n for name, n in counts.items() if name[0].isupper()}
    shown = [f"{name} {percent(n, sum(letters.values()))}" for name, n in list(letters.items())[:3]]
    return (", ".join(shown) or "none") + (f" and {len(letters) - 3} more" if len(letters) > 3 else "")


def percent(n: float, of: float) -> str:
    """A share as people write it: `49.6 %`, `7 %`, `< 0.1 %`; `100 %` and `0 %` only where it is all or nothing."""
    share = 100 * n / of if of else 0.0
    if 0 < share < 0.1:
        return "< 0.1 %"
    if 99.9 < share < 100:
        return "> 99.9 %"
    return f"{share:.1f}".removesuffix(".0") + " %"


def shortened(places: Iterable[str]) -> str:
    """`a.de:3, a.de:8` with the file named once: `a.de:3, 8`."""
    parts = [(place, place.rpartition(":")[0]) for place in places]
    before = [None, *(file for _, file in parts)]
    return ", ".join(
        place.rpartition(":")[2] if file == last else place for (place, file), last in zip(parts, before, strict=False)
    )


# The page.


def page(
    facts: Facts, name: str, langs: tuple[str, str], inputs: Sequence[Mapping[str, Any]] = (), made: str = ""
) -> str:
    """The text of the page. facts: the content of report.json; inputs: of the manifest; made: by what, and when."""
    frame, style = (
        Path(__file__).with_name(f"report_page.{end}").read_text(encoding="utf-8") for end in ("html", "css")
    )
    digest = base64.b64encode(hashlib.sha256(style.encode("utf-8")).digest()).decode("ascii")
    parts = {
        "policy": f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        "style": style,
        "title": f"{_text(name)}: {_text(langs[0])} → {_text(langs[1])}",
        "body": "\n".join((*_verdict(facts), *_pairs(facts), *_files(facts, inputs, made))),
    }
    before, *rest = frame.split("{{")  # and not replaced one by one: a text may say {{style}}
    return before + "".join(parts[key] + after for key, _, after in (one.partition("}}") for one in rest))


def refuse_foreign_page(path: Path) -> None:
    """Raise DataError if a page cannot be written there, or would replace a file that is none of ours."""
    if path.is_dir():
        raise DataError(f"{path}: is a folder; expected the name of a page to write, as report.html.")
    if path.exists():
        with path.open("rb") as file:
            if _MARK not in file.read(_LONGEST_HEAD):
                raise DataError(f"{path}: holds something else than a report of nmt-preprocess. Choose another name.")


def _verdict(facts: Facts) -> Iterable[str]:
    for one in facts["alarms"]:
        yield (
            f'<div class="alarm" role="alert"><p><strong>Alarm.</strong> {_text(one["found"])}.</p>'
            f"<p><strong>What to do.</strong> {_text(one['advice'])}</p></div>"
        )
    if not facts["alarms"]:
        yield f'<p class="fine"><strong>No alarm.</strong>{" See the warnings." if facts["warnings"] else ""}</p>'
    yield from (f'<p class="warning">{_text(text)}</p>' for text in facts["warnings"])
    yield f"<h2>Summary</h2><pre>{'<br>'.join(map(_text, (*_counts(facts), *_measures(facts))))}</pre>"
    if told := [_text(text.removeprefix("note: ")) for text in remarks(facts)]:
        yield f"<h2>Also noticed</h2><ul><li>{'</li><li>'.join(told)}</li></ul>"


def _pairs(facts: Facts) -> Iterable[str]:
    """Examples of dropped, kept, overlapping and frequent pairs, and of pieces."""
    if facts["dropped"]:
        yield "<h2>Why pairs were dropped</h2>"
    for reason, each in facts["dropped"].items():
        inside = _examples((e["place"], e) for e in facts["examples"].get(reason, ()))
        if reason not in facts["examples"]:
            inside = f"<p>At {', '.join(f'<bdi>{_text(place)}</bdi>' for place in each['first'])}</p>"
        share = percent(each["count"], facts["read"])
        yield _more(f"<b>{each['count']:,}</b> {_text(reason)} <small>{_text(share)}</small>", inside)
    samples = {kind: pairs for kind, pairs in facts.get("samples", {}).items() if pairs}
    if samples:
        yield "<h2>Pairs that are kept</h2>"
    for kind, pairs in samples.items():
        title = f"{len(pairs)} pairs, drawn at random" if kind == "random" else f"The {kind} pairs"
        yield _more(title, _examples((e["place"], e) for e in pairs))
    if most := facts.get("duplicates", {}).get("most"):
        yield _more("Most frequent pairs", _examples((f"{e['times']:,} times, first {e['place']}", e) for e in most))
    if found := facts.get("leaks", {}).get("examples"):
        both = [
            ((e["place"], e), (f"training: {e['train_place']}", {"src": e["train_src"], "trg": e["train_trg"]}))
            for e in found
        ]
        yield _more("Overlap with the training pairs", _examples(itertools.chain.from_iterable(both)))
    for side, of in facts.get("subwords", {}).items():
        if "most_frequent" in of:
            pieces = (f"<bdi>{_text(piece)}</bdi> <small>{n:,}</small>" for piece, n in of["most_frequent"])
            inside = " ".join(f"<span class=piece>{piece}</span>" for piece in pieces)
            yield _more(f"Most frequent pieces, {side}", f"<p>{inside}</p>")


def _files(facts: Facts, inputs: Sequence[Mapping[str, Any]], made: str) -> Iterable[str]:
    """Tables of corpora, of alignment and of files."""
    if corpora := facts.get("corpora"):
        body = []
        for one in corpora:
            why = ", ".join(f"{_text(reason)} {n:,}" for reason, n in one["dropped"].items())
            numbers = (one["read"], sum(one["dropped"].values()), one["kept"])
            body.append([f"{_text(one['name'])} <small>{why}</small>", *(f"{n:,}" for n in numbers)])
        yield "<h2>Corpora</h2>" + _table(["Corpus", "read", "dropped", "kept"], body, 1, "corpora")
    if "alignment" in facts:
        body = []
        for one in sorted(facts["alignment"], key=lambda one: not one["stretches"]):  # what is wrong first
            found = [
                f"lines {each['first']:,} to {each['last']:,}: "
                + ("no match near" if each["offset"] is None else f"shifted by {each['offset']:+d}")
                for each in one["stretches"]
            ]
            names = "<br>".join(map(_text, dict.fromkeys((one["src"], one["trg"]))))
            verdict = "; ".join(found) or ("yes" if one["judged"] else "cannot be told")
            body.append([f"{names} <small>{_text(one['split'])}</small>", verdict, f"{one['pairs']:,}"])
        table_of_files = _table(["Files", "line by line", "pairs"], body, 2, "pairs of files")
        yield "<h2>Are the files parallel?</h2>" + table_of_files
    if inputs:
        body = []
        for each in inputs:
            of = f"<small>{_text(each.get('split', ''))} {_text(each.get('side', ''))}</small>"
            digest = f"<code>{_text(each['sha256'][:16])}</code>"
            body.append([f"{_text(each['name'])} {of}", f"{each['size']:,}", digest])
        yield "<h2>Files</h2>" + _table(["File", "bytes", "SHA-256 begins"], body, 1, "files")
    if made:
        yield f"<p><small>{_text(made)}</small></p>"


def _table(head: Sequence[str], body: Sequence[Sequence[str]], n_text: int, what: str) -> str:
    """A table whose first rows are seen at once, the others when asked for. Cells are HTML.

    n_text: columns that hold text; the others hold numbers.
    """

    def row(cells: Sequence[str], tag: str) -> str:
        of = (f"<{tag}{' class=n' if k >= n_text else ''}>{cell}</{tag}>" for k, cell in enumerate(cells))
        return f"<tr>{''.join(of)}</tr>"

    def whole(rows: Sequence[Sequence[str]]) -> str:
        inside = f"<thead>{row(head, 'th')}</thead><tbody>{''.join(row(cells, 'td') for cells in rows)}</tbody>"
        return f'<div class="wide" tabindex="0"><table>{inside}</table></div>'

    rest = body[_N_ROWS:]
    return whole(body[:_N_ROWS]) + (_more(f"{len(rest):,} more {what}", whole(rest)) if rest else "")


def _examples(examples: Iterable[tuple[str, Mapping[str, str]]]) -> str:
    rows = (
        f"<li><small class=place>{_text(place)}</small>{_line(each['src'])}{_line(each['trg'])}</li>"
        for place, each in examples
    )
    return f'<ul class="examples">{"".join(rows)}</ul>'


def _more(summary: str, inside: str) -> str:
    return f"<details><summary>{summary}</summary>{inside}</details>"


def _line(text: str) -> str:
    return f'<p dir="auto">{_text(text)}</p>' if text.strip() else "<p><small>(empty)</small></p>"


def _text(text: str) -> str:
    """A text as HTML that shows it: no markup, and nothing that acts on what stands around it."""
    shown = "".join(f"\\u{ord(c):04x}" if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") else c for c in text)
    return html.escape(shown, quote=True)
