"""What the model does for the lines of a window, with answers as text: to another process, to the disk and back.

JSON keeps every digit of a number, so an answer that comes back is the one that went.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from torch import Tensor

from nmt.api import load
from nmt.cli.parser import overrides_of
from nmt.cli.translating.evidence import WORDS, Fields, Lost, Witness, attempt
from nmt.cli.translating.recall import Key
from nmt.decoding.constraints.request import Kept, Request
from nmt.decoding.long_lines import Split
from nmt.decoding.retry import Answer, mend, tries
from nmt.decoding.scoring.scorer import LookAtPieces
from nmt.decoding.search.beam import Hypothesis
from nmt.decoding.suspicion import complaints
from nmt.decoding.translation import Scored, Translation
from nmt.decoding.translator import Translator
from nmt.evaluation.alignment import ByCharacter
from nmt.kernels.allocator import keep_freed_blocks
from nmt.recipe.options import Recipe
from nmt.recipe.reader import read_recipe
from nmt.run import Run


@dataclass(frozen=True, slots=True)
class Told:
    """Facts about one line. evidence: how its translation came about, where that is written, and else empty.

    lost: what of this, or of the flags, could not be computed, each with the error.
    """

    answer: Answer
    evidence: Fields
    lost: Lost = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToldScore:
    """Facts about a given translation. evidence, lost: as in `Told`."""

    scored: Scored
    evidence: Fields
    lost: Lost = field(default_factory=dict)


def key_of(request: Request) -> Key:
    """What the answer to a request follows from; where a translation is given, that comes behind it."""
    if not request.asks and not request.is_tagged:
        return (request.source,)
    asked: list[object] = [request.prefix, request.required, request.avoided, request.origins]
    if request.is_tagged or request.kept:
        asked += [request.trg_lang, request.tags]
    if request.kept:
        asked.append([(one.text, one.start, one.end, one.opened) for one in request.kept])
    return request.source, json.dumps(asked, ensure_ascii=False)


def request_of(key: Key) -> Request:
    """The request that `key_of` made it of."""
    if len(key) == 1:
        return Request(key[0])
    prefix, required, avoided, origins, *own = json.loads(key[1])
    trg_lang, tags = own[:2] or (None, None)
    parts = own[2] if len(own) > 2 else ()
    return Request(
        key[0],
        prefix,
        tuple(required),
        tuple(avoided),
        tuple(tuple((start, end) for start, end in places) for places in origins),
        trg_lang=trg_lang,
        tags=None if tags is None else tuple(tags),
        kept=tuple(Kept(text, start, end, (before, after)) for text, start, end, (before, after) in parts),
    )


def recipe_of(args: argparse.Namespace) -> Recipe:
    """The recipe of the first run with the options that were given, --mbr written out; those named go before that.

    Raises RunError for what is no run, and RecipeError for options.
    """
    run = Run(args.run[0])
    if not run.exists:
        run.recipe()  # which says so
    given = overrides_of(args)
    short = [] if args.mbr is None else [("decode.samples", str(args.mbr)), ("decode.mbr", "chrf")]
    return read_recipe(run.recipe_file, [one for one in short if one[0] not in dict(given)] + given)


def fingerprints(args: argparse.Namespace) -> list[str]:
    """What stands for the weights and vocabularies that `Answering` loads. Raises RunError, as `recipe_of` does."""
    return [Run(run).fingerprint(name) for run in args.run for name in args.checkpoint or [None]]


class Answering:
    """The model behind the flags, which answers lines, or scores given translations of them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.recipe = recipe_of(args)
        keep_freed_blocks()
        model, decode = load(args.run, checkpoint=args.checkpoint, device=args.device), self.recipe.decode
        self.translator: Translator = model.translator(decode)
        # By run whose training has not ended, the checkpoint that was taken; by run whose training goes on, None.
        self.unfinished: dict[str, str | None] = {}
        if not args.checkpoint:
            for run, name in zip(args.run, model.weights, strict=True):
                if name != Run(run).model_folder.name:
                    self.unfinished[run] = name
                elif Run(run).goes_on():
                    self.unfinished[run] = None
        again = tries(decode) if args.retry_suspect else {}
        self._again: dict[str, Translator] = {name: model.translator(one) for name, one in again.items()}
        self._usual_ratios = Run(args.run[0]).usual_ratios()
        self._scores, self._writes_json = bool(args.score), args.format == "jsonl"
        self._aligns = bool(args.alignments)
        self._wanted = (args.layer, args.head) if args.with_attention else None

    def tasks(self, keys: Sequence[Key]) -> list[list[int]]:
        """The places of the lines, those together that share a batch: that much can be done somewhere else."""
        if self._scores:
            return [list(range(len(keys)))]
        return self.translator.shared([request_of(key) for key in keys])

    def answer(self, keys: Sequence[Key]) -> list[str]:
        """The answer to each line, to be read by `answer_of` or `scored_of`."""
        if self._scores:
            return [_text(one) for one in self._score(keys)]
        requests = [request_of(key) for key in keys]
        unflagged: dict[Request, Lost] = {}

        def why(request: Request, translation: Translation) -> list[str]:
            lost = unflagged.setdefault(request, {})
            return attempt("flags", lost, lambda: self._why(request, translation)) or []

        answers = mend(requests, list(self.translator.translate(requests)), self._again, why)
        found = zip(requests, answers, self._evidence(answers), strict=True)
        return [_text(Told(one, its, lost | unflagged[request])) for request, one, (its, lost) in found]

    def _score(self, keys: Sequence[Key]) -> list[ToldScore]:
        witness = self._witness()
        sources, targets = [request_of(key[:-1]) for key in keys], [key[-1] for key in keys]
        found = list(self.translator.score(sources, targets, witness.eye if witness else None))
        told = []
        for n, one in enumerate(found):
            lost: Lost = {}
            its = self._fields(witness, n, one.src_ids, one.trg_ids, one.token_log_probs, one.items, lost)
            told.append(ToldScore(one, its, lost))
        return told

    def _evidence(self, answers: Sequence[Answer]) -> list[tuple[Fields, Lost]]:
        """Return how each translation came about, where that is written, and what of this could not be computed."""
        translations = [answer.translation for answer in answers]
        if (witness := self._witness(translations)) is None:
            return [({}, {}) for _ in answers]
        lost: list[Lost] = [{} for _ in answers]
        whole = attempt("", {}, lambda: self.translator.token_log_probs(translations, witness.eye))
        told: Sequence[list[float] | None] = whole or [
            self._seen_alone(witness, n, one, lost[n]) for n, one in enumerate(translations)
        ]
        found = []
        for n, one in enumerate(translations):
            trg_ids = one.hypotheses[0].ids if one.hypotheses else []
            found.append((self._fields(witness, n, one.src_ids, trg_ids, told[n], one.items, lost[n]), lost[n]))
        return found

    def _seen_alone(self, witness: Witness, line: int, one: Translation, lost: Lost) -> list[float] | None:
        """Log-probabilities of a line by itself, where some line of its batch cannot have them."""
        if not one.hypotheses:
            return []

        def look(number: int, weights: Tensor, piece: int = 0) -> None:
            witness.look(line + number, weights, piece)

        eye: LookAtPieces | None = look if witness.eye else None
        its = attempt("token_log_probs", lost, lambda: self.translator.token_log_probs([one], eye))
        return None if its is None else its[0]

    def _witness(self, translations: Sequence[Translation] = ()) -> Witness | None:
        """Who sees how some translations come about, where that is written."""
        if not (self._writes_json or self._aligns):
            return None
        by, attends = self.recipe.decode.align_by, self.translator.attends
        return Witness(
            self.translator.subwords,
            by,
            self._wanted,
            attends=attends,
            translations=translations,
            by_character=ByCharacter.of(self.recipe),
        )

    def _fields(
        self,
        witness: Witness | None,
        number: int,
        src_ids: list[int],
        trg_ids: list[int],
        told: list[float] | None,
        items: dict[str, str],
        lost: Lost,
    ) -> Fields:
        if witness is None:
            return {}
        if not self._writes_json:
            if told is None:  # by the same pass
                lost[WORDS] = lost.pop("token_log_probs")
                return {WORDS: None}
            return {WORDS: attempt(WORDS, lost, lambda: witness.words(number, src_ids, trg_ids, items))}
        return witness.fields(number, src_ids, trg_ids, told, items, lost)

    def _why(self, request: Request, translation: Translation) -> list[str]:
        """Reasons against a translation."""
        data, decode = self.recipe.data, self.recipe.decode
        trg_lang = request.trg_lang or decode.trg_lang or data.trg_lang
        usual_ratio = self._usual_ratios.get(trg_lang)
        languages = {trg_lang, data.src_lang, *(data.languages_of(n)[0] for n in range(len(data.train)))}
        return complaints(request.source, translation, data.max_ratio, decode.low_score, usual_ratio, languages)


def answer_of(text: str) -> Told:
    """The answer to a line that `Answering.answer` wrote."""
    found = json.loads(text)
    answer = found["answer"]
    known = Answer(_translation(answer["translation"]), answer["reasons"], answer["retry"])
    return Told(known, found["evidence"], found.get("lost", {}))


def scored_of(text: str) -> ToldScore:
    """The score of a given translation that `Answering.answer` wrote under --score."""
    found = json.loads(text)
    return ToldScore(Scored(**found["scored"]), found["evidence"], found.get("lost", {}))


def _translation(found: dict[str, Any]) -> Translation:
    hypotheses = [Hypothesis(**one) for one in found["hypotheses"]]
    split = Split(**found["split"]) if found["split"] else None
    parts = [_translation(part) for part in found["parts"]]
    return Translation(**{**found, "hypotheses": hypotheses, "split": split, "parts": parts})


def _text(answer: Told | ToldScore) -> str:
    return json.dumps(answer, default=_parts, ensure_ascii=False, separators=(",", ":"))


def _parts(thing: Any) -> dict[str, Any]:
    assert is_dataclass(thing), thing
    return {field.name: getattr(thing, field.name) for field in fields(thing)}
