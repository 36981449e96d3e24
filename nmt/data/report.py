"""The account of the training pairs: how many were read, kept and dropped, why, and where; what else was noticed.

Measurements are in `survey.py`; alarms, summary and page, made of these facts alone, in `report_words.py`.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nmt.data import filters
from nmt.data.dedup import N_NOTED, N_SHOWN
from nmt.data.filters import REASONS, UsualRatio
from nmt.data.report_words import alarms, shortened, warnings
from nmt.data.subwords import VocabularyUse
from nmt.data.survey import shown
from nmt.data.text import SIDES
from nmt.recipe.data_options import DataConfig


@dataclass
class DataReport:
    """Account of the training pairs: read, kept, and dropped with file:line."""

    n_read: int = 0
    n_kept: int = 0
    dropped: dict[int, Counter[str]] = field(default_factory=dict)  # of each corpus, by its number
    first: dict[str, list[str]] = field(default_factory=dict)
    examples: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    notes: Counter[str] = field(default_factory=Counter)
    learnt_ratios: dict[str, UsualRatio] = field(default_factory=dict)  # of each source file, by its name
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
            "usual_ratio": {name: usual._asdict() for name, usual in self.learnt_ratios.items()},
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


def nothing_left(facts: Mapping[str, Any], data: DataConfig) -> str:
    """Return why no pair is left. facts: those of the report."""
    by_count = sorted(facts["dropped"].items(), key=lambda item: -item[1]["count"])
    told = (f"{each['count']:,} dropped for {reason} ({shortened(each['first'])})" for reason, each in by_count)
    return f"No training pair is left of {facts['read']:,}: {', '.join(told)}: {advice_on_dropped(facts, data)}"


def advice_on_dropped(facts: Mapping[str, Any], data: DataConfig) -> str:
    """Return what to do about the reason that most pairs are dropped for."""
    reason = max(facts["dropped"], key=lambda reason: facts["dropped"][reason]["count"], default=None)
    if reason == filters.SCRIPT:
        told = (f"{side}_lang is {lang}" for side, lang in zip(SIDES, (data.src_lang, data.trg_lang), strict=True))
        first = facts["examples"][reason][0]
        seen = f"but of {first['place']} the sides are {first['src']!r} and {first['trg']!r}"
        return f"{', '.join(told)}, {seen}. Is --langs (data.src_lang, data.trg_lang, or those of the corpus) right?"
    if reason in filters.OPTIONS:
        return f"Is that right? The option is data.{filters.OPTIONS[reason]}."
    return "Look at these lines: are they the files that were meant?"
