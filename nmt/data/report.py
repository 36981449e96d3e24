"""Report on the training pairs: counts, alarms, warnings, a summary for the terminal, and a page.

The measurements come from `survey.py`. Alarms, warnings and summary are made from report.json alone. The texts of a
corpus may be hostile: `_text` escapes each of them, and the policy of the page admits neither scripts nor images.
"""

import html
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unicodedata import category

from nmt.data.dedup import N_SHOWN
from nmt.data.filters import LOW_SCORE, OPTIONS, REASONS, SCRIPT, UsualRatio
from nmt.data.sources import Source
from nmt.data.survey import shown
from nmt.data.text import SIDES, Dress
from nmt.errors import DataError
from nmt.files import filled_page
from nmt.recipe.places import is_prepared

Facts = Mapping[str, Any]
_N_NOTED = 10  # places of a harmless oddity that are reported
_N_STRETCH = 10  # stretches of misaligned lines of two files that the summary lists


@dataclass
class DataReport:
    """Counts of the training pairs: read, kept, and dropped with file:line."""

    langs: tuple[str, str] = ("", "")  # of the recipe
    n_read: int = 0
    n_kept: int = 0
    dropped: dict[int, Counter[str]] = field(default_factory=dict)  # counts of reasons, by number of the corpus
    first: dict[str, list[str]] = field(default_factory=dict)  # places of the first pairs, by reason
    examples: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    notes: Counter[str] = field(default_factory=Counter)
    learnt_ratios: dict[tuple[int, str], UsualRatio] = field(default_factory=dict)  # of corpus and source file
    noted: dict[str, list[str]] = field(default_factory=dict)  # places of the first oddities, by note
    survey: dict[str, Any] = field(default_factory=dict)  # further entries of report.json

    def note(self, key: str, *places: str) -> None:
        """Count harmless oddities. places: the file:line of each, or the name of what is odd."""
        for place in places:
            self.notes[key] += 1
            if self.notes[key] <= _N_NOTED:
                self.noted.setdefault(key, []).append(place)

    def drop(self, reason: str, n: int, first: Sequence[tuple[int, Sequence[str]]], source: Source) -> None:
        """Count dropped pairs. first: lines of the first few, with both texts if they are known."""
        self.dropped.setdefault(source.corpus, Counter())[reason] += n
        places = self.first.setdefault(reason, [])
        for number, texts in first[: N_SHOWN - len(places)]:
            places.append(source.place(number))
            if texts:
                self.examples.setdefault(reason, []).append(shown(places[-1], *texts))

    def as_dict(self) -> dict[str, Any]:
        """The content of report.json; docs/reference.md explains every entry."""
        dropped = sum(self.dropped.values(), Counter[str]())
        reasons = [reason for reason in (*REASONS, *sorted(set(dropped) - set(REASONS))) if reason in dropped]
        n_of_name = Counter(name for _, name in self.learnt_ratios)
        facts = {
            "read": self.n_read,
            "kept": self.n_kept,
            "dropped": {reason: {"count": dropped[reason], "first": self.first[reason]} for reason in reasons},
            "examples": {reason: self.examples[reason] for reason in reasons if reason in self.examples},
            "usual_ratio": {
                name if n_of_name[name] == 1 else f"{name} (data.train.{n})": usual._asdict()
                for (n, name), usual in self.learnt_ratios.items()
            },
            "notes": dict(sorted(self.notes.items())),
            "noted": dict(sorted(self.noted.items())),
            **self.survey,
        }
        found = [*findings(facts, self.langs)]
        alarms = [{"found": finding, "advice": advice} for finding, advice in found if advice]
        return {**facts, "alarms": alarms, "warnings": [finding for finding, advice in found if not advice]}

    def nothing_left(self) -> str:
        """Return an error message for a corpus of which no pair is kept."""
        facts = self.as_dict()
        by_count = sorted(facts["dropped"].items(), key=lambda item: -item[1]["count"])
        counts = (
            f"{entry['count']:,} dropped for {reason} ({shortened(entry['first'])})" for reason, entry in by_count
        )
        advice = advice_on_dropped(facts, self.langs)
        return f"No training pair is left of {self.n_read:,}: {', '.join(counts)}: {advice}"


