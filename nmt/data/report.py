"""The account of the training pairs, and the report in words: alarms, warnings, a summary of one screen, and a page.

What is measured comes from `survey.py`. The words are made from report.json alone. Texts of a corpus are hostile:
`_text` escapes each, and the policy of the page lets neither script nor picture in.
"""

import html
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unicodedata import category

from nmt.data.dedup import N_NOTED, N_SHOWN
from nmt.data.filters import LOW_SCORE, OPTIONS, REASONS, SCRIPT, UsualRatio
from nmt.data.letters import LINE_CAP, WORD_CAP
from nmt.data.subwords import VocabularyUse
from nmt.data.survey import shown
from nmt.data.text import SIDES, Dress
from nmt.errors import DataError
from nmt.files import filled_page
from nmt.recipe.data_options import DataConfig

Facts = Mapping[str, Any]


@dataclass
class DataReport:
    """Account of the training pairs: read, kept, and dropped with file:line."""

    n_read: int = 0
    n_kept: int = 0
    dropped: dict[int, Counter[str]] = field(default_factory=dict)  # of each corpus, by its number
    first: dict[str, list[str]] = field(default_factory=dict)
    examples: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    notes: Counter[str] = field(default_factory=Counter)
    learnt_ratios: dict[tuple[int, str], UsualRatio] = field(default_factory=dict)  # of corpus and source file
    noted: dict[str, list[str]] = field(default_factory=dict)
    vocabulary: VocabularyUse | None = None
    found: dict[str, Any] = field(default_factory=dict)  # as the survey tells it
    corpora: list[dict[str, Any]] = field(default_factory=list)  # as the manifest tells them
    on_dropped: str = ""  # advice where most pairs are

    def note(self, key: str, place: str) -> None:
        """Count what is odd but harmless. place: as for `drop`."""
        self.notes[key] += 1
        places = self.noted.setdefault(key, [])
        if len(places) < N_NOTED:
            places.append(place)

    def drop(self, reason: str, n: int, first: Iterable[tuple[str, Sequence[str]]], corpus: int = 0) -> None:
        """Count pairs of a corpus that are not kept, one at least.

        first: file and line of the first few, with both texts if they are known.
        """
        self.dropped.setdefault(corpus, Counter())[reason] += n
        places = self.first.setdefault(reason, [])
        for place, texts in itertools.islice(first, N_SHOWN - len(places)):
            places.append(place)
            if texts:
                self.examples.setdefault(reason, []).append(shown(place, *texts))

    def as_dict(self) -> dict[str, Any]:
        """For JSON; docs/reference.md explains every entry."""
        dropped = sum(self.dropped.values(), Counter[str]())
        reasons = [reason for reason in (*REASONS, *sorted(set(dropped) - set(REASONS))) if reason in dropped]
        facts = {
            "read": self.n_read,
            "kept": self.n_kept,
            "dropped": {reason: {"count": dropped[reason], "first": self.first[reason]} for reason in reasons},
            "examples": {reason: self.examples[reason] for reason in reasons if reason in self.examples},
            "source_in_valid_or_test": 0,
            "usual_ratio": {name: usual._asdict() for (_, name), usual in self.learnt_ratios.items()},
            "notes": dict(sorted(self.notes.items())),
            "noted": dict(sorted(self.noted.items())),
            **self.found,
        }
        if len(self.corpora) > 1:
            facts["corpora"] = []
            for n, one in enumerate(self.corpora):
                of = self.dropped.get(n, Counter())
                counts = {"read": one["n_pair"] + of.total(), "kept": one["n_pair"], "dropped": dict(of.most_common())}
                facts["corpora"].append({"name": one["name"], **counts})
        if self.vocabulary:
            facts["subwords"] = self.vocabulary.as_dict()
        found = [{"found": found, "advice": advice} for found, advice in alarms(facts, self.on_dropped)]
        return {**facts, "alarms": found, "warnings": [*warnings(facts)]}

    def nothing_left(self, data: DataConfig) -> str:
        """Return why no pair is left."""
        dropped = self.as_dict()["dropped"]
        by_count = sorted(dropped.items(), key=lambda item: -item[1]["count"])
        told = (f"{each['count']:,} dropped for {reason} ({shortened(each['first'])})" for reason, each in by_count)
        advice = self.advice_on_dropped(data, besides="")
        return f"No training pair is left of {self.n_read:,}: {', '.join(told)}: {advice}"

    def advice_on_dropped(self, data: DataConfig, besides: str = LOW_SCORE) -> str:
        """Return what to do about the reason that most pairs are dropped for. besides: one that was asked for."""
        counts = {reason: one["count"] for reason, one in self.as_dict()["dropped"].items() if reason != besides}
        reason = max(counts, key=lambda reason: counts[reason], default=None)
        if reason == SCRIPT:
            told = (f"{side}_lang is {lang}" for side, lang in zip(SIDES, (data.src_lang, data.trg_lang), strict=True))
            first = self.examples[reason][0]
            seen = f"but of {first['place']} the sides are {first['src']!r} and {first['trg']!r}"
            return (
                f"{', '.join(told)}, {seen}. Is --langs (data.src_lang, data.trg_lang, or those of the corpus) right?"
            )
        if reason in OPTIONS:
            return f"Is that right? The option is data.{OPTIONS[reason]}."
        return "Look at these lines: are they the files that were meant?"


