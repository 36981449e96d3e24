"""What --format jsonl tells of how a translation came about: subwords, their log-probabilities, and attention."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from nmt.data.subwords import EOS, Subwords
from nmt.decoding.long_lines import first_words, joined
from nmt.decoding.scorer import Look
from nmt.decoding.translation import Translation
from nmt.evaluation.alignment import subword_alignment, word_alignment, words_of
from nmt.evaluation.attention_panels import Alignment, Heads, Layers, panels
from nmt.recipe.decode_options import AlignBy

Fields = dict[str, Any]
WORDS = "word_alignment"  # the field that --alignments writes by itself


class Witness:
    """Sees where the model looks, line by line, and keeps of it what is written.

    by: what alignments are read off. attends: whether there is anything to see. attention: which layers and heads are
    written in full, if any. translations: of the lines, where some may have been translated in pieces.
    """

    def __init__(
        self,
        subwords: Subwords,
        by: AlignBy,
        attention: tuple[Layers, Heads] | None = None,
        *,
        attends: bool = True,
        translations: Sequence[Translation] = (),
    ) -> None:
        self._subwords, self._by, self._wanted, self._attends = subwords, by, attention, attends
        self._split = {number: one for number, one in enumerate(translations) if one.split}
        self._alignment: dict[int, list[int | None]] = {}
        self._attention: dict[int, list[tuple[int, int | str, Tensor]]] = {}

    @property
    def eye(self) -> Look | None:
        """`look`, where there is anything to see."""
        return self.look if self._attends else None

    def look(self, number: int, weights: Tensor) -> None:
        """See line `number` of a window. weights: (n_layer, n_head, T, S)"""
        split = self._split.get(number)
        ends = [_ends(split.src_ids), _ends(split.hypotheses[0].ids)] if split else []
        self._alignment[number] = subword_alignment(weights, self._by, *ends)
        if self._wanted:
            chosen = [panel for row in panels(Alignment(weights, [], []), *self._wanted) for panel in row]
            # A copy, since a view would keep the weights of the whole batch.
            self._attention[number] = [(one.layer, one.head or "mean", one.weights.clone()) for one in chosen]

    def words(self, number: int, src_ids: Sequence[int], trg_ids: Sequence[int], items: Mapping[str, str]) -> Fields:
        """The alignment of the words of line `number` alone, "" for a blank one. items: that placeholders stand for."""
        if number not in self._alignment:
            return {WORDS: ""}
        if split := self._split.get(number):
            src, trg = words_of_split(split, self._subwords)
        else:
            src = words_of(self._subwords.src.raw(src_ids, items))
            trg = words_of(self._subwords.trg.raw(trg_ids, items))
        return {WORDS: word_alignment(self._alignment[number], src, trg)}

    def fields(
        self, number: int, src_ids: Sequence[int], trg_ids: Sequence[int], told: list[float], items: Mapping[str, str]
    ) -> Fields:
        """What is written of line `number`, or of a blank one if it was never seen. told: log-probabilities."""
        src, trg = self._subwords.src, self._subwords.trg
        found: Fields = {
            "tokens": trg.pieces([*trg_ids, EOS]) if told else [],
            "token_log_probs": told,
            "source_tokens": src.pieces([*src_ids, EOS]) if told else [],
        }
        if src.placeholders:
            split = self._split.get(number)
            found["items"] = [dict(one) for one in ([part.items for part in split.parts] if split else [items])]
        if not self._attends:
            return found
        found["alignment"] = [*self._alignment[number], None] if number in self._alignment else []
        found |= self.words(number, src_ids, trg_ids, items)
        if self._wanted:
            found["attention"] = [
                {"layer": layer, "head": head, "weights": [[_rounded(x) for x in row] for row in weights.tolist()]}
                for layer, head, weights in self._attention.get(number, [])
            ]
        return found


def words_of_split(translation: Translation, subwords: Subwords) -> tuple[list[list[int]], list[list[int]]]:
    """What `words_of` says of both sides of a line that was translated in pieces, of which each was read by itself:
    what is a word there may be part of one in the line, and the other way round."""
    line = translation.split
    assert line is not None
    there = [n for n, one in enumerate(translation.parts) if one.hypotheses]
    found = []
    for codec, texts, rows in (
        (subwords.src, line.pieces, [one.src_ids for one in translation.parts]),
        (subwords.trg, *_written(translation.parts)),
    ):
        whole, places = joined(line, texts)
        first = first_words(whole, places)
        words: list[list[int]] = []
        for n in there:
            raw = codec.raw(rows[n], translation.parts[n].items)
            own = [[word + first[n] for word in its] for its in words_of(raw)]
            words += [[], *own] if words else own  # an end between
        found.append(words)
    src, trg = found
    return src, trg


def _written(parts: Sequence[Translation]) -> tuple[list[str], list[list[int]]]:
    return [one.text for one in parts], [one.hypotheses[0].ids if one.hypotheses else [] for one in parts]


def _ends(ids: Sequence[int]) -> list[int]:
    return [place for place, i in enumerate(ids) if i == EOS]


def _rounded(x: float) -> float:
    """Four significant digits: attention is many numbers, and none of them means more."""
    return float(f"{x:.4g}")