def advice_on_dropped(facts: Facts, langs: tuple[str, str]) -> str:
    """Return advice about the most frequent reason other than low scores, which the recipe asks to drop."""
    dropped = facts["dropped"]
    reason = max(dropped, key=lambda reason: (reason != LOW_SCORE, dropped[reason]["count"]), default=None)
    if reason == SCRIPT:
        first = facts["examples"][reason][0]
        return (
            f"src_lang is {langs[0]}, trg_lang is {langs[1]}, but at {first['place']} the sides are {first['src']!r} "
            f"and {first['trg']!r}. Is --langs (data.src_lang, data.trg_lang, or those of the corpus) right?"
        )
    if reason in OPTIONS:
        return f"If these pairs are good, change data.{OPTIONS[reason]}."
    return "Look at these lines: are these the right files?"


# Thresholds of alarms.
MOST_LEAKED = 0.01  # of a validation or test set, as whole pairs
FEWEST_LEAKED = 2  # pairs
MOST_DROPPED = 0.5  # of the training pairs
MOST_SHIFTED = 0.01  # of the pairs of two files
SWAPPED = 0.9  # of the words that vote, on each side; a few percent if the files are in the right order

_MARK = b'<meta name="generator" content="nmt-preprocess">'
_LONGEST_HEAD = 2000  # bytes of a page that contain the mark

_NOTES = {
    "crlf": "{n} lines ended with a carriage return, which was removed",
    "line_feed": "{n} texts had line feeds inside, which became spaces",
    "bom": "{n} files began with a byte order mark, which was removed",
    "bom_inside": "{n} lines have a byte order mark inside (files put together?), which was kept",
    "protected": "{n} pairs have the same items of data.protect on both sides, which become placeholders",
    "unlike_items": "{n} pairs have different items of data.protect on the two sides, which stay ordinary text",
    "language": "no script is known for {n} languages, so data.min_script drops none of their pairs (und: "
    "data.src_lang or data.trg_lang is missing)",
    "blank": "{n} pairs of validation or test sets have a side without text: they lower the scores",
    "base": "the training pairs of {n} runs or folders that this one starts from cannot be read: overlap with them is "
    "unknown",
    "control": "{n} lines have control characters or Unicode line breaks inside, which were kept",
}
_SIDE = {"src": "source", "trg": "target"}