# Beyond these shares something is seriously wrong.
MOST_LEAKED = 0.01  # of a validation or test set, as whole pairs
FEWEST_LEAKED = 2  # pairs
MOST_DROPPED = 0.5  # of the training pairs
MOST_SHIFTED = 0.01  # of the pairs of two files
SWAPPED = 0.9  # of the words that tell, on each side; in right order it is a few in a hundred

_MOST_OF_A_KIND = 8  # corpora, notes, warnings that the summary has
_MARK = b'<meta name="generator" content="nmt-preprocess">'
_LONGEST_HEAD = 2000

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


def alarms(facts: Facts, on_dropped: str = "") -> Iterator[tuple[str, str]]:
    """Found and advice of each alarm; the threshold is in the text. on_dropped: advice where most pairs are."""
    for one in facts.get("swapped", ()):
        yield (
            f"the training files look swapped: the words of {one['train_src']}, the source, are those of "
            f"{one['trg']}, a target, and the words of {one['train_trg']} those of {one['src']} (alarm above "
            f"{percent(SWAPPED, 1)} of the words that tell)",
            "Swap the two files of --train (data.train.src and trg), or those of the other set, whichever are wrong: "
            "a model learns the direction of the training files.",
        )
    for one, n in _shifted(facts):
        if n > MOST_SHIFTED * one["pairs"]:
            told, advice = _shift(one)
            share = _share(n, one["pairs"], MOST_SHIFTED)
            yield f"misaligned lines in {n:,} of {one['pairs']:,} pairs {share}: {told}", advice
    if (n := n_lost(facts)) > MOST_DROPPED * (n_read := n + facts["kept"]):
        reason, most = max(facts["dropped"].items(), key=lambda item: (item[0] != LOW_SCORE, item[1]["count"]))
        yield (
            f"{n:,} of {n_read:,} training pairs are dropped {_share(n, n_read, MOST_DROPPED)}, most for "
            f"{reason} ({most['count']:,})",
            on_dropped or "Look at the reasons, and at the first lines dropped for each.",
        )
    for split, side, train, held in _dresses(facts):
        if split != "train" and train.differs(held):
            yield (
                f"the {_SIDE[side]} side of {split} is written otherwise than that of training: {_dress(held)}, in "
                f"training {_dress(train)} (alarm where only one looks processed by Moses)",
                "Undo it there (unescape: true of the corpus in the recipe), or take text of one kind.",
            )
    for row, part, n, chance in _overlaps(facts):
        if n > chance:
            yield (
                f"{n:,} of {row['lines']:,} {row['split']} pairs {_share(n, row['lines'], chance_overlap(facts))} are "
                f"in {_where(row, part)}, ignoring case and punctuation; {row['exact'].get(part, 0):,} exactly",
                "Take them out of the training files: a score on them measures memorisation.",
            )


