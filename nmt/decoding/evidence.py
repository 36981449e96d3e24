"""Fields beside a translation, in JSON and Python: tokens, log-probabilities, alignments, attention, and flags."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from nmt.data.subwords import EOS, Subwords
from nmt.decoding.long_lines import first_words, joined
from nmt.decoding.request import Request
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
from nmt.recipe.options import Recipe

Fields = dict[str, Any]
Lost = dict[str, str]  # fields of a line that could not be computed, each with the error
_T = TypeVar("_T")
WORDS = "word_alignment"  # the field that --alignments writes by itself
Seen = dict[int, list[int | None]]  # the source position of each subword of a line, by the number of the piece


def attempt(name: str, lost: Lost, compute: Callable[[], _T]) -> _T | None:
    """The value of a field that is told beside a translation; None, and an entry in `lost`, where computing it fails.

    Any error counts: no field is worth the translation that it stands beside.
    """
    try:
        return compute()
    except Exception as error:
        lost[name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return None


class Evidence:
    """Tells how translations came about, and what looks wrong in them.

    fields: True for all fields; words: else for the alignment of words alone.
    """

    def __init__(
        self,
        translator: Translator,
        recipe: Recipe,
        usual_ratios: Mapping[str, float],
        *,
        fields: bool = True,
        words: bool = True,
    ) -> None:
        self._translator, self._recipe, self._usual_ratios = translator, recipe, usual_ratios
        self._fields, self._words = fields, words

    def reasons(self, request: Request, translation: Translation) -> list[str]:
        """Reasons against a translation."""
        data, decode = self._recipe.data, self._recipe.decode
        trg_lang = request.trg_lang or decode.trg_lang or data.trg_lang
        usual_ratio = self._usual_ratios.get(trg_lang)
        languages = {trg_lang, data.src_lang, *(data.languages_of(n)[0] for n in range(len(data.train)))}
        return complaints(request.source, translation, data.max_ratio, decode.low_score, usual_ratio, languages)

    def of(self, translations: Sequence[Translation]) -> list[tuple[Fields, Lost]]:
        """Return how each translation came about, and what of this could not be computed."""
        if not (self._fields or self._words):
            return [({}, {}) for _ in translations]
        lost: list[Lost] = [{} for _ in translations]
        seen: list[Seen] = [{} for _ in translations]

        def log_probs(first: int, end: int) -> list[list[float]]:
            return self._translator.token_log_probs(translations[first:end], self._look(seen[first:end]))

        told: Sequence[list[float] | None] | None = attempt("", {}, lambda: log_probs(0, len(seen)))
        if told is None:  # some line cannot have them: each by itself
            alone: list[list[list[float]] | None] = [
                attempt("token_log_probs", lost[n], partial(log_probs, n, n + 1)) if one.hypotheses else [[]]
                for n, one in enumerate(translations)
            ]
            told = [one[0] if one else None for one in alone]
        return [(self._told(*each), each[-1]) for each in zip(translations, seen, told, lost, strict=True)]

    def of_given(self, sources: Sequence[Request], targets: Sequence[str]) -> list[tuple[Scored, Fields, Lost]]:
        """Score given translations. Returns the same of them."""
        lost: list[Lost] = [{} for _ in sources]
        seen: list[Seen] = [{} for _ in sources]
        is_told = self._fields or self._words
        scored = self._translator.score(sources, targets, self._look(seen) if is_told else None)
        return [
            (one, self._told(one, its, one.token_log_probs, missing) if is_told else {}, missing)
            for one, its, missing in zip(scored, seen, lost, strict=True)
        ]

    def _look(self, seen: Sequence[Seen]) -> Callable[..., object] | None:
        """Return what notes where the model looks in each line; None where there is nothing to see."""
        if not self._translator.attends:
            return None

        def look(number: int, weights: Tensor, piece: int = 0) -> None:
            seen[number][piece] = subword_alignment(weights, self._recipe.decode.align_by)

        return look

    def _told(self, one: Translation | Scored, seen: Seen, log_probs: list[float] | None, lost: Lost) -> Fields:
        """Return what is written of a line. log_probs: None where they could not be computed. lost: gets the fields
        that cannot be computed, which are None."""
        subwords, src_ids, attends = self._translator.subwords, one.src_ids, self._translator.attends
        split = one if isinstance(one, Translation) and one.split else None
        trg_ids = _trg_ids(one) if isinstance(one, Translation) else one.trg_ids
        pieces = [seen[n] for n in sorted(seen)]

        def alignment() -> list[int | None]:
            src_len = [len(part.src_ids) for part in (read_at_once(split) if split else [one])]
            return joined_alignment(pieces, src_len)

        def words() -> str:
            by_character = ByCharacter.of(self._recipe)
            if not pieces:
                return ""
            if split:
                return word_alignment(alignment(), *words_of_split(split, subwords, by_character))
            src = words_of(subwords.src.raw(src_ids, one.items), by_character.src)
            return word_alignment(alignment(), src, words_of(subwords.trg.raw(trg_ids, one.items), by_character.trg))

        if not self._fields:
            if log_probs is None:  # by the same pass
                lost[WORDS] = lost.pop("token_log_probs")
                return {WORDS: None}
            return {WORDS: attempt(WORDS, lost, words)}
        is_blank = log_probs == []
        found: Fields = {
            "tokens": attempt("tokens", lost, lambda: [] if is_blank else subwords.trg.pieces([*trg_ids, EOS])),
            "token_log_probs": log_probs,
            "source_tokens": attempt(
                "source_tokens", lost, lambda: [] if is_blank else subwords.src.pieces([*src_ids, EOS])
            ),
        }
        if subwords.src.placeholders:
            found["items"] = [dict(part.items) for part in (split.parts if split else [one])]
        if attends and log_probs is None:  # by the same pass
            lost |= dict.fromkeys(("alignment", WORDS), lost["token_log_probs"])
            return found | dict.fromkeys(lost)
        if attends:
            found["alignment"] = attempt("alignment", lost, lambda: [*alignment(), None] if pieces else [])
            found[WORDS] = attempt(WORDS, lost, words)
        return found


def _trg_ids(one: Translation) -> list[int]:
    return one.hypotheses[0].ids if one.hypotheses else []


def log_prob_of(translation: Translation, of_tokens: Sequence[float] | None) -> float:
    """The log-probability of a translation by forced decoding, or where that could not be done as the search has it."""
    return translation.hypotheses[0].score if of_tokens is None else math.fsum(of_tokens)


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
    line, parts = translation.split, translation.parts
    assert line is not None
    there = [n for n, one in enumerate(parts) if one.hypotheses]
    found = []
    for codec, by, texts, rows in (
        (subwords.src, by_character.src, line.pieces, [one.src_ids for one in parts]),
        (subwords.trg, by_character.trg, [one.text for one in parts], list(map(_trg_ids, parts))),
    ):
        first = first_words(*joined(line, texts), by)
        words: list[list[int]] = []
        for n in there:
            own = [[word + first[n] for word in its] for its in words_of(codec.raw(rows[n], parts[n].items), by)]
            words += own if n == there[0] else [[], *own]  # an end between
        found.append(words)
    return found[0], found[1]
