"""The account of the training pairs: how many were read, kept and dropped, why, and where; what else was noticed.

What is measured of them is in `survey.py`, how it is said in words in `report_words.py`.
"""

import base64
import bisect
import hashlib
import html
import itertools
import random
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.data import filters
from nmt.data.dedup import N_NOTED, N_SHOWN
from nmt.data.filters import REASONS, UsualRatio
from nmt.data.report_words import alarms, percent, remarks, shortened, table, warnings
from nmt.data.scripts import is_in_another_script, scripts_of
from nmt.data.sources import Source
from nmt.data.subwords import VocabularyUse
from nmt.data.survey import FARTHEST, LONGEST, STEPS, Survey, Texts
from nmt.data.text import cut
from nmt.errors import DataError
from nmt.recipe.data_options import DataConfig

# Content of report.json from what a survey measured.
_MOST_BARS = 40
_N_DRAWN = 10  # pairs that are shown, drawn from the kept ones

_NEARLY_ALL = 0.9

# The places, file:line, and the texts of some kept pairs, by their numbers.
Kept = Callable[[Iterable[int]], dict[int, tuple[str, str, str]]]


def findings(
    survey: Survey,
    sources: Sequence[Source],
    held_out: Mapping[str, Texts],
    kept: Kept,
) -> dict[str, Any]:
    """Everything but what became of each pair."""
    leaks = [(split, *example) for split in survey.leaks.splits for example in survey.leaks.examples(split, N_SHOWN)]
    drawn = sorted(random.Random(0).sample(range(survey.n_kept), min(_N_DRAWN, survey.n_kept)))
    samples = {
        "random": drawn,
        "shortest": [number for _, number in survey.shortest],
        "longest": [number for _, number in survey.longest],
    }
    numbers = {number for *_, number in leaks} | {number for number, _ in survey.duplicates["most"]}
    numbers |= {number for some in samples.values() for number in some}
    train = kept(numbers)
    return {
        "leaks": {
            "rows": survey.leaks.rows(),
            "examples": [
                {
                    "level": level,
                    "part": part,
                    "place": _place(sources, split, held_out[split].ends, line),
                    "src": cut(held_out[split].src[line]),
                    "trg": cut(held_out[split].trg[line]),
                    "train_place": train[number][0],
                    "train_src": cut(train[number][1]),
                    "train_trg": cut(train[number][2]),
                }
                for split, level, part, line, number in leaks
            ],
        },
        "samples": {
            kind: [{"place": train[n][0], "src": cut(train[n][1]), "trg": cut(train[n][2])} for n in some]
            for kind, some in samples.items()
        },
        "duplicates": {
            **{key: survey.duplicates[key] for key in ("pairs", "again", "sources", "targets")},
            "most": [
                {"times": times, "place": train[n][0], "src": cut(train[n][1]), "trg": cut(train[n][2])}
                for n, times in survey.duplicates["most"]
            ],
        },
        "alignment": [
            {
                "split": source.split,
                "src": source.src.name,
                "trg": source.trg.name,
                "pairs": found.n_pair,
                "from": source.first_number,
                "trg_from": source.trg.first_number,
                "judged": found.can_be_judged,
                "strength": round(found.strength, 3),
                "stretches": [
                    {
                        "first": each.first + source.first_number - 1,
                        "last": each.last + source.first_number - 1,
                        "offset": each.offset,
                        "gain": round(each.gain, 1),
                    }
                    for each in found.stretches
                ],
            }
            for source, found in survey.alignments
        ],
        "lengths": {side: _lengths(survey.lengths[n]) for n, side in enumerate(("src", "trg"))},
        "ratios": _ratios(survey.ratios),
        "scripts": survey.scripts(),
        "dress": {
            split: {side: one._asdict() for side, one in zip(("src", "trg"), both, strict=True)}
            for split, both in survey.dress.items()
        },
    }


def _place(sources: Sequence[Source], split: str, ends: Sequence[int], line: int) -> str:
    """file:line of a line of a set, which is counted from 0 through all its files."""
    n = bisect.bisect_right(ends, line)
    source = [source for source in sources if source.split == split][n]
    return f"{source.src.name}:{line - (ends[n - 1] if n else 0) + source.first_number}"