def findings(facts: Facts, langs: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """Yield text and advice of each alarm and warning. The advice of a warning is "": it may well be harmless.

    The text of an alarm states its threshold. langs: of the recipe.
    """
    for files in facts.get("swapped", ()):
        yield (
            f"the training files look swapped: the words of {files['train_src']}, the source, are those of "
            f"{files['trg']}, a target (alarm above {percent(SWAPPED, 1)} of the words that tell the sides apart)",
            "Swap the two files of --train (data.train.src and trg), or those of the other set, whichever are wrong.",
        )
    for files in facts.get("alignment", ()):
        n = sum(stretch["last"] - stretch["first"] + 1 for stretch in files["stretches"])
        found = f"misaligned lines in {n:,} of {files['pairs']:,} pairs"
        if n > MOST_SHIFTED * files["pairs"]:
            shift, advice = _shift(files)
            yield f"{found} {_share(n, files['pairs'], MOST_SHIFTED)}: {shift}", advice
        elif n:
            yield f"{found}: {'. '.join(_shift(files))}", ""
        if not files["judged"] and files["pairs"] >= 1000:
            yield (
                f"misaligned lines of {files['src']} and {files['trg']} cannot be found: their lines do not match, as "
                "if one file were in another order. Check that line n of one translates line n of the other.",
                "",
            )
    # Without those of low scores, which the recipe asks to drop.
    lost = {reason: entry["count"] for reason, entry in facts["dropped"].items() if reason != LOW_SCORE}
    if (n := sum(lost.values())) > MOST_DROPPED * (n_read := n + facts["kept"]):
        reason = max(lost, key=lambda reason: lost[reason])
        yield (
            f"{n:,} of {n_read:,} training pairs are dropped {_share(n, n_read, MOST_DROPPED)}, most for "
            f"{reason} ({lost[reason]:,})",
            advice_on_dropped(facts, langs),
        )
    for split, side, train, held_out in _dresses(facts):
        if split != "train" and train.differs(held_out):
            yield (
                f"the {_SIDE[side]} side of {split} is written differently from that of training: {_dress(held_out)}, "
                f"in training {_dress(train)} (alarm if only one looks tokenised by Moses)",
                "Undo it in the tokenised files (unescape: true of the corpus), or use text in one style.",
            )
    # A pair from the distribution of the training pairs is one of them with a probability near the share of training
    # pairs that occur more than once (Good and Turing). Twice that share is allowed, up to 90 %.
    repeated = facts.get("duplicates", {}).get("again", 0) / max(facts["kept"], 1)
    chance = min(0.9, MOST_LEAKED + 2 * repeated)
    for row in facts.get("leaks", {}).get("rows", ()):
        of_split, near, base = f"of {row['lines']:,} {row['split']}", row["near"], row["in"].removeprefix("train")
        if row["in"] == "valid" and (n := near["pair"]):
            yield f"{n:,} {of_split} pairs are in the validation pairs, by which the best model is chosen.", ""
        if row["in"] in ("valid", "train or valid"):
            continue
        # The training pairs of this data, or of a base run.
        for part, exchanged in (("pair", ""), ("reversed", ", with source and target exchanged")):
            n, where = near.get(part, 0), f"in the training pairs{base}{exchanged}"
            if n > max(FEWEST_LEAKED - 1, chance * row["lines"]):
                yield (
                    f"{n:,} {of_split} pairs {_share(n, row['lines'], chance)} are {where}, ignoring case and "
                    f"punctuation; {row['exact'].get(part, 0):,} exactly",
                    "Take them out of the training files: a score on them measures memorisation.",
                )
            elif n:
                yield f"{n:,} {of_split} pairs are {where}.", ""
        if (n_src := near["src"]) > near["pair"]:
            where, n_other = f"in the training pairs{base}", n_src - near["pair"]
            yield f"{n_src:,} {of_split} sources are {where}, {n_other:,} of them with another target.", ""


def _share(n: float, total: float, limit: float) -> str:
    return f"({percent(n, total)}; alarm above {percent(limit, 1)})"


def _shift(alignment: Facts) -> tuple[str, str]:
    """Describe the first stretch of misaligned lines of two files, and give advice."""
    src, trg, stretch = alignment["src"], alignment["trg"], alignment["stretches"][0]
    first, last, offset = stretch["first"], stretch["last"], stretch["offset"]
    shift = f"{src} and {trg} do not match, not even a few lines apart"
    if offset is not None:
        # The header of one file counts as a line, but not as a pair.
        line_offset = offset + alignment["trg_from"] - alignment["from"]
        longer, shorter = (trg, src) if offset > 0 else (src, trg)
        shift = f"line n of {src} goes with line n{line_offset:+d} of {trg}: {abs(offset)} too many in {longer}, or "
        shift += f"missing from {shorter}"
    return (
        f"{src}:{first}: lines {first:,} to {last:,}, {shift}",
        f"Look at both files around lines {first:,} and {last:,}, repair them and prepare again: training on such "
        "pairs teaches nothing, and a score on them means nothing.",
    )


def _dresses(facts: Facts) -> Iterable[tuple[str, str, Dress, Dress]]:
    """Split, side, `Dress` of that side in training, `Dress` of the split; for all splits and sides."""
    dress = facts.get("dress", {})
    splits = ((split, side) for split in dress for side in dress[split])
    return ((split, side, Dress(**dress["train"][side]), Dress(**dress[split][side])) for split, side in splits)


def _dress(dress: Dress) -> str:
    apart = percent(dress.apart, dress.ends)
    return f"{dress.entities:,} entities in {dress.lines:,} lines, a space before {apart} of the final full stops"


def table(facts: Facts) -> list[str]:
    """Lines for the terminal: the summary, and at the end alarms and warnings."""
    alarms = (f"  ALARM: {alarm['found']}. {alarm['advice']}" for alarm in facts["alarms"])
    return [*summary(facts), *alarms, *(f"  warning: {text}" for text in facts["warnings"])]


def summary(facts: Facts) -> Iterator[str]:
    """Yield lines: counts of pairs and of reasons for dropping, and measurements."""
    read, kept = facts["read"], facts["kept"]
    yield f"training pairs: {read:,} read, {read - kept:,} dropped, {kept:,} kept"
    for reason, entry in facts["dropped"].items():
        yield f"  {entry['count']:>9,}  {reason:<18}  {shortened(entry['first'])}"
    for corpus in sorted(facts.get("corpora", []), key=lambda corpus: corpus["kept"] / max(1, corpus["read"])):
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in corpus["dropped"].items())
        n_dropped = f"{sum(corpus['dropped'].values()):,} dropped{f' ({reasons})' if reasons else ''}"
        yield f"  {corpus['name']}: {corpus['read']:,} read, {n_dropped}, {corpus['kept']:,} kept"
    yield from (f"  {remark}" for remark in remarks(facts))
    if subwords := facts.get("subwords"):
        for side, name in _SIDE.items():
            per_word = f"{subwords[side]['pieces_per_word']:.2f} per word, " if "words" in subwords[side] else ""
            yield f"subwords, {name}: {per_word}{subwords[side]['characters_per_piece']:.2f} characters each"
    if "duplicates" not in facts:
        return
    duplicates, alignments = facts["duplicates"], facts["alignment"]
    yield (
        f"duplicates: {duplicates['pairs']:,} pairs (data.drop_duplicates drops them); {duplicates['sources']:,} "
        f"sources with several targets, {duplicates['targets']:,} targets with several sources"
    )
    if rows := facts["leaks"]["rows"]:
        yield "overlap (source / target / pair / exchanged):        exactly         ignoring case and punctuation"
    for row in rows:
        exact, near = (" / ".join(f"{n:,}" for n in row[level].values()) for level in ("exact", "near"))
        yield f"  {row['lines']:>7,} {row['split']} lines in {row['in']:<16}  {exact:<20}  {near}"
    n_shifted, n_judged = (sum(bool(files[key]) for files in alignments) for key in ("stretches", "judged"))
    yield f"misaligned lines: in {n_shifted:,} of {len(alignments):,} pairs of files; {n_judged:,} could be judged"
    for files in alignments:
        for stretch in files["stretches"][:_N_STRETCH]:
            offset = stretch["offset"]
            shift = "match none near" if offset is None else f"are shifted by {offset:+d}"
            range_of_lines = f"lines {stretch['first']:,} to {stretch['last']:,}"
            yield f"  {files['src']} and {files['trg']}: {range_of_lines} {shift}"
        if (n_more := len(files["stretches"]) - _N_STRETCH) > 0:
            yield f"  ... {n_more:,} more stretches of these files: see report.json"


