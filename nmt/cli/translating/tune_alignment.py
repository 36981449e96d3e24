"""The work of nmt-translate --tune-alignment: which layer and head tell best where words come from, on validation data.

The given translations are forced, and the alignments of every layer, head and way of reading compared with links of
words: those of people, or those that IBM Model 1 finds on the same lines (`nmt.evaluation.word_links`).
"""

import argparse
import contextlib
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, get_args

import torch
from torch import Tensor

from nmt.api import Model, load
from nmt.cli.parser import overrides_of
from nmt.cli.stdout import write_stdout
from nmt.cli.translating.report import say
from nmt.cli.translating.tune_decoding import check_alone, options_of_lines, read_pairs
from nmt.decoding.translator import NOWHERE, Translator
from nmt.errors import DataError, NmtError
from nmt.evaluation.alignment import ByCharacter, split, subword_alignment, word_alignment, words_of
from nmt.evaluation.alignment_error import AlignmentError, Gold, check_gold, links_of, read_gold
from nmt.evaluation.word_links import bare, word_links
from nmt.progress import Bar
from nmt.recipe.decode_options import AlignBy
from nmt.recipe.reader import read_recipe
from nmt.recipe.stored import ALIGN_OPTIONS, ALIGN_RECORD, store

_COLUMNS = ("layer", "head", "when", "AER", "precision", "recall", "mark")
_OWN = {"run", "tune_alignment", "gold_alignments", "store", "checkpoint", "device", "threads", "debug"}


def tune(args: argparse.Namespace, usual: Mapping[str, Any]) -> int:
    """The command behind the flag. usual: what the arguments are where nothing is given.

    Returns the exit code; raises NmtError.
    """
    check_alone(args, usual, "--tune-alignment", _OWN, {f"decode.{name}" for name in ALIGN_OPTIONS})
    src, trg = read_pairs(*args.tune_alignment)
    if args.threads:
        torch.set_num_threads(args.threads)
    model = load(args.run, checkpoint=args.checkpoint, device=args.device)
    recipe = read_recipe(model.run.recipe_file, overrides_of(args))
    by_character = ByCharacter.of(recipe)
    gold = _gold(args, src, trg, by_character)
    translator = model.translator(recipe.decode)
    if not translator.attends:
        raise NmtError(f"--tune-alignment: {NOWHERE}, so there is nothing to choose.")
    present = recipe.decode.align_by
    # Held from the beginning, so that what forbids to store is known before the work.
    with model.run.lock() if args.store else contextlib.nullcontext():
        candidates = ways(*recipe.model.attention_grids["cross"])
        found = _errors(translator, src, trg, gold, candidates, by_character)
        # Of equals the present one: what is as good need not change.
        winner = min(candidates, key=lambda by: (found[by].aer, by != present))
        _print_table(found, winner, present)
        for by, what in (present, "present"), (winner, "winner"):
            if what == "present" or winner != present:
                say(f"{what}: {_in_words(by)}: {found[by].text}")
        say(f"compared with {_compared_with(args)}")
        if args.store and winner != present:
            evidence = {
                "compared_with": _compared_with(args),
                "scores_before": found[present].as_json,
                "scores": found[winner].as_json,
                "options": options_of_lines(args),
            }
            store(model.run.recipe_file, _options(winner), evidence)
    say(_what_now(winner, present, model, stored=args.store))
    return 0


def ways(n_layer: int, n_head: int) -> list[AlignBy]:
    """All that alignments can be read off, the usual first: the last layers, then of each layer mean and heads."""
    places = [(0, 0), *product(range(1, n_layer + 1), range(n_head + 1))]
    whens = get_args(AlignBy.__annotations__["when"])
    return [AlignBy(layer, head, when) for layer, head in places for when in whens]


def _gold(args: argparse.Namespace, src: Sequence[str], trg: Sequence[str], by_character: ByCharacter) -> list[Gold]:
    """The links to compare with, one line for each pair."""
    words = [[split(line, by) for line in side] for side, by in zip((src, trg), by_character, strict=True)]
    if not args.gold_alignments:
        found = word_links(*([bare(line) for line in side] for side in words))
        if not any(one.sure for one in found):
            raise DataError(
                f"{args.tune_alignment[0]}: no words that occur together, so nothing to compare alignments with. Are "
                "its words cut by white space? Give links by people: --gold-alignments FILE."
            )
        return found
    name = args.gold_alignments
    gold = read_gold(name)
    if len(gold) != len(src):
        raise DataError(f"{args.tune_alignment[0]} has {len(src):,} lines but {name} has {len(gold):,}.")
    for number, (one, left, right) in enumerate(zip(gold, *words, strict=True), start=1):
        check_gold(one, len(left), len(right), f"{name}:{number}")
    return gold


def _errors(
    translator: Translator,
    src: list[str],
    trg: list[str],
    gold: list[Gold],
    candidates: list[AlignBy],
    by_character: ByCharacter,
) -> dict[AlignBy, AlignmentError]:
    """How far the alignments of each way are from gold."""
    found = {by: AlignmentError() for by in candidates}
    window = translator.config.window
    with Bar(total=len(src), unit=" lines", leave=False) as bar:
        for start in range(0, len(src), window):
            seen: dict[int, dict[AlignBy, list[int | None]]] = {}

            def look(number: int, weights: Tensor, seen: dict[int, Any] = seen) -> None:
                seen[number] = {by: subword_alignment(weights, by) for by in candidates}

            part = slice(start, start + window)
            for number, one in enumerate(translator.score(src[part], trg[part], look)):
                words = (
                    words_of(translator.subwords.src.raw(one.src_ids, one.items), by_character.src),
                    words_of(translator.subwords.trg.raw(one.trg_ids, one.items), by_character.trg),
                )
                for by, subwords in seen.get(number, {}).items():
                    found[by].add(links_of(word_alignment(subwords, *words)), gold[start + number])
            bar.update(len(src[part]))
    return found


def _print_table(found: Mapping[AlignBy, AlignmentError], winner: AlignBy, present: AlignBy) -> None:
    write_stdout("\t".join(_COLUMNS) + "\n")
    for by, error in found.items():
        marks = [name for name, one in (("present", present), ("winner", winner)) if by == one]
        numbers = [f"{number:.2f}" for number in (error.aer, error.precision, error.recall)]
        columns = [str(by.layer or "-"), str(by.head or "-"), by.when, *numbers, " ".join(marks)]
        write_stdout("\t".join(columns) + "\n")


def _options(by: AlignBy) -> dict[str, Any]:
    return dict(zip(ALIGN_OPTIONS, by, strict=True))


def _in_words(by: AlignBy) -> str:
    where = f"layer {by.layer}" if by.layer else "the mean of the last two layers"
    return f"{where}{f', head {by.head}' if by.head else ''}, when {by.when}"


def _compared_with(args: argparse.Namespace) -> str:
    return args.gold_alignments or "links of IBM Model 1 on these lines, sure where both directions agree"


def _what_now(winner: AlignBy, present: AlignBy, model: Model, *, stored: bool) -> str:
    if winner == present:
        return "the present way is the best that was tried" + (": nothing to store" if stored else "")
    if stored:
        record = model.run.recipe_file.with_name(ALIGN_RECORD)
        return f"stored in {model.run.recipe_file}, so that nmt-translate uses it; {record} says what was there before"
    flags = " ".join(f"--decode.{name} {value}" for name, value in _options(winner).items())
    return f"to align with it: {flags}; to make it what the run aligns with: --store"