def warnings(facts: Facts) -> Iterator[str]:
    """Findings that are worth a look and may be right."""
    for one, n in _shifted(facts):
        if 0 < n <= MOST_SHIFTED * one["pairs"]:
            yield f"misaligned lines in {n:,} of {one['pairs']:,} pairs: {' '.join(_shift(one))}"
        if not one["judged"] and one["pairs"] >= 1000:
            yield (
                f"{one['src']} and {one['trg']}: lines of one side tell nothing of their lines of the other, as where "
                "one file is in another order. Check that line n of one translates line n of the other; misaligned "
                "lines would not be found."
            )
    for row, part, n, chance in _overlaps(facts):
        of = f"of {row['lines']:,} {row['split']}"
        if 0 < n <= chance:
            yield f"{n:,} {of} pairs are in {_where(row, part)}."
        if part == "pair" and (n_src := row["near"]["src"]) > n:
            yield f"{n_src:,} {of} sources are in {_where(row, part)}, {n_src - n:,} of them with another target."
    for row in facts.get("leaks", {}).get("rows", ()):
        if row["in"] == "valid" and (n := row["near"]["pair"]):
            of = f"{n:,} of {row['lines']:,} {row['split']} pairs"
            yield f"{of} are in the validation pairs, by which the best model is chosen."
    again = facts.get("duplicates", {}).get("pairs", 0)
    if again > 0.1 * max(facts["kept"], 1):
        share = percent(again, facts["kept"])
        yield f"{again:,} kept pairs ({share}) are duplicates: data.drop_duplicates keeps one of each."


def _share(n: float, of: float, limit: float) -> str:
    return f"({percent(n, of)}; alarm above {percent(limit, 1)})"


def n_lost(facts: Facts) -> int:
    """Number of training pairs that were dropped, without those of low scores, which were to be."""
    return sum(each["count"] for reason, each in facts["dropped"].items() if reason != LOW_SCORE)


def _shifted(facts: Facts) -> Iterable[tuple[Facts, int]]:
    """The alignment of each pair of files, and how many of their lines are misaligned."""
    for one in facts.get("alignment", ()):
        yield one, sum(each["last"] - each["first"] + 1 for each in one["stretches"])