def remarks(facts: Facts) -> Iterator[str]:
    """Yield lines on harmless oddities and usual length ratios."""
    for key, text in _NOTES.items():
        if n := facts["notes"].get(key):
            places = f": {shortened(facts['noted'][key])}" if key in facts["noted"] else ""
            yield f"note: {text.format(n=f'{n:,}')}{places}"
    for split, side, _, dress in _dresses(facts):
        if dress.is_escaped or dress.is_apart:
            yield (
                f"note: the {_SIDE[side]} side of {split} looks tokenised by Moses: {_dress(dress)}; the model will "
                "write such text (unescape: true of the corpus undoes it)"
            )
    for name, usual in facts["usual_ratio"].items():
        kept = f"kept: {usual['low']:.2f} to {usual['high']:.2f}"
        yield f"{name}: target/source length {usual['median']:.2f} (median, in characters); {kept}"


def percent(n: float, of: float) -> str:
    """Format a share: `49.6 %`, `7 %`, `< 0.1 %`; `100 %` and `0 %` only for exactly all and none."""
    share = 100 * n / of if of else 0.0
    if 0 < share < 0.1:
        return "< 0.1 %"
    if 99.9 < share < 100:
        return "> 99.9 %"
    return f"{share:.1f}".removesuffix(".0") + " %"


def shortened(places: Iterable[str]) -> str:
    """Join places, with a repeated file name left out: `a.de:3, a.de:8` becomes `a.de:3, 8`."""
    shown_places = list[str]()
    for _, (first, *others) in itertools.groupby(places, lambda place: place.rpartition(":")[0]):
        shown_places += [first, *(place.rpartition(":")[2] for place in others)]
    return ", ".join(shown_places)


