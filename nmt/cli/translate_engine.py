"""What the model does for the lines of a window, with answers as text: to another process, to the disk and back.

JSON keeps every digit of a number, so an answer that comes back is the one that went.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from nmt.api import load
from nmt.cli.command import overrides_of
from nmt.cli.translate_memory import Key
from nmt.decoding.beam import Hypothesis
from nmt.decoding.translator import Scored, Translation, Translator
from nmt.recipe.options import Recipe
from nmt.recipe.reader import read_recipe
from nmt.run import Run


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known of one line. token_log_probs: where they are written, and else empty."""

    translation: Translation
    token_log_probs: list[float]


def recipe_of(args: argparse.Namespace) -> Recipe:
    """The recipe of the first run with the options that were given, --mbr written out; those named go before that."""
    run = Run(args.run[0])
    if not run.exists:
        run.recipe()  # which says so
    given = overrides_of(args)
    short = [] if args.mbr is None else [("decode.samples", str(args.mbr)), ("decode.mbr", "chrf")]
    return read_recipe(run.recipe_file, [one for one in short if one[0] not in dict(given)] + given)


def fingerprints(args: argparse.Namespace) -> list[str]:
    """What stands for the weights and vocabularies that `Engine` would load."""
    return [Run(run).fingerprint(name) for run in args.run for name in args.checkpoint or [None]]


class Engine:
    """The model behind the flags, which answers lines, or scores given translations of them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.recipe = recipe_of(args)
        model = load(args.run, checkpoint=args.checkpoint, device=args.device)
        self.translator: Translator = model.translator(self.recipe.decode)
        self._scores = bool(args.score)
        self._told = args.format == "jsonl"

    def tasks(self, keys: Sequence[Key]) -> list[list[int]]:
        """The places of the lines, those together that share a batch: that much can be done somewhere else."""
        return [list(range(len(keys)))] if self._scores else self.translator.shared([key[0] for key in keys])

    def answer(self, keys: Sequence[Key], on_progress: Callable[[int], object] | None = None) -> list[str]:
        """The answer to each line, to be read by `answer_of` or `scored_of`."""
        sources = [key[0] for key in keys]
        if self._scores:
            scored = list(self.translator.score(sources, [key[1] for key in keys]))
            if on_progress:
                on_progress(len(keys))
            return [_text(one) for one in scored]
        found = list(self.translator.translate(sources, on_progress))
        told = self.translator.token_log_probs(found) if self._told else [[] for _ in found]
        return [_text(Answer(*one)) for one in zip(found, told, strict=True)]


def answer_of(text: str) -> Answer:
    """The answer that `Engine.answer` wrote."""
    found = json.loads(text)
    translation = found["translation"]
    translation["hypotheses"] = [Hypothesis(**one) for one in translation["hypotheses"]]
    return Answer(Translation(**translation), found["token_log_probs"])


def scored_of(text: str) -> Scored:
    """The same of a translation that was given."""
    return Scored(**json.loads(text))


def _text(answer: Answer | Scored) -> str:
    return json.dumps(answer, default=_parts, ensure_ascii=False, separators=(",", ":"))


def _parts(thing: Any) -> dict[str, Any]:
    assert is_dataclass(thing), thing
    return {field.name: getattr(thing, field.name) for field in fields(thing)}
