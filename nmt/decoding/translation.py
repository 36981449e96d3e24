"""Results for one line: its translation, or the scores of a given translation."""

import math
from dataclasses import dataclass, field
from typing import Any

from nmt.decoding.beam import Hypothesis
from nmt.decoding.long_lines import Split


@dataclass(frozen=True, slots=True)
class Translation:
    """The translation of one line."""

    text: str  # the best translation; "" for a blank line
    texts: list[str]  # the n best, best first, all different; as many as `hypotheses`
    hypotheses: list[Hypothesis]  # empty for a line that the model did not read
    src_ids: list[int]  # ids that the model read, without EOS; with EOS between the pieces of a line that was split
    utilities: list[float] = field(default_factory=list)  # of `texts` under minimum Bayes risk; else empty
    qualities: list[float] = field(default_factory=list)  # of `texts` by decode.qe; else empty
    unmet: list[str] = field(default_factory=list)  # constraints that it violates: the prefix, or phrases
    items: dict[str, str] = field(default_factory=dict)  # the text behind each placeholder in the ids, by name
    missing: list[str] = field(default_factory=list)  # protected items of the line that the best translation lacks
    doubled: list[str] = field(default_factory=list)  # items that it has too often, and placeholders without an item
    split: Split | None = None  # the line in pieces, or without the emoji at its ends
    parts: list["Translation"] = field(default_factory=list)  # translations of the pieces, in order

    @property
    def trg_ids(self) -> list[int]:
        """Ids of the best translation, without EOS; empty for a blank line."""
        return self.hypotheses[0].ids if self.hypotheses else []

    @property
    def score(self) -> float:
        """Log-probability of the best translation, divided by its length penalty; 0 for a blank line."""
        return self.hypotheses[0].normalised if self.hypotheses else 0.0

    @property
    def n_best(self) -> list[dict[str, Any]]:
        """Text and scores of the n best, with the utility under minimum Bayes risk and the quality by decode.qe."""
        entries: list[dict[str, Any]] = [
            {"output": text, "score": hypothesis.normalised, "log_prob": hypothesis.score}
            for text, hypothesis in zip(self.texts, self.hypotheses, strict=False)
        ]
        for name, values in (("utility", self.utilities), ("qe", self.qualities)):
            for entry, value in zip(entries, values, strict=False):
                entry[name] = value
        return entries


@dataclass(frozen=True, slots=True)
class Scored:
    """Result of forced decoding: log-probabilities of a given translation, or of a piece of one."""

    token_log_probs: list[float]  # of each subword, and of EOS
    src_ids: list[int]  # ids that the model read, without EOS
    trg_ids: list[int]
    items: dict[str, str] = field(default_factory=dict)  # the text behind each placeholder in the ids, by name
    warning: str | None = None  # for the user, about this line
    alignment: list[int | None] = field(default_factory=list)  # source position of each subword; [] if not computed

    @property
    def log_prob(self) -> float:
        """Log-probability of the whole translation."""
        return math.fsum(self.token_log_probs)


def searched_parts(translation: Translation) -> list[Translation]:
    """List the parts that the model searched for, each at once: the line or its pieces, without blank ones."""
    return [part for part in translation.parts or [translation] if part.hypotheses]
