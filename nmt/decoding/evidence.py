"""Fields of a translation in JSON and Python: tokens, log-probabilities, word alignments, and quality flags.

An alignment is made of the weights of cross-attention while the translation was written: a hint, not a proof.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice, repeat
from typing import Any, TypeVar

from nmt.data.subwords import EOS, Codec, Subwords
from nmt.decoding import suspicion
from nmt.decoding.beam import Hypothesis
from nmt.decoding.long_lines import Split, joined
from nmt.decoding.request import Request
from nmt.decoding.translator import Scored, Translation, Translator
from nmt.languages import language_of
from nmt.recipe.options import Recipe

Fields = dict[str, Any]
Lost = dict[str, str]  # fields of a line that could not be computed, each with the error
_T = TypeVar("_T")


def attempt(name: str, lost: Lost, compute: Callable[[], _T]) -> _T | None:
    """Return the value of a field; None, and an entry in `lost`, if computing it fails. Every error is caught, since a
    field must not cost the translation."""
    try:
        return compute()
    except Exception as error:
        lost[name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return None


@dataclass(frozen=True, slots=True)
class Evidence:
    """Computes the fields of translations, and reasons against them."""

    translator: Translator
    recipe: Recipe
    usual_ratios: Mapping[str, float]
    fields: bool = True  # False: only reasons are needed

    def reasons(self, request: Request, translation: Translation) -> list[str]:
        """Return the reasons against the best translation of a line: those of its text, and those of its search."""
        if not translation.hypotheses:
            return []
        data, low_score, best = self.recipe.data, self.recipe.decode.low_score, translation.hypotheses[0]
        trg_lang = language_of(request.trg_lang or trg_lang_of(self.recipe)).code
        usual_ratio = self.usual_ratios.get(trg_lang)
        languages = {trg_lang, data.src_lang, *(data.languages_of(n)[0] for n in range(len(data.train)))}
        names = [] if best.finished else [suspicion.CAP]
        names += suspicion.reasons(request.source, translation.text, data.max_ratio, usual_ratio, languages)
        checks = {
            "low": low_score < 0 and best.score / (len(best.ids) + 1) < low_score,
            "missing": translation.missing,
            "doubled": translation.doubled,
            "unmet": translation.unmet,
        }
        return names + [name for name, failed in checks.items() if failed]

    def of(self, requests: Sequence[Request], translations: Sequence[Translation]) -> list[tuple[Fields, Lost]]:
        """Return the fields of each translation, and the errors of those that could not be computed."""
        if not self.fields:
            return [({}, {}) for _ in translations]
        all_forced = attempt("", {}, lambda: self.translator.forced(translations))

        @cache
        def forced_of(n: int) -> Scored:
            # If one line made it fail for all, decode each line by itself.
            return self.translator.forced(translations[n : n + 1])[0] if all_forced is None else all_forced[n]

        lines = enumerate(zip(requests, translations, strict=True))
        return [self._fields_of(request, translation, partial(forced_of, n)) for n, (request, translation) in lines]

    def of_given(self, sources: Sequence[Request], targets: Sequence[str]) -> list[tuple[Scored, Fields, Lost]]:
        """Score given translations. Returns the scores, and fields and errors as `of` does."""
        results = list[tuple[Scored, Fields, Lost]]()
        all_scored = self.translator.score(sources, targets, align=self.fields)
        for request, scored, text in zip(sources, all_scored, targets, strict=True):
            was_read = bool(scored.token_log_probs)
            best = [Hypothesis(scored.trg_ids, scored.log_prob, scored.log_prob, True)] * was_read
            translation = Translation(text, [text], best, scored.src_ids, items=scored.items)
            forced = repeat(scored).__next__
            fields, lost = self._fields_of(request, translation, forced) if self.fields else ({}, {})
            results.append((scored, fields, lost))
        return results

    def _fields_of(
        self, request: Request, translation: Translation, forced: Callable[[], Scored]
    ) -> tuple[Fields, Lost]:
        """Return the fields of a line, None if they could not be computed, and the errors of those. forced: computes
        the result of `Translator.forced`."""
        subwords, was_read = self.translator.subwords, bool(translation.hypotheses)

        def tokens(codec: Codec, ids: list[int]) -> list[str]:
            return codec.pieces([*ids, EOS]) if was_read else []

        def words() -> str:
            sides = words_of_line(translation, subwords, aligns_characters(self.recipe, request.trg_lang))
            return word_alignment(forced().alignment, *sides) if was_read else ""

        functions: dict[str, Callable[[], Any]] = {
            "tokens": lambda: tokens(subwords.trg, translation.trg_ids),
            "token_log_probs": lambda: forced().token_log_probs,
            "source_tokens": lambda: tokens(subwords.src, translation.src_ids),
        }
        if subwords.src.placeholders:
            functions["items"] = lambda: [dict(part.items) for part in translation.parts or [translation]]
        if self.translator.model.attends:
            functions |= {"alignment": lambda: [*forced().alignment, None] if was_read else [], "word_alignment": words}
        lost = Lost()
        return {name: attempt(name, lost, compute) for name, compute in functions.items()}, lost


def log_prob_of(translation: Translation, token_log_probs: Sequence[float] | None) -> float:
    """Return the log-probability of a translation by forced decoding; if that failed, the score of the search."""
    return translation.hypotheses[0].score if token_log_probs is None else math.fsum(token_log_probs)


def words_of_line(
    translation: Translation, subwords: Subwords, by_character: tuple[bool, bool]
) -> tuple[list[list[int]], list[list[int]]]:
    """Return `words_of` source and target, with the words numbered in the line: a word of a piece may be a part of a
    word of the line, or several words."""
    parts, line = translation.parts or [translation], translation.split or Split([""], ["", ""])
    searched = [n for n, part in enumerate(parts) if part.hypotheses]
    src_by_character, trg_by_character = by_character
    sides = []
    for codec, is_by_character, texts, rows in (
        (subwords.src, src_by_character, line.pieces, [part.src_ids for part in parts]),
        (subwords.trg, trg_by_character, [part.text for part in parts], [part.trg_ids for part in parts]),
    ):
        words_of_parts = words_of([text.encode() for text in joined(line, texts)], is_by_character)
        first = [min(numbers, default=0) for numbers in words_of_parts[1::2]]  # of each piece, without white space
        words: list[list[int]] = []
        for n in searched:
            piece_words = words_of(codec.raw(rows[n], parts[n].items), is_by_character)
            shifted = [[word + first[n] for word in subword] for subword in piece_words]
            words += shifted if n == searched[0] else [[], *shifted]  # EOS between pieces has no word
        sides.append(words)
    return sides[0], sides[1]


def aligns_characters(recipe: Recipe, trg_lang: str | None = None) -> tuple[bool, bool]:
    """Return a flag for source and target: True if characters are aligned, not words, by decode.align_units. trg_lang:
    target language of the line, if it differs from the recipe's."""
    units, langs = recipe.decode.align_units, (recipe.data.src_lang, trg_lang or trg_lang_of(recipe))
    src, trg = (units == "characters" or (units == "auto" and language_of(lang).is_unspaced) for lang in langs)
    return src, trg


