"""The account of the training pairs: how many were read, kept and dropped, why, and where; what else was noticed.

Measurements are in `survey.py`; alarms, summary and page, made of these facts alone, in `report_words.py`.
"""

import bisect
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nmt.data import filters
from nmt.data.dedup import N_NOTED, N_SHOWN
from nmt.data.filters import REASONS, UsualRatio
from nmt.data.report_words import alarms, shortened, table, warnings
from nmt.data.sources import Source
from nmt.data.subwords import VocabularyUse
from nmt.data.survey import Survey, Texts
from nmt.data.text import SIDES, cut
from nmt.recipe.data_options import DataConfig

_N_DRAWN = 10  # pairs that are shown, drawn from the kept ones


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
                self.examples.setdefault(reason, []).append(_shown(place, *texts))

    def conclude(
        self,
        sources: Sequence[Source],
        held_out: Mapping[str, Texts],
        kept: Callable[[Iterable[int]], dict[int, tuple[str, str, str]]],
    ) -> None:
        """Take over what the survey, which is finished, has found. kept: place and texts of kept pairs by number."""
        survey = self.survey
        assert survey is not None
        leaks = [
            (split, *example) for split in survey.leaks.splits for example in survey.leaks.examples(split, N_SHOWN)
        ]
        samples = {
            "random": sorted(random.Random(0).sample(range(survey.n_kept), min(_N_DRAWN, survey.n_kept))),
            "shortest": [number for _, number in survey.shortest],
            "longest": [number for _, number in survey.longest],
        }
        most = survey.duplicates["most"]
        numbers = itertools.chain((number for *_, number in leaks), (number for number, _ in most), *samples.values())
        train = {number: _shown(*pair) for number, pair in kept(set(numbers)).items()}
        examples = []
        for split, level, part, line, number in leaks:
            texts = held_out[split]
            found = _shown(_place(sources, split, texts.ends, line), texts.src[line], texts.trg[line])
            examples.append(
                {"level": level, "part": part, **found, **{f"train_{k}": v for k, v in train[number].items()}}
            )
        self.found = {
            "leaks": {"rows": survey.leaks.rows(), "examples": examples},
            "samples": {kind: [train[n] for n in some] for kind, some in samples.items()},
            "duplicates": survey.duplicates | {"most": [{"times": times, **train[n]} for n, times in most]},
            "alignment": [_alignment(source, found) for source, found in survey.alignments],
            "dress": {
                split: {side: one._asdict() for side, one in zip(SIDES, both, strict=True)}
                for split, both in survey.dress.items()
            },
        }

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
            "notes": dict(sorted(self.notes.items())),
            "noted": dict(sorted(self.noted.items())),
            **self.found,
        }
        if len(self.corpora) > 1:
            facts["corpora"] = []
            for n, one in enumerate(self.corpora):
                of = self.dropped_of.get(n, Counter())
                counts = {"read": one["n_pair"] + of.total(), "kept": one["n_pair"], "dropped": dict(of.most_common())}
                facts["corpora"].append({"name": one["name"], **counts})
        if self.vocabulary:
            facts["subwords"] = self.vocabulary.as_dict()
        found = [{"found": found, "advice": advice} for found, advice in alarms(facts, self.on_dropped)]
        return {**facts, "alarms": found, "warnings": [*warnings(facts)]}

    def table(self) -> list[str]:
        """For people: one screen."""
        return table(self.as_dict())


def _shown(place: str, src: str, trg: str) -> dict[str, str]:
    return {"place": place, "src": cut(src), "trg": cut(trg)}


def _alignment(source: Source, found: Mapping[str, Any]) -> dict[str, Any]:
    """The alignment of two files, in lines of the source file."""
    before = source.first_number - 1
    stretches = [{**one, "first": one["first"] + before, "last": one["last"] + before} for one in found["stretches"]]
    files = {"split": source.split, "src": source.src.name, "trg": source.trg.name}
    return {**files, "from": source.first_number, "trg_from": 1 + source.trg.header, **found, "stretches": stretches}


def _place(sources: Sequence[Source], split: str, ends: Sequence[int], line: int) -> str:
    """file:line of a line of a set, which is counted from 0 through all its files."""
    n = bisect.bisect_right(ends, line)
    source = [source for source in sources if source.split == split][n]
    return f"{source.src.name}:{line - (ends[n - 1] if n else 0) + source.first_number}"


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
