"""What --format jsonl tells of how a translation came about: subwords, their log-probabilities, and attention."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from nmt.data.subwords import EOS, Subwords
from nmt.decoding.scorer import Look
from nmt.evaluation.alignment import subword_alignment, word_alignment, words_of
from nmt.evaluation.attention_panels import Alignment, Heads, Layers, panels

Fields = dict[str, Any]


class Witness:
    """Sees where the model looks, line by line, and keeps of it what is written.

    attends: whether there is anything to see. attention: which layers and heads are written in full, if any.
    """

    def __init__(
        self, subwords: Subwords, attention: tuple[Layers, Heads] | None = None, *, attends: bool = True
    ) -> None:
        self._subwords, self._wanted, self._attends = subwords, attention, attends
        self._alignment: dict[int, list[int]] = {}
        self._attention: dict[int, list[tuple[int, int | str, Tensor]]] = {}

    @property
    def eye(self) -> Look | None:
        """`look`, where there is anything to see."""
        return self.look if self._attends else None

    def look(self, number: int, weights: Tensor) -> None:
        """See line `number` of a window. weights: (n_layer, n_head, T, S)"""
        self._alignment[number] = subword_alignment(weights)
        if self._wanted:
            chosen = [panel for row in panels(Alignment(weights, [], []), *self._wanted) for panel in row]
            # A copy, since a view would keep the weights of the whole batch.
            self._attention[number] = [(one.layer, one.head or "mean", one.weights.clone()) for one in chosen]

    def fields(self, number: int, src_ids: Sequence[int], trg_ids: Sequence[int], told: list[float]) -> Fields:
        """What is written of line `number`, or of a blank one if it was never seen. told: log-probabilities."""
        src, trg = self._subwords.src, self._subwords.trg
        found: Fields = {
            "tokens": trg.pieces([*trg_ids, EOS]) if told else [],
            "token_log_probs": told,
            "source_tokens": src.pieces([*src_ids, EOS]) if told else [],
        }
        if not self._attends:
            return found
        if number not in self._alignment:
            return {**found, "alignment": [], "word_alignment": "", **({"attention": []} if self._wanted else {})}
        alignment = self._alignment[number]
        found["alignment"] = [*alignment, None]
        found["word_alignment"] = word_alignment(alignment, words_of(src.raw(src_ids)), words_of(trg.raw(trg_ids)))
        if self._wanted:
            found["attention"] = [
                {"layer": layer, "head": head, "weights": [[_rounded(x) for x in row] for row in weights.tolist()]}
                for layer, head, weights in self._attention[number]
            ]
        return found


def _rounded(x: float) -> float:
    """Four significant digits: attention is many numbers, and none of them means more."""
    return float(f"{x:.4g}")
