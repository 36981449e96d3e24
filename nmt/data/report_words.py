"""Report in words: alarms, warnings, and a summary of one screen.

All of it is told from the entries of report.json and nothing else.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

from nmt.data.letters import LINE_CAP, WORD_CAP
from nmt.data.text import Dress

# Beyond these shares something is seriously wrong.
MOST_LEAKED = 0.01  # of a validation or test set, as whole pairs
FEWEST_LEAKED = 2  # pairs
MOST_DROPPED = 0.5  # of the training pairs
MOST_SHIFTED = 0.01  # of the pairs of two files
SWAPPED = 0.9  # of the words that tell, on each side; in right order it is a few in a hundred

_MOST_STRETCHES = 3  # of a file, in words
_MOST_OF_A_KIND = 8  # corpora, notes, warnings that the summary has

Facts = dict[str, Any]


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
    "protected": "{n} pairs have items of data.protect, the same on both sides: placeholders stand for them",
    "unlike_items": "{n} pairs have other items of data.protect on one side than on the other: they stay as they are",
    "language": "of {n} languages no script is known, so that no pair is dropped for another script (data.min_script; "
    "und: data.src_lang or data.trg_lang is not told)",
    "other_language": "{n} sides of training files look like another language than the recipe says, by their first "
    "lines (data.max_other_language drops such pairs)",
    "header": "{n} files of TSV have the language codes as their first pair: header: true says that it names columns",
    "blank": "{n} pairs of validation or test sets have a side without text: they lower the scores",
    "base": "of {n} runs or folders that this one begins with the training pairs cannot be read, so overlap with those "
    "was not looked for",
    "control": "{n} lines have control characters or Unicode line breaks inside, which were kept",
}


def alarms(facts: Facts, on_dropped: str = "") -> list[Alarm]:
    """Alarms, each beyond a threshold that it names. on_dropped: advice where most pairs are."""
    found = [
        Alarm(
            found=f"the training files look swapped: the words of {one['train_src']}, the source, are those of "
            f"{one['trg']}, a target, and the words of {one['train_trg']} those of {one['src']} (of the words that "
            f"tell, {percent(SWAPPED, 1)} or more on both sides)",
            advice="Swap the two files of --train (data.train.src and trg), or those of the other set, whichever are "
            "the wrong way round: a model learns the direction of the training files.",
        )
        for one in facts.get("swapped", ())
    ]
    found += [
        Alarm(
            found=f"misaligned lines in {n:,} of {one['pairs']:,} pairs ({percent(n, one['pairs'])}; alarm above "
            f"{percent(MOST_SHIFTED, 1)}): {_shift(one, one['stretches'][0])[0]}{_and_more(one)}",
            advice=_shift(one, one["stretches"][0])[1],
        )
        for one in facts.get("alignment", ())
        if (n := _n_shifted(one)) > MOST_SHIFTED * one["pairs"]
    ]
    n_read, n_dropped = facts["read"], sum(each["count"] for each in facts["dropped"].values())
    if n_dropped > MOST_DROPPED * n_read:
        reason = max(facts["dropped"], key=lambda reason: facts["dropped"][reason]["count"])
        most = f"most for {reason} ({facts['dropped'][reason]['count']:,})"
        found.append(
            Alarm(
                found=f"{n_dropped:,} of {n_read:,} training pairs are dropped ({percent(n_dropped, n_read)}; alarm "
                f"above {percent(MOST_DROPPED, 1)}), {most}",
                advice=on_dropped or "Look at the reasons, and at the first lines dropped for each.",
            )
        )
    for split, side, train, held in _dresses(facts):
        if split != "train" and train.differs(held):
            found.append(
                Alarm(
                    found=f"the {_SIDE[side]} side of {split} is written otherwise than that of training: "
                    f"{_dress(held)}, in training {_dress(train)} (alarm where the scripts of Moses went over "
                    "one of both)",
                    advice="Undo it there (unescape: true of the corpus in the recipe), or take text of one kind.",
                )
            )
    chance = chance_overlap(facts)
    for row in _leaks(facts):
        n_pair, n = row["near"]["pair"], row["lines"]
        if n_pair > max(FEWEST_LEAKED - 1, chance * n):
            found.append(
                Alarm(
                    found=f"{n_pair:,} of {n:,} {row['split']} pairs ({percent(n_pair, n)}; alarm above "
                    f"{percent(chance, 1)}) are in {_where(row)}, but for case and punctuation; "
                    f"{row['exact']['pair']:,} to the letter",
                    advice="Take them out of the training files: a score on them measures memorisation.",
                )
            )
        n_turned = row["near"].get("reversed", 0)
        if n_turned > max(FEWEST_LEAKED - 1, chance * n):
            found.append(
                Alarm(
                    found=f"{n_turned:,} of {n:,} {row['split']} pairs ({percent(n_turned, n)}; alarm above "
                    f"{percent(chance, 1)}) are in {_where(row)} with their sides exchanged, but for case and "
                    "punctuation",
                    advice="Take them out of the training files: a model that is trained on both directions has seen "
                    "these translations.",
                )
            )
    return found


_SIDE = {"src": "source", "trg": "target"}


def _dresses(facts: Facts) -> Iterable[tuple[str, str, Dress, Dress]]:
    """Of each split and side: how training is written there, and how the split is."""
    of = facts.get("dress", {})
    for split, sides in of.items():
        for side, counts in sides.items():
            yield split, side, Dress(**of["train"][side]), Dress(**counts)


def _where(row: dict[str, Any]) -> str:
    """Training pairs, those of this data or of the run that it begins with."""
    return f"the training pairs{row['in'].removeprefix('train')}"


def _dress(of: Dress) -> str:
    """Counts in words."""
    apart = percent(of.apart, of.ends)
    return f"{of.entities:,} entities in {of.lines:,} lines, a space before {apart} of the full stops at their ends"


def chance_overlap(facts: Facts) -> float:
    """The share of a validation or test set that may be in training: 1 %, and more where training repeats itself.

    A pair drawn as the training pairs were is one of them about as often as those occur more than once (Good and
    Turing): twice that share is allowed, up to 90 %.
    """
    again: float = facts.get("duplicates", {}).get("again", 0) / max(facts["kept"], 1)
    return min(0.9, MOST_LEAKED + 2 * again)


def _n_shifted(one: dict[str, Any]) -> int:
    return sum(each["last"] - each["first"] + 1 for each in one["stretches"])


def _and_more(one: dict[str, Any]) -> str:
    n_more = len(one["stretches"]) - 1
    return f"; {n_more:,} more stretches are in the report" if n_more else ""


def warnings(facts: Facts) -> list[str]:
    """Return findings that are worth a look and may be right."""
    found, chance = [], chance_overlap(facts)
    for one in facts.get("alignment", ()):
        if 0 < _n_shifted(one) <= MOST_SHIFTED * one["pairs"]:
            found += [" ".join(_shift(one, stretch)) for stretch in one["stretches"][:_MOST_STRETCHES]]
            if (n_more := len(one["stretches"]) - _MOST_STRETCHES) > 0:
                found.append(
                    f"{one['src']} and {one['trg']}: {n_more:,} more stretches of misaligned lines: see the report."
                )
    for row in _leaks(facts):
        n_pair, n_src = row["near"]["pair"], row["near"]["src"]
        n_turned, most = row["near"].get("reversed", 0), max(FEWEST_LEAKED - 1, chance * row["lines"])
        if 0 < n_pair <= most:
            found.append(f"{n_pair:,} of {row['lines']:,} {row['split']} pairs are in {_where(row)}, too.")
        if 0 < n_turned <= most:
            found.append(
                f"{n_turned:,} of {row['lines']:,} {row['split']} pairs are in the training pairs with their sides "
                "exchanged."
            )
        if n_src > n_pair:
            found.append(
                f"{n_src:,} of {row['lines']:,} {row['split']} sources are in the training pairs, "
                f"{n_src - n_pair:,} of them with another target."
            )
    for row in facts.get("leaks", {}).get("rows", ()):
        if row["in"] == "valid" and (n_pair := row["near"]["pair"]):
            found.append(
                f"{n_pair:,} of {row['lines']:,} {row['split']} pairs are in the validation pairs, by which the best "
                "model is chosen."
            )
    for one in facts.get("alignment", ()):
        if not one["judged"] and one["pairs"] >= 1000:
            found.append(
                f"{one['src']} and {one['trg']}: no line of one side tells anything of its line of the other, as where "
                "the lines of a side are in another order. Look whether line n of one translates line n of the other; "
                "misaligned lines would not be found."
            )
    again = facts.get("duplicates", {}).get("pairs", 0)
    if again > 0.1 * max(facts["kept"], 1):
        found.append(
            f"{again:,} kept pairs ({percent(again, facts['kept'])}) came before: data.drop_duplicates keeps one of "
            "each."
        )
    return found


def table(facts: Facts) -> list[str]:
    """One screen: the pairs, why some were dropped, what they are like, and at the end what is wrong with them."""
    n_dropped = sum(each["count"] for each in facts["dropped"].values())
    lines = [f"training pairs: {facts['read']:,} read, {n_dropped:,} dropped, {facts['kept']:,} kept"]
    for reason, each in facts["dropped"].items():
        lines.append(f"  {each['count']:>9,}  {reason:<18}  {shortened(each['first'])}")
    lines += _first(by_corpus(facts, most=_MOST_OF_A_KIND), "corpora", len(facts.get("corpora", ())))
    lines += _first(remarks(facts), "notes")
    lines += _measures(facts)
    lines += _first([f"ALARM: {sentence(one)}" for one in facts.get("alarms", ())], "alarms")
    lines += _first([f"warning: {text}" for text in facts.get("warnings", ())], "warnings")
    return lines


def _first(texts: Sequence[str], what: str, n: int = 0) -> Iterable[str]:
    """Lines of the summary, not more than a screen has room for. n: how many there are, if these are not all."""
    yield from (f"  {text}" for text in texts[:_MOST_OF_A_KIND])
    if (n_more := max(n, len(texts)) - _MOST_OF_A_KIND) > 0:
        yield f"  ... {n_more:,} more {what}: see the report"


def remarks(facts: Facts) -> list[str]:
    """Return usual ratios, and oddities that are harmless."""
    usual_ratios = [
        f"{name}: the target has {usual['median']:.2f} times the characters of its source, as a rule; kept: "
        f"{usual['low']:.2f} to {usual['high']:.2f}"
        for name, usual in facts["usual_ratio"].items()
    ]
    lines = []
    for key, text in _NOTES.items():
        if n := facts["notes"].get(key):
            places = f": {shortened(facts['noted'][key])}" if key in facts["noted"] else ""
            lines.append(f"note: {text.format(n=f'{n:,}')}{places}")
    for split, side, _, one in _dresses(facts):
        if one.is_escaped or one.is_apart:
            lines.append(
                f"note: the {_SIDE[side]} side of {split} is as the scripts of Moses leave it: {_dress(one)}; a model "
                "learns to write so (unescape: true of the corpus undoes it)"
            )
    return lines + usual_ratios


def by_corpus(facts: Facts, *, most: int | None = None) -> list[str]:
    """Return the counts of each corpus, a line each. most: of so many, which lost the greatest share."""
    corpora = facts.get("corpora", [])
    worst = sorted(range(len(corpora)), key=lambda n: corpora[n]["kept"] / max(1, corpora[n]["read"]))
    lines = []
    for one in (corpora[n] for n in sorted(worst[:most])):
        told = ", ".join(f"{reason} {n:,}" for reason, n in one["dropped"].items())
        n_dropped = f"{sum(one['dropped'].values()):,} dropped{f' ({told})' if told else ''}"
        lines.append(f"{one['name']}: {one['read']:,} read, {n_dropped}, {one['kept']:,} kept")
    return lines


def span(stretch: dict[str, Any]) -> str:
    """Lines of a stretch, as `2,004 to 3,010`."""
    return f"{stretch['first']:,} to {stretch['last']:,}"


def _measures(facts: Facts) -> list[str]:
    lines = []
    if "lengths" in facts:
        of = {side: facts["lengths"][side]["kept_quantiles"] for side in ("src", "trg")}
        ratio = facts["ratios"]["kept_quantiles"]
        told = "; ".join(f"{side} {of[side]['50']:,} (99 %: {of[side]['99']:,})" for side in of)
        lines.append(
            f"characters a line: {told}; trg/src {ratio['50']:.2f} (98 %: {ratio['1']:.2f} to {ratio['99']:.2f})"
        )
        scripts = (f"{side} {_shares(facts['scripts'][side])}" for side in ("src", "trg"))
        lines.append(f"letters: {'; '.join(scripts)}")
    if "subwords" in facts:
        subwords = facts["subwords"]
        told = "; ".join(
            f"{side} "
            + (f"{subwords[side]['pieces_per_word']:.2f} a word, " if "words" in subwords[side] else "")
            + f"{subwords[side]['characters_per_piece']:.2f} characters each"
            for side in ("src", "trg")
        )
        lines.append(f"subwords: {told}")
        for side in ("joint",) if "joint" in subwords else ("src", "trg"):
            use = subwords[side]
            lines.append(
                f"  {side} vocabulary: {use['occur']:,} of {use['size']:,} pieces occur, {use['fewer_than']['10']:,} "
                f"fewer than 10 times, {use['fewer_than']['100']:,} fewer than 100 times"
            )
    if "duplicates" in facts:
        of = facts["duplicates"]
        lines.append(
            f"repeated: {of['pairs']:,} pairs came before; {of['sources']:,} sources have several targets, "
            f"{of['targets']:,} targets several sources"
        )
        lines += _table_of_leaks(facts["leaks"]["rows"])
        judged = [one for one in facts["alignment"] if one["judged"]]
        n_shift = sum(len(one["stretches"]) for one in facts["alignment"])
        n_with = sum(bool(one["stretches"]) for one in facts["alignment"])
        told = f"found in {n_with:,}" if n_shift else "none found in any"
        told += f" of {len(facts['alignment']):,} pairs of files; {len(judged):,} could be judged"
        lines.append(f"misaligned lines: {told}{f', stretches: {n_shift:,}' if n_shift else ''}")
    return lines


def _table_of_leaks(rows: Sequence[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    lines = ["overlap (source / target / pair / pair exchanged):      to the letter        but for case, punctuation"]
    for row in rows:
        told = [
            " / ".join(f"{row[level].get(part, 0):,}" for part in ("src", "trg", "pair", "reversed"))
            for level in ("exact", "near")
        ]
        lines.append(f"  {row['lines']:>7,} {row['split']} lines in {row['in']:<16}  {told[0]:<20}  {told[1]}")
    return lines


def _leaks(facts: Facts) -> Iterable[dict[str, Any]]:
    """One row a set: where it was looked for most widely is in the table."""
    return (
        row
        for row in facts.get("leaks", {}).get("rows", ())
        if row["in"].startswith("train") and " or " not in row["in"]
    )


def _shift(one: dict[str, Any], stretch: dict[str, Any]) -> tuple[str, str]:
    """A stretch of misaligned lines, and what to do about it."""
    src, trg, offset, first = one["src"], one["trg"], stretch["offset"], stretch["first"]
    whole = stretch["last"] == one["pairs"] + one["from"] - 1
    lines = f"from line {first:,} to the end" if whole else f"lines {span(stretch)}"
    look = f"Look at both files around line {first:,}"
    if not whole:
        look += f" and around line {stretch['last']:,}"
    if offset is None:
        return f"{src}:{first}: {lines}, {src} and {trg} do not go together, also not a few lines apart.", f"{look}."
    of_file = offset + one["trg_from"] - one["from"]  # a line of names above one side is none of the pairs
    n = "a line" if abs(offset) == 1 else f"{abs(offset)} lines"
    longer, shorter = (trg, src) if offset > 0 else (src, trg)
    return (
        f"{src}:{first}: {lines}, line n of {src} goes with line n{of_file:+d} of {trg}: {n} too many in {longer}, or "
        f"missing from {shorter}, at about line {first:,}.",
        f"{look}, repair them and prepare again: "
        + ("training on such pairs teaches nothing." if one["split"] == "train" else "a score on such pairs is void."),
    )


def sentence(alarm: Alarm) -> str:
    """An alarm as sentences: what was found, and the advice."""
    return f"{alarm['found'].rstrip('.')}. {alarm['advice']}"


def _shares(counts: dict[str, int]) -> str:
    """Scripts of letters by their share: `Latin 99.9 %, Greek 0.1 %`."""
    letters = {name: n for name, n in counts.items() if name[0].isupper()}
    total = max(sum(letters.values()), 1)
    shown = [f"{name} {percent(n, total)}" for name, n in list(letters.items())[:3]]
    rest = f" and {len(letters) - 3} more" if len(letters) > 3 else ""
    return ", ".join(shown) + rest if shown else "none"


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
    shown: list[str] = []
    last = None
    for place in places:
        file, _, line = place.rpartition(":")
        shown.append(line if file == last else place)
        last = file
    return ", ".join(shown)