def trg_lang_of(recipe: Recipe) -> str:
    """Return the target language of lines that set none themselves."""
    return recipe.decode.trg_lang or recipe.data.trg_lang


def words_of(pieces: Sequence[bytes], by_character: bool = False) -> list[list[int]]:
    """Return, for each piece of a text, the numbers from 0 of the words that it is part of. Most pieces have one; white
    space, in the sense of `str.split`, has none. by_character: count characters, not words."""
    word_of_byte: list[int | None] = []
    n_word, in_word = 0, False
    # A byte that is not UTF-8, which is written as U+FFFD, counts as one character here, and so as part of a word.
    for character in b"".join(pieces).decode("utf-8", errors="surrogateescape"):
        if character.isspace():
            in_word = False
        elif by_character or not in_word:
            in_word, n_word = True, n_word + 1
        width = len(character.encode("utf-8", errors="surrogateescape"))
        word_of_byte += [n_word - 1 if in_word else None] * width
    words = iter(word_of_byte)
    return [sorted({word for word in islice(words, len(piece)) if word is not None}) for piece in pieces]


def word_alignment(subwords: Sequence[int | None], src: Sequence[Sequence[int]], trg: Sequence[Sequence[int]]) -> str:
    """Return the pairs of words with aligned subwords, as 0-0 1-2: source, target, sorted (the Pharaoh format).

    subwords: the source subword of each target subword. src, trg: the words of each subword, by `words_of`.
    """
    aligned = ((words, origin) for words, origin in zip(trg, subwords, strict=True) if origin is not None)
    pairs = {(i, j) for words, origin in aligned for j in words for i in src[origin]}
    return " ".join(f"{i}-{j}" for i, j in sorted(pairs))
