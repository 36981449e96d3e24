"""Fields beside a translation, in JSON and Python: tokens, log-probabilities, alignments, attention, and flags."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor

from nmt.data.subwords import EOS, Subwords
from nmt.decoding.long_lines import first_words, join_attention, joined
from nmt.decoding.request import Request
from nmt.decoding.scorer import LookAtPieces
from nmt.decoding.suspicion import complaints
from nmt.decoding.translation import Scored, Translation, read_at_once
from nmt.decoding.translator import Translator
from nmt.evaluation.alignment import (
    WORDS_OF_BOTH,
    ByCharacter,
    joined_alignment,
    subword_alignment,
    word_alignment,
    words_of,
)
from nmt.evaluation.attention.page import Alignment, Heads, Layers, Panel, panels
from nmt.recipe.decode_options import AlignBy
from nmt.recipe.options import Recipe

Fields = dict[str, Any]
Lost = dict[str, str]  # fields of a line that could not be computed, each with the error
_T = TypeVar("_T")
WORDS = "word_alignment"  # the field that --alignments writes by itself
MOST_WEIGHTS = 10_000_000  # of attention that are written of a line: as many take a gigabyte while they become text


def attempt(name: str, lost: Lost, compute: Callable[[], _T]) -> _T | None:
    """The value of a field that is told beside a translation; None, and an entry in `lost`, where computing it fails.

    Any error counts: no field is worth the translation that it stands beside.
    """
    try:
        return compute()
    except Exception as error:
        lost[name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return None


class AttentionRecorder:
    """Sees where the model looks, line by line, and keeps of it what is written.

    by: what alignments are read off. attends: whether there is anything to see. attention: which layers and heads are
    written in full, if any. translations: of the lines, where some may have been translated in pieces. by_character:
    whether words are characters.
    """

    def __init__(
        self,
        subwords: Subwords,
        by: AlignBy,
        attention: tuple[Layers, Heads] | None = None,
        *,
        attends: bool = True,
        translations: Sequence[Translation] = (),
        by_character: ByCharacter = WORDS_OF_BOTH,
    ) -> None:
        self._by_character = by_character
        self._subwords, self._by, self._wanted, self._attends = subwords, by, attention, attends
        self._split = {number: one for number, one in enumerate(translations) if one.split}
        # Of each line what was seen of its pieces, by their numbers: one where it was not split.
        self._alignments: dict[int, dict[int, list[int | None]]] = {}
        self._attention: dict[int, dict[int, list[Panel]]] = {}

    @property
    def callback(self) -> LookAtPieces | None:
        """`look`, where there is anything to see."""
        return self.look if self._attends else None

    def look(self, number: int, weights: Tensor, piece: int = 0) -> None:
        """See line `number` of a window, or a piece of it. weights: (n_layer, n_head, T, S)"""
        self._alignments.setdefault(number, {})[piece] = subword_alignment(weights, self._by)
        if self._wanted:
            chosen = [panel for row in panels(Alignment(weights, [], []), *self._wanted) for panel in row]
            # A copy, since a view would keep the weights of the whole batch.
            copies = [replace(one, weights=one.weights.clone()) for one in chosen]
            self._attention.setdefault(number, {})[piece] = copies

    def _alignment(self, number: int) -> list[int | None] | None:
        """Return the source position of each subword of line `number`, if it was recorded."""
        if (seen := self._alignments.get(number)) is None:
            return None
        if number not in self._split:
            return seen[0]
        pieces = read_at_once(self._split[number])
        return joined_alignment([seen[n] for n in range(len(pieces))], [len(one.src_ids) for one in pieces])

    def _with_end(self, number: int) -> list[int | None]:
        alignment = self._alignment(number)
        return [] if alignment is None else [*alignment, None]

    def _weights(self, number: int) -> list[Fields]:
        """The attention of line `number` that is written: none of a blank line, or of one that has too much of it."""
        seen = self._attention.get(number, {})
        found: list[Fields] = []
        for of_pieces in zip(*(seen[n] for n in sorted(seen)), strict=True):
            blocks = [one.weights for one in of_pieces]
            n_trg, n_src = (sum(one.size(axis) for one in blocks) for axis in (0, 1))
            if n_trg * n_src * len(seen[0]) > MOST_WEIGHTS:
                return []
            weights = [[_rounded(x) for x in row] for row in join_attention(blocks).tolist()]
            found.append({"layer": of_pieces[0].layer, "head": of_pieces[0].head or "mean", "weights": weights})
        return found

    def words(self, number: int, src_ids: Sequence[int], trg_ids: Sequence[int], items: Mapping[str, str]) -> str:
        """The alignment of the words of line `number` alone, "" for a blank one. items: that placeholders stand for."""
        if (alignment := self._alignment(number)) is None:
            return ""
        if split := self._split.get(number):
            src, trg = words_of_split(split, self._subwords, self._by_character)
        else:
            src = words_of(self._subwords.src.raw(src_ids, items), self._by_character.src)
            trg = words_of(self._subwords.trg.raw(trg_ids, items), self._by_character.trg)
        return word_alignment(alignment, src, trg)

    def fields(
        self,
        number: int,
        src_ids: Sequence[int],
        trg_ids: Sequence[int],
        told: list[float] | None,
        items: Mapping[str, str],
        lost: Lost,
    ) -> Fields:
        """Return what is written of line `number`, or of a blank one if it was never seen.

        told: log-probabilities, None where they could not be computed. lost: gets the fields that cannot be computed,
        which are None.
        """
        src, trg = self._subwords.src, self._subwords.trg
        is_blank = told == []
        found: Fields = {
            "tokens": attempt("tokens", lost, lambda: [] if is_blank else trg.pieces([*trg_ids, EOS])),
            "token_log_probs": told,
            "source_tokens": attempt("source_tokens", lost, lambda: [] if is_blank else src.pieces([*src_ids, EOS])),
        }
        if src.placeholders:
            split = self._split.get(number)
            found["items"] = [dict(one) for one in ([part.items for part in split.parts] if split else [items])]
        if not self._attends:
            return found
        if told is None:  # by the same pass
            lost |= dict.fromkeys(("alignment", WORDS, *["attention"] * bool(self._wanted)), lost["token_log_probs"])
            return found | dict.fromkeys(lost)
        found["alignment"] = attempt("alignment", lost, lambda: self._with_end(number))
        found[WORDS] = attempt(WORDS, lost, lambda: self.words(number, src_ids, trg_ids, items))
        if self._wanted:
            found["attention"] = attempt("attention", lost, lambda: self._weights(number))
        return found


class Evidence:
    """Tells how translations came about, and what looks wrong in them.

    recipe: with the options that the translator has. usual_ratios: of the lengths of both sides, by target language.
    attention: as in `AttentionRecorder`. fields: True for all fields; words: else for the alignment of words alone.
    """

    def __init__(
        self,
        translator: Translator,
        recipe: Recipe,
        usual_ratios: Mapping[str, float],
        attention: tuple[Layers, Heads] | None = None,
        *,
        fields: bool = True,
        words: bool = True,
    ) -> None:
        self._translator, self._recipe, self._usual_ratios = translator, recipe, usual_ratios
        self._attention, self._fields, self._words = attention, fields, words

    def reasons(self, request: Request, translation: Translation) -> list[str]:
        """Reasons against a translation."""
        data, decode = self._recipe.data, self._recipe.decode
        trg_lang = request.trg_lang or decode.trg_lang or data.trg_lang
        usual_ratio = self._usual_ratios.get(trg_lang)
        languages = {trg_lang, data.src_lang, *(data.languages_of(n)[0] for n in range(len(data.train)))}
        return complaints(request.source, translation, data.max_ratio, decode.low_score, usual_ratio, languages)

    def of(self, translations: Sequence[Translation]) -> list[tuple[Fields, Lost]]:
        """Return how each translation came about, and what of this could not be computed."""
        if (recorder := self._witness(translations)) is None:
            return [({}, {}) for _ in translations]
        lost: list[Lost] = [{} for _ in translations]
        whole = attempt("", {}, lambda: self._translator.token_log_probs(translations, recorder.callback))
        told: Sequence[list[float] | None] = whole or [
            self._seen_alone(recorder, n, one, lost[n]) for n, one in enumerate(translations)
        ]
        found = []
        for n, one in enumerate(translations):
            trg_ids = one.hypotheses[0].ids if one.hypotheses else []
            found.append((self._told(recorder, n, one.src_ids, trg_ids, told[n], one.items, lost[n]), lost[n]))
        return found

    def of_given(self, sources: Sequence[Request], targets: Sequence[str]) -> list[tuple[Scored, Fields, Lost]]:
        """Score given translations. Returns the same of them."""
        recorder = self._witness()
        found = []
        for n, one in enumerate(self._translator.score(sources, targets, recorder.callback if recorder else None)):
            lost: Lost = {}
            its = self._told(recorder, n, one.src_ids, one.trg_ids, one.token_log_probs, one.items, lost)
            found.append((one, its, lost))
        return found

    def _seen_alone(self, recorder: AttentionRecorder, line: int, one: Translation, lost: Lost) -> list[float] | None:
        """Log-probabilities of a line by itself, where some line of its batch cannot have them."""
        if not one.hypotheses:
            return []

        def look(number: int, weights: Tensor, piece: int = 0) -> None:
            recorder.look(line + number, weights, piece)

        callback: LookAtPieces | None = look if recorder.callback else None
        its = attempt("token_log_probs", lost, lambda: self._translator.token_log_probs([one], callback))
        return None if its is None else its[0]

    def _witness(self, translations: Sequence[Translation] = ()) -> AttentionRecorder | None:
        """Make the recorder of some translations, where anything of them is written."""
        if not (self._fields or self._words):
            return None
        return AttentionRecorder(
            self._translator.subwords,
            self._recipe.decode.align_by,
            self._attention,
            attends=self._translator.attends,
            translations=translations,
            by_character=ByCharacter.of(self._recipe),
        )

    def _told(
        self,
        recorder: AttentionRecorder | None,
        number: int,
        src_ids: list[int],
        trg_ids: list[int],
        told: list[float] | None,
        items: dict[str, str],
        lost: Lost,
    ) -> Fields:
        if recorder is None:
            return {}
        if not self._fields:
            if told is None:  # by the same pass
                lost[WORDS] = lost.pop("token_log_probs")
                return {WORDS: None}
            return {WORDS: attempt(WORDS, lost, lambda: recorder.words(number, src_ids, trg_ids, items))}
        return recorder.fields(number, src_ids, trg_ids, told, items, lost)


def log_prob_of(translation: Translation, of_tokens: Sequence[float] | None) -> float:
    """The log-probability of a translation by forced decoding, or where that could not be done as the search has it."""
    return translation.hypotheses[0].score if of_tokens is None else math.fsum(of_tokens)


def attention_note(evidence: Fields) -> str:
    """Note about attention that is left out, "" for none."""
    if evidence.get("attention") == [] and evidence.get("tokens"):
        return f"its attention, of more than {MOST_WEIGHTS:,} weights, is left out"
    return ""


def lost_note(lost: Lost) -> str:
    """Warning about the fields of a line that could not be computed, "" for none."""
    if not lost:
        return ""
    return f"{', '.join(lost)} left out, an internal error ({next(iter(lost.values()))}); its translation is whole"


def words_of_split(
    translation: Translation, subwords: Subwords, by_character: ByCharacter = WORDS_OF_BOTH
) -> tuple[list[list[int]], list[list[int]]]:
    """Return `words_of` both sides of a line in pieces: a word of a piece may be part of one of the line, and the other
    way round."""
    line = translation.split
    assert line is not None
    there = [n for n, one in enumerate(translation.parts) if one.hypotheses]
    found = []
    for codec, by, texts, rows in (
        (subwords.src, by_character.src, line.pieces, [one.src_ids for one in translation.parts]),
        (subwords.trg, by_character.trg, *_written(translation.parts)),
    ):
        whole, places = joined(line, texts)
        first = first_words(whole, places, by)
        words: list[list[int]] = []
        for n in there:
            raw = codec.raw(rows[n], translation.parts[n].items)
            own = [[word + first[n] for word in its] for its in words_of(raw, by)]
            words += own if n == there[0] else [[], *own]  # an end between
        found.append(words)
    src, trg = found
    return src, trg


def _written(parts: Sequence[Translation]) -> tuple[list[str], list[list[int]]]:
    return [one.text for one in parts], [one.hypotheses[0].ids if one.hypotheses else [] for one in parts]


def _rounded(x: float) -> float:
    """Four significant digits: attention is many numbers, and none of them means more."""
    return float(f"{x:.4g}")
