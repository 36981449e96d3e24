"""What the model does for the lines of a window, with answers as text: to another process, to the disk and back.

JSON keeps every digit of a number, so an answer that comes back is the one that went.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from nmt.api import load
from nmt.cli.parser import overrides_of
from nmt.cli.translating.recall import Key
from nmt.decoding.constraints.request import Kept, Request
from nmt.decoding.evidence import Evidence, Fields, Lost, attempt
from nmt.decoding.long_lines import Split
from nmt.decoding.retry import Answer, mend, tries
from nmt.decoding.search.beam import Hypothesis
from nmt.decoding.translation import Scored, Translation
from nmt.decoding.translator import Translator
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
        self._scores = bool(args.score)
        self._evidence = Evidence(
            self.translator,
            self.recipe,
            Run(args.run[0]).usual_ratios(),
            (args.layer, args.head) if args.with_attention else None,
            fields=args.format == "jsonl",
            words=bool(args.alignments),
        )

    def tasks(self, keys: Sequence[Key]) -> list[list[int]]:
        """The places of the lines, those together that share a batch: that much can be done somewhere else."""
        if self._scores:
            return [list(range(len(keys)))]
        return self.translator.shared([request_of(key) for key in keys])

    def answer(self, keys: Sequence[Key]) -> list[str]:
        """The answer to each line, to be read by `answer_of` or `scored_of`."""
        if self._scores:
            sources, targets = [request_of(key[:-1]) for key in keys], [key[-1] for key in keys]
            return [_text(ToldScore(*one)) for one in self._evidence.of_given(sources, targets)]
        requests = [request_of(key) for key in keys]
        unflagged: dict[Request, Lost] = {}

        def why(request: Request, translation: Translation) -> list[str]:
            lost = unflagged.setdefault(request, {})
            return attempt("flags", lost, lambda: self._evidence.reasons(request, translation)) or []

        answers = mend(requests, list(self.translator.translate(requests)), self._again, why)
        found = zip(requests, answers, self._evidence.of([one.translation for one in answers]), strict=True)
        return [_text(Told(one, its, lost | unflagged[request])) for request, one, (its, lost) in found]


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
