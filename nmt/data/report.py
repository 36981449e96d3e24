"""The account of the training pairs: how many were read, kept and dropped, why, and where; what else was noticed.

What is measured of them is in `survey.py`, how it is said in words in `report_words.py`.
"""

import bisect
import itertools
import random
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.data import filters
from nmt.data.dedup import N_NOTED, N_SHOWN
from nmt.data.filters import REASONS, UsualRatio
from nmt.data.report_words import alarms, shortened, table, warnings
from nmt.data.scripts import is_in_another_script, scripts_of
from nmt.data.sources import Source
from nmt.data.subwords import VocabularyUse
from nmt.data.survey import FARTHEST, LONGEST, STEPS, Survey, Texts
from nmt.data.text import cut
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