def _lengths(counts: NDArray[np.int64]) -> dict[str, Any]:
    """counts: (2, LONGEST + 1) of read and kept lines -> bars of equal width, the last one open."""
    read, kept = counts
    last = int(np.searchsorted(np.cumsum(read), 0.995 * read.sum()))
    width = next(
        w
        for w in itertools.chain.from_iterable((a * 10**k for a in (1, 2, 5)) for k in itertools.count())
        if w * _MOST_BARS > last
    )
    n_bar = last // width + 1
    bars = [int(read[k * width : (k + 1) * width].sum()) for k in range(n_bar)]
    of_kept = [int(kept[k * width : (k + 1) * width].sum()) for k in range(n_bar)]
    beyond = n_bar * width
    return {
        "from": [k * width for k in range(n_bar)] + [beyond],
        "read": [*bars, int(read[beyond:].sum())],
        "kept": [*of_kept, int(kept[beyond:].sum())],
        "kept_quantiles": {str(q): _quantile(kept, q / 100) for q in (1, 50, 99, 100)},
        "longest_told": LONGEST,
    }


def _quantile(counts: NDArray[np.int64], share: float) -> int:
    total = int(counts.sum())
    return int(np.searchsorted(np.cumsum(counts), max(1, np.ceil(share * total)))) if total else 0


def _ratios(counts: NDArray[np.int64]) -> dict[str, Any]:
    """counts: (2, steps) of read and kept pairs -> bars over the steps that are not empty at the ends."""
    middle = [round(2.0 ** ((n - STEPS * FARTHEST) / STEPS), 4) for n in range(counts.shape[1])]
    some = np.flatnonzero(counts[0])
    first, last = (int(some[0]), int(some[-1])) if len(some) else (STEPS * FARTHEST, STEPS * FARTHEST)
    return {
        "middle": middle[first : last + 1],
        "read": counts[0, first : last + 1].tolist(),
        "kept": counts[1, first : last + 1].tolist(),
        "kept_quantiles": {str(q): middle[min(_quantile(counts[1], q / 100), len(middle) - 1)] for q in (1, 50, 99)},
    }


def nothing_left(facts: Mapping[str, Any], sources: Sequence[Source], data: DataConfig) -> str:
    """Return why no pair is left. facts: those of the report; sources: of all splits."""
    counts = {reason: each["count"] for reason, each in facts["dropped"].items()}
    reason, *others = sorted(counts, key=lambda reason: -counts[reason])
    n, n_read = counts[reason], facts["read"]
    many = "all" if n == n_read else "nearly all" if n >= _NEARLY_ALL * n_read else f"{n:,}"
    first = shortened(facts["dropped"][reason]["first"])
    told = f"No training pair is left of {n_read:,}: {many} dropped for {reason} ({first})"
    told += f": {advice_on_dropped(facts, sources, data)}"
    also = (f"{reason} {counts[reason]:,} ({shortened(facts['dropped'][reason]['first'])})" for reason in others)
    return f"{told} Others: {', '.join(also)}." if others else told


def advice_on_dropped(facts: Mapping[str, Any], sources: Sequence[Source], data: DataConfig) -> str:
    """Return what to do about the reason that most pairs are dropped for."""
    reason = max(facts["dropped"], key=lambda reason: facts["dropped"][reason]["count"], default=None)
    if reason == filters.SCRIPT:
        return _scripts(facts, sources, data)
    if reason in filters.OPTIONS:
        return f"Is that right? The option is data.{filters.OPTIONS[reason]}."
    return "Look at these lines: are they the files that were meant?"


def _scripts(facts: Mapping[str, Any], sources: Sequence[Source], data: DataConfig) -> str:
    """Tell which side is in another script than its language, by an example."""
    found = []
    for each in facts["examples"].get(filters.SCRIPT, ())[:1]:
        name = each["place"].rpartition(":")[0]
        source = next(source for source in sources if source.split == "train" and source.src.name == name)
        languages = data.languages_of(source.corpus)
        for side, language, file in zip(("src", "trg"), languages, (source.src, source.trg), strict=True):
            scripts = scripts_of(language)
            if is_in_another_script(each[side], scripts, data.filters_of(source.corpus).min_script):
                letters = ", ".join(sorted(scripts))
                found.append(
                    f"{side}_lang is {language} ({letters}), the letters of {file.name} are {_letters(each[side])}"
                )
    told = "; ".join(found) or f"expected are those of {data.src_lang} and {data.trg_lang}"
    return f"{told}. Is --langs (data.src_lang, data.trg_lang) right?"


