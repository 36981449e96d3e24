"""The model behind the flags, which gives results of lines."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nmt.api import load
from nmt.cli.parser import overrides_of
from nmt.decoding.evidence import Evidence, Fields, Lost, attempt
from nmt.decoding.request import Request
from nmt.decoding.suspicion import Answer, mend, tries
from nmt.decoding.translation import Scored, Translation
from nmt.decoding.translator import Translator
from nmt.recipe.options import Recipe
from nmt.recipe.reader import read_recipe
from nmt.run import Run

Item = tuple[Request, str | None]  # a line, and its given translation under --score


@dataclass(frozen=True, slots=True)
class LineResult:
    """Translation of a line, or score of its given translation.

    evidence: tokens, alignment and so on, where they are written. lost: fields of it, or the flags, that could not be
    computed, each with the error.
    """

    found: Answer | Scored
    evidence: Fields = field(default_factory=dict)
    lost: Lost = field(default_factory=dict)


def recipe_of(args: argparse.Namespace) -> Recipe:
    """Read the recipe of the first run with the options that were given; --mbr counts less than those it stands for.

    Raises RunError for what is no run, and RecipeError for options.
    """
    run = Run(args.run[0])
    if not run.exists:
        run.recipe()  # raises RunError
    given = overrides_of(args)
    short = [] if args.mbr is None else [("decode.samples", str(args.mbr)), ("decode.mbr", "chrf")]
    return read_recipe(run.recipe_file, [one for one in short if one[0] not in dict(given)] + given)


def fingerprints(args: argparse.Namespace) -> list[str]:
    """Identify the weights and vocabularies that `LineTranslator` loads. Raises RunError, as `recipe_of` does."""
    return [Run(run).fingerprint(name) for run in args.run for name in args.checkpoint or [None]]


class LineTranslator:
    """The model behind the flags, which translates lines, or scores given translations of them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.recipe = recipe_of(args)
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
        self._evidence = Evidence(
            self.translator,
            self.recipe,
            Run(args.run[0]).usual_ratios(),
            (args.layer, args.head) if args.with_attention else None,
            fields=args.format == "jsonl",
            words=bool(args.alignments),
        )

    def results(self, items: Sequence[Item], on_progress: Callable[[int], object] | None = None) -> list[LineResult]:
        """Translate or score lines; equal ones are one.

        on_progress: called with the number of lines done since the last call.
        """
        different, done = list(dict.fromkeys(items)), on_progress or (lambda n_line: None)
        requests = [request for request, _ in different]
        if items[0][1] is not None:
            given = self._evidence.of_given(requests, [target or "" for _, target in different])
            found = {item: LineResult(*one) for item, one in zip(different, given, strict=True)}
            done(len(different))
        else:
            unflagged: dict[Request, Lost] = {}

            def why(request: Request, translation: Translation) -> list[str]:
                lost = unflagged.setdefault(request, {})
                return attempt("flags", lost, lambda: self._evidence.reasons(request, translation)) or []

            answers = mend(requests, list(self.translator.translate(requests, done)), self._again, why)
            told = self._evidence.of([one.translation for one in answers])
            found = {
                item: LineResult(answer, fields, lost | unflagged[item[0]])
                for item, answer, (fields, lost) in zip(different, answers, told, strict=True)
            }
        done(len(items) - len(different))
        return [found[item] for item in items]