def _shift(one: Facts) -> tuple[str, str]:
    """The first stretch of misaligned lines of two files, and what to do about it."""
    src, trg, stretch = one["src"], one["trg"], one["stretches"][0]
    first, last, offset = stretch["first"], stretch["last"], stretch["offset"]
    n_more = len(one["stretches"]) - 1
    more = f" ({n_more:,} more stretches are in the report)" if n_more else ""
    lines = f"{src}:{first}: lines {first:,} to {last:,}{more}"
    look = f"Look at both files around lines {first:,} and {last:,}"
    if offset is None:
        return f"{lines}, {src} and {trg} do not match, also not a few lines apart.", f"{look}."
    of_file = offset + one["trg_from"] - one["from"]  # a line of names above one side is none of the pairs
    longer, shorter = (trg, src) if offset > 0 else (src, trg)
    harm = "training on such pairs teaches nothing" if one["split"] == "train" else "a score on such pairs is void"
    return (
        f"{lines}, line n of {src} goes with line n{of_file:+d} of {trg}: {abs(offset)} too many in {longer}, or "
        f"missing from {shorter}, at about line {first:,}.",
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


def _where(row: Facts, part: str) -> str:
    """Training pairs, those of this data or of the run that it begins with."""
    turned = ", with source and target exchanged" if part == "reversed" else ""
    return f"the training pairs{row['in'].removeprefix('train')}{turned}"


def table(facts: Facts) -> list[str]:
    """One screen: the pairs, why some were dropped, what they are like, and at the end what is wrong with them."""
    return [
        *summary(facts, _MOST_OF_A_KIND),
        *_first([f"ALARM: {sentence(one)}" for one in facts.get("alarms", ())], "alarms", _MOST_OF_A_KIND),
        *_first([f"warning: {text}" for text in facts.get("warnings", ())], "warnings", _MOST_OF_A_KIND),
    ]


def summary(facts: Facts, most: int | None = None) -> list[str]:
    """The pairs, why some were dropped, and what they are like. most: of corpora, notes and misaligned stretches."""
    read, kept = facts["read"], facts["kept"]
    lines = [f"training pairs: {read:,} read, {read - kept:,} dropped, {kept:,} kept"]
    for reason, each in facts["dropped"].items():
        lines.append(f"  {each['count']:>9,}  {reason:<18}  {shortened(each['first'])}")
    corpora = []
    for one in sorted(facts.get("corpora", []), key=lambda one: one["kept"] / max(1, one["read"])):  # most lost first
        told = ", ".join(f"{reason} {n:,}" for reason, n in one["dropped"].items())
        n_dropped = f"{sum(one['dropped'].values()):,} dropped{f' ({told})' if told else ''}"
        corpora.append(f"{one['name']}: {one['read']:,} read, {n_dropped}, {one['kept']:,} kept")
    lines += [*_first(corpora, "corpora", most), *_first(remarks(facts), "notes", most), *_subwords(facts)]
    if "duplicates" not in facts:
        return lines
    of, files = facts["duplicates"], facts["alignment"]
    lines.append(
        f"duplicates: {of['pairs']:,} pairs; {of['sources']:,} sources with several targets, {of['targets']:,} targets "
        "with several sources"
    )
    if rows := facts["leaks"]["rows"]:
        lines.append(
            "overlap (source / target / pair / exchanged):        exactly         ignoring case and punctuation"
        )
    for row in rows:
        exact, near = (
            " / ".join(f"{row[level].get(part, 0):,}" for part in ("src", "trg", "pair", "reversed"))
            for level in ("exact", "near")
        )
        lines.append(f"  {row['lines']:>7,} {row['split']} lines in {row['in']:<16}  {exact:<20}  {near}")
    n_found, n_judged = (sum(bool(one[what]) for one in files) for what in ("stretches", "judged"))
    lines.append(f"misaligned lines: in {n_found:,} of {len(files):,} pairs of files; {n_judged:,} could be judged")
    shifts = [
        f"{one['src']} and {one['trg']}: lines {each['first']:,} to {each['last']:,} "
        + ("match none near" if each["offset"] is None else f"are shifted by {each['offset']:+d}")
        for one in files
        for each in one["stretches"]
    ]
    return [*lines, *_first(shifts, "stretches", most)]


def _first(texts: Sequence[str], what: str, most: int | None) -> Iterable[str]:
    yield from (f"  {text}" for text in texts[:most])
    if most is not None and len(texts) > most:
        yield f"  ... {len(texts) - most:,} more {what}: see the report"


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


def _subwords(facts: Facts) -> Iterable[str]:
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


def sentence(alarm: Mapping[str, str]) -> str:
    """An alarm as sentences: what was found, and the advice."""
    return f"{alarm['found'].rstrip('.')}. {alarm['advice']}"


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
    title = f"{_text(name)}: {_text(langs[0])} → {_text(langs[1])}"
    files = [
        f"{each['name']} ({each.get('split', '')} {each.get('side', '')}): {each['size']:,} bytes, SHA-256 begins "
        f"{each['sha256'][:16]}"
        for each in inputs
    ]
    body = [*_verdict(facts), *_pairs(facts), f"<h2>Files</h2><pre>{_lines(files)}</pre>", f"<p>{_text(made)}</p>"]
    parts = {"title": title, "generator": "nmt-preprocess", "body": "\n".join(body)}
    return filled_page(Path(__file__).with_name("report_page.html"), parts)


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
    yield f"<h2>Summary</h2><pre>{_lines(summary(facts))}</pre>"


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
        both = []
        for e in found:
            trained_on = {"src": e["train_src"], "trg": e["train_trg"]}
            both += [(e["place"], e), (f"training: {e['train_place']}", trained_on)]
        yield _more("Overlap with the training pairs", _examples(both))


def _examples(examples: Iterable[tuple[str, Mapping[str, str]]]) -> str:
    rows = (
        f"<li><small class=place>{_text(place)}</small>{_line(each['src'])}{_line(each['trg'])}</li>"
        for place, each in examples
    )
    return f'<ul class="examples">{"".join(rows)}</ul>'


def _more(summary: str, inside: str) -> str:
    return f"<details><summary>{summary}</summary>{inside}</details>"


def _lines(texts: Iterable[str]) -> str:
    return "<br>".join(map(_text, texts))


def _line(text: str) -> str:
    return f'<p dir="auto">{_text(text)}</p>' if text.strip() else "<p><small>(empty)</small></p>"


def _text(text: str) -> str:
    """A text as HTML that shows it: no markup, and nothing that acts on what stands around it."""
    shown = "".join(f"\\u{ord(c):04x}" if category(c) in "Cc Cf Zl Zp" and c not in "\u200c\u200d" else c for c in text)
    return html.escape(shown, quote=True)
