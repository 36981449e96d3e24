"""Fields beside a translation, in JSON and Python: tokens, log-probabilities, alignments, attention, and flags."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar

from nmt.data.subwords import EOS, Codec, Subwords
from nmt.decoding.beam import Hypothesis
from nmt.decoding.long_lines import first_words, joined
from nmt.decoding.request import Request
from nmt.decoding.suspicion import complaints
from nmt.decoding.translation import Forced, Scored, Translation, read_at_once
from nmt.decoding.translator import Translator
from nmt.evaluation.alignment import aligns_characters, joined_alignment, word_alignment, words_of
from nmt.languages import language_of
from nmt.recipe.options import Recipe

Fields = dict[str, Any]
Lost = dict[str, str]  # fields of a line that could not be computed, each with the error
_T = TypeVar("_T")
WORDS = "word_alignment"  # the field that --alignments writes by itself


def attempt(name: str, lost: Lost, compute: Callable[[], _T]) -> _T | None:
    """The value of a field that is told beside a translation; None, and an entry in `lost`, where computing it fails.

    Any error counts: no field is worth the translation that it stands beside.
    """
    try:
        return compute()
    except Exception as error:
        lost[name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return None


@dataclass(frozen=True, slots=True)
class Evidence:
    """Tells how translations came about, and what looks wrong in them."""

    translator: Translator
    recipe: Recipe
    usual_ratios: Mapping[str, float]
    fields: bool = True  # all fields
    words: bool = True  # else the alignment of words alone

    def reasons(self, request: Request, translation: Translation) -> list[str]:
        """Reasons against a translation."""
        data, decode = self.recipe.data, self.recipe.decode
        trg_lang = language_of(request.trg_lang or decode.trg_lang or data.trg_lang).code
        usual_ratio = self.usual_ratios.get(trg_lang)
        languages = {trg_lang, data.src_lang, *(data.languages_of(n)[0] for n in range(len(data.train)))}
        return complaints(request.source, translation, data.max_ratio, decode.low_score, usual_ratio, languages)

    def of(self, requests: Sequence[Request], translations: Sequence[Translation]) -> list[tuple[Fields, Lost]]:
        """Return how each translation came about, and what of this could not be computed."""
        if not (self.fields or self.words):
            return [({}, {}) for _ in translations]
        forced = partial(self.translator.forced, align=True)
        told = attempt("", {}, lambda: forced(translations))

        @cache
        def forced_of(n: int) -> list[Forced]:
            # Where some line cannot have it, each is computed by itself.
            return forced(translations[n : n + 1])[0] if told is None else told[n]

        both = enumerate(zip(requests, translations, strict=True))
        return [self._told(request, one, partial(forced_of, n)) for n, (request, one) in both]

    def of_given(self, sources: Sequence[Request], targets: Sequence[str]) -> list[tuple[Scored, Fields, Lost]]:
        """Score given translations. Returns the same of them."""
        found = list[tuple[Scored, Fields, Lost]]()
        is_told = self.fields or self.words
        scored = self.translator.score(sources, targets, align=is_told)
        for request, one, text in zip(sources, scored, targets, strict=True):
            there = bool(one.token_log_probs)
            best = [Hypothesis(one.trg_ids, one.log_prob, one.log_prob, True)] * there
            line = Translation(text, [text], best, one.src_ids, items=one.items)
            forced = [Forced(one.token_log_probs, one.alignment)] * there
            fields, lost = self._told(request, line, forced.copy) if is_told else ({}, {})
            found.append((one, fields, lost))
        return found

    def _told(self, request: Request, one: Translation, forced: Callable[[], Sequence[Forced]]) -> tuple[Fields, Lost]:
        """Return what is written of a line, and what of this could not be computed, which is None. forced: makes the
        results of all that was read at once."""
        subwords, is_read = self.translator.subwords, bool(one.hypotheses)

        def tokens(codec: Codec, ids: list[int]) -> list[str]:
            return codec.pieces([*ids, EOS]) if is_read else []

        def alignment() -> list[int | None]:
            src_len = [len(part.src_ids) for part in read_at_once(one)]
            return joined_alignment([part.alignment for part in forced()], src_len)

        def words() -> str:
            both = words_of_line(one, subwords, aligns_characters(self.recipe, request.trg_lang))
            return word_alignment(alignment(), *both) if is_read else ""

        wanted: dict[str, Callable[[], Any]] = {
            "tokens": lambda: tokens(subwords.trg, one.trg_ids),
            "token_log_probs": lambda: [value for part in forced() for value in part.log_probs],
            "source_tokens": lambda: tokens(subwords.src, one.src_ids),
        }
        if subwords.src.placeholders:
            wanted["items"] = lambda: [dict(part.items) for part in one.parts or [one]]
        if self.translator.model.attends:
            wanted |= {"alignment": lambda: [*alignment(), None] if is_read else [], WORDS: words}
        if not self.fields:
            wanted = {WORDS: words}
        lost = Lost()
        return {name: attempt(name, lost, compute) for name, compute in wanted.items()}, lost


def log_prob_of(translation: Translation, of_tokens: Sequence[float] | None) -> float:
    """The log-probability of a translation by forced decoding, or where that could not be done as the search has it."""
    return translation.hypotheses[0].score if of_tokens is None else math.fsum(of_tokens)


def lost_note(lost: Lost) -> str:
    """Warning about the fields of a line that could not be computed, "" for none."""
    if not lost:
        return ""
    return f"{', '.join(lost)} left out, an internal error ({next(iter(lost.values()))}); its translation is whole"


def words_of_line(
    one: Translation, subwords: Subwords, by_character: tuple[bool, bool]
) -> tuple[list[list[int]], list[list[int]]]:
    """Return `words_of` both sides of a line: a word of a piece may be part of one of the line, and the other way
    round."""
    parts, line = one.parts or [one], one.split
    read = [n for n, part in enumerate(parts) if part.hypotheses]
    by_src, by_trg = by_character
    found = []
    for codec, by, texts, rows in (
        (subwords.src, by_src, line.pieces if line else [], [part.src_ids for part in parts]),
        (subwords.trg, by_trg, [part.text for part in parts], [part.trg_ids for part in parts]),
    ):
        first = first_words(*joined(line, texts), by) if line else [0]
        words: list[list[int]] = []
        for n in read:
            own = [[word + first[n] for word in its] for its in words_of(codec.raw(rows[n], parts[n].items), by)]
            words += own if n == read[0] else [[], *own]  # an end between
        found.append(words)
    return found[0], found[1]
