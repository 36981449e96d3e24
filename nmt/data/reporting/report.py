"""The account of the training pairs: how many were read, kept and dropped, why, and where; what else was noticed.

What is measured of them is in `survey.py`, how it is said in words in `report_words.py`.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nmt.data.filters.clean import REASONS
from nmt.data.filters.ratio import UsualRatio
from nmt.data.reading.sources import Source
from nmt.data.reporting.duplicates import N_NOTED, N_SHOWN
from nmt.data.reporting.findings import Kept, findings
from nmt.data.reporting.report_words import alarms, table, warnings
from nmt.data.reporting.survey import Survey, Texts
from nmt.data.text.facts import cut
from nmt.data.vocabulary.vocabulary_use import VocabularyUse


@dataclass
class DataReport:
    """What became of the training pairs, line by line accountable."""

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