# The page.
def page(
    facts: Facts, name: str, langs: tuple[str, str], inputs: Sequence[Mapping[str, Any]] = (), made: str = ""
) -> str:
    """The page as HTML. facts: the content of report.json. inputs: of the manifest. made: its version and date."""
    title, body = _text(f"{name}: {langs[0]} → {langs[1]}"), "\n".join(_body(facts, inputs, made))
    parts = {"title": title, "generator": "nmt-preprocess", "body": body}
    return filled_page(Path(__file__).with_name("report_page.html"), parts)


def refuse_foreign_page(path: Path) -> None:
    """Raise DataError if the path is a folder, or a file that is no report of nmt-preprocess."""
    if path.is_dir():
        raise DataError(f"{path}: is a folder; expected the name of a page to write, as report.html.")
    if is_prepared(path.parent):
        raise DataError(f"{path.parent}: is prepared data, and its manifest has its report. Choose another folder.")
    if path.exists():
        with path.open("rb") as file:
            if _MARK not in file.read(_LONGEST_HEAD):
                raise DataError(f"{path}: is not a report of nmt-preprocess. Choose another name.")


def _body(facts: Facts, inputs: Sequence[Mapping[str, Any]], made: str) -> Iterator[str]:
    """Yield alarms, warnings, the summary, examples of pairs, and the files."""
    for alarm in facts["alarms"]:
        found, advice = _text(alarm["found"]), _text(alarm["advice"])
        yield f'<p class="alarm" role="alert"><strong>Alarm:</strong> {found}.<br>{advice}</p>'
    if not facts["alarms"]:
        yield '<p class="fine"><strong>No alarm.</strong></p>'
    yield from (f'<p class="warning">{_text(text)}</p>' for text in facts["warnings"])
    yield f"<h2>Summary</h2><pre>{_lines(summary(facts))}</pre>"
    if facts["dropped"]:
        yield "<h2>Why pairs were dropped</h2>"
    for reason, entry in facts["dropped"].items():
        pairs = facts["examples"].get(reason) or [{"place": place} for place in entry["first"]]
        yield _examples(f"{entry['count']:,} {reason} ({percent(entry['count'], facts['read'])})", pairs)
    yield "<h2>Pairs that are kept</h2>"
    for kind, pairs in facts["samples"].items():
        yield _examples(f"{len(pairs)} pairs, drawn at random" if kind == "random" else f"The {kind} pairs", pairs)
    most = facts["duplicates"]["most"]
    times = ({**pair, "place": f"{pair['times']:,} times, first {pair['place']}"} for pair in most)
    yield _examples("Most frequent pairs", times)
    overlap = list[Mapping[str, str]]()
    for pair in facts["leaks"]["examples"]:
        place, src, trg = (pair[f"train_{key}"] for key in ("place", *SIDES))
        overlap += [pair, {"place": f"training: {place}", "src": src, "trg": trg}]
    yield _examples("Overlap with the training pairs", overlap)
    files = (
        f"{file['name']} ({file['split']} {file['side']}): {file['size']:,} bytes, SHA-256 begins {file['sha256'][:16]}"
        for file in inputs
    )
    yield f"<h2>Files</h2><pre>{_lines(files)}</pre><p>{_text(made)}</p>"


def _examples(title: str, pairs: Iterable[Mapping[str, str]]) -> str:
    """Return pairs that a title unfolds; "" without pairs. The texts of a pair may be missing."""
    items = []
    for pair in pairs:
        texts = (_text(pair[side].strip()) or "<small>(empty)</small>" for side in SIDES if side in pair)
        lines = "".join(f'<p dir="auto">{text}</p>' for text in texts)
        items.append(f"<li><small class=place>{_text(pair['place'])}</small>{lines}</li>")
    unfolded = f'<ul class="examples">{"".join(items)}</ul>'
    return f"<details><summary>{_text(title)}</summary>{unfolded}</details>" if items else ""


def _lines(texts: Iterable[str]) -> str:
    return "<br>".join(map(_text, texts))


def _text(text: str) -> str:
    """A text as HTML, without markup and without control characters that change the text around it."""
    safe = "".join(f"\\u{ord(c):04x}" if category(c) in "Cc Cf Zl Zp" and c not in "\u200c\u200d" else c for c in text)
    return html.escape(safe, quote=True)
