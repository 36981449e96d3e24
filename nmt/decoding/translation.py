"""Results of a line: its translation, or the scores of a given one."""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nmt.decoding.beam import Hypothesis
from nmt.decoding.long_lines import Split


@dataclass(frozen=True, slots=True)
class Translation:
    """The answer to one line."""

    text: str  # the best translation; "" for a blank line
    texts: list[str]  # the n best, best first, none twice; as many as `hypotheses`
    hypotheses: list[Hypothesis]  # empty for a line that the model did not read
    src_ids: list[int]  # what the model read, without EOS; with EOS between the pieces of a line that was split
    utilities: list[float] = field(default_factory=list)  # of `texts` under minimum Bayes risk, and empty without
    qualities: list[float] = field(default_factory=list)  # of `texts` by decode.qe, and empty without
    unmet: list[str] = field(default_factory=list)  # what was asked of it and is not so: the prefix, or phrases
    items: dict[str, str] = field(default_factory=dict)  # what placeholders in the ids stand for, by name
    missing: list[str] = field(default_factory=list)  # protected items of the line that the best translation lacks
    doubled: list[str] = field(default_factory=list)  # those it has more often, and placeholders that stand for nothing
    split: Split | None = None  # a line in pieces, or with emoji taken off its ends
    parts: list["Translation"] = field(default_factory=list)  # of its pieces, in order

    @property
    def trg_ids(self) -> list[int]:
        """The subwords of the best translation, without EOS; none of a blank line."""
        return self.hypotheses[0].ids if self.hypotheses else []

    @property
    def score(self) -> float:
        """Log-probability of the best translation over its length penalty; 0 for a blank line."""
        return self.hypotheses[0].normalised if self.hypotheses else 0.0

    @property
    def n_best(self) -> list[dict[str, Any]]:
        """Text and scores of each of the best, its utility under minimum Bayes risk and its quality by decode.qe."""
        found: list[dict[str, Any]] = [
            {"output": text, "score": one.normalised, "log_prob": one.score}
            for text, one in zip(self.texts, self.hypotheses, strict=False)
        ]
        for name, values in (("utility", self.utilities), ("qe", self.qualities)):
            for each, value in zip(found, values, strict=False):
                each[name] = value
        return found


class Forced(NamedTuple):
    """Result of forced decoding of what a model read at once."""

    log_probs: list[float]  # of each subword, and of the end
    alignment: list[int | None]  # the source position of each subword; [] where not asked for, or not to be had


@dataclass(frozen=True, slots=True)
class Scored:
    """Log-probabilities of a given translation."""

    token_log_probs: list[float]  # of each subword, and of the end
    src_ids: list[int]  # what the model read, without EOS
    trg_ids: list[int]
    items: dict[str, str] = field(default_factory=dict)  # what placeholders in the ids stand for, by name
    warning: str | None = None  # what the user should know about this line
    alignment: list[int | None] = field(default_factory=list)  # as of `Forced`

    @property
    def log_prob(self) -> float:
        """The logarithm of the probability of the whole translation."""
        return math.fsum(self.token_log_probs)


def read_at_once(translation: Translation) -> list[Translation]:
    """List the parts that the model read at once: the line, or its pieces, or nothing where it is blank."""
    return [one for one in translation.parts or [translation] if one.hypotheses]