def _letters(text: str) -> str:
    """The script that most letters of a text are of, by the names that Unicode gives them."""
    names = Counter(unicodedata.name(c, "unnamed").partition(" ")[0].capitalize() for c in text if c.isalpha())
    return names.most_common(1)[0][0]


@dataclass
class DataReport:
    """Account of the training pairs: read, kept, and dropped with file:line."""

    n_read: int = 0
    n_kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    first: dict[str, list[str]] = field(default_factory=dict)
    examples: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    notes: Counter[str] = field(default_factory=Counter)
    learnt_ratios: dict[str, UsualRatio] = field(default_factory=dict)  # of each source file, by its name
    noted: dict[str, list[str]] = field(default_factory=dict)
    survey: Survey | None = None
    vocabulary: VocabularyUse | None = None
    found: dict[str, Any] = field(default_factory=dict)
    corpora: list[dict[str, Any]] = field(default_factory=list)  # as the manifest tells them
    on_dropped: str = ""  # advice where most pairs are
    dropped_of: dict[int, Counter[str]] = field(default_factory=dict)  # of each corpus, by its number

    def note(self, key: str, place: str) -> None:
        """Count what is odd but harmless. place: as for `drop`."""
        self.notes[key] += 1
        places = self.noted.setdefault(key, [])
        if len(places) < N_NOTED:
            places.append(place)

    def drop(self, reason: str, n: int, shown: Iterable[tuple[str, Sequence[str]]], corpus: int = 0) -> None:
        """Count pairs of a corpus that are not kept, one at least.

        shown: file and line of the first few, with both texts if they are known.
        """
        self.dropped[reason] += n
        self.dropped_of.setdefault(corpus, Counter())[reason] += n
        places = self.first.setdefault(reason, [])
        for place, texts in itertools.islice(shown, N_SHOWN - len(places)):
            places.append(place)
            if texts:
                example = {"place": place, "src": cut(texts[0]), "trg": cut(texts[1])}
                self.examples.setdefault(reason, []).append(example)

    def conclude(
        self,
        sources: Sequence[Source],
        held_out: Mapping[str, Texts],
        kept: Kept,
    ) -> None:
        """Take over what the survey, which is finished, has found."""
        assert self.survey is not None
        self.found = findings(self.survey, sources, held_out, kept)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; docs/reference.md explains every entry."""
        reasons = [reason for reason in (*REASONS, *sorted(set(self.dropped) - set(REASONS))) if self.dropped[reason]]
        facts = {
            "read": self.n_read,
            "kept": self.n_kept,
            "dropped": {reason: {"count": self.dropped[reason], "first": self.first[reason]} for reason in reasons},
            "examples": {reason: self.examples[reason] for reason in reasons if reason in self.examples},
            "source_in_valid_or_test": self.survey.leaks.n_source if self.survey else 0,
            "usual_ratio": {name: usual._asdict() for name, usual in self.learnt_ratios.items()},
            "notes": {key: self.notes[key] for key in sorted(self.notes)},
            "noted": {key: self.noted[key] for key in sorted(self.noted)},
            **self.found,
        }
        if len(self.corpora) > 1:
            facts["corpora"] = [self._of_corpus(n) for n in range(len(self.corpora))]
        if self.vocabulary:
            facts["subwords"] = self.vocabulary.as_dict()
        return {**facts, "alarms": alarms(facts, self.on_dropped), "warnings": warnings(facts)}

    def _of_corpus(self, n: int) -> dict[str, Any]:
        name, n_kept, dropped = self.corpora[n]["name"], self.corpora[n]["n_pair"], self.dropped_of.get(n, Counter())
        reasons = dict(sorted(dropped.items(), key=lambda each: (-each[1], each[0])))
        return {"name": name, "read": n_kept + dropped.total(), "kept": n_kept, "dropped": reasons}

    def table(self) -> list[str]:
        """For people: one screen."""
        return table(self.as_dict())


# The page: summary, examples, files. It has no script and loads nothing. Its frame and style are `report_page.html` and
# `.css`. Texts of a corpus are hostile: each is escaped in `_text`, and the policy lets neither script nor picture in.
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
