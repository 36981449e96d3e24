"""Corpora of which a run makes one side, for nmt-preprocess and `nmt.prepare`: back-translation and distillation.

The translations are files of nmt-translate in a folder beside the prepared data. Their names tell what they were made
of, so that they are used again as long as the run and the text are the same.
"""

import argparse
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from nmt.cli.begin import talk
from nmt.cli.parser import INTERRUPTED
from nmt.cli.translate import new_parser, translate
from nmt.data.lines import without_ending
from nmt.data.manifest import refuse_foreign_files
from nmt.data.sources import find_sources
from nmt.errors import RecipeError, RunError
from nmt.files import RECIPE, is_run, runs_of, sha256_of
from nmt.languages import UNTOLD, language_of
from nmt.processes import sleep_while_waiting
from nmt.recipe.contradictions import names_of
from nmt.recipe.options import Recipe
from nmt.recipe.places import is_prepared
from nmt.recipe.reader import read_recipe

# One sample a line gives varied sources (Edunov et al. 2018). Samples have low scores.
_SAMPLING = ("--decode.samples=1", "--decode.low_score=0", "--decode.mbr=none", "--decode.qe=")
_NO_MATTER = ("nmt", "--device", "decode.cuda_graphs", "decode.max_tokens")  # no reason to translate again


def translate_corpora(recipe: Recipe, *, checks: bool = False) -> dict[int, list[Path]]:
    """Translate what training corpora with translated_by name; return the files of each, by its number.

    checks: translate nothing; a corpus that is not translated yet has no files.
    Raises RunError, RecipeError or DataError before any work for runs, languages or files that do not fit.
    """
    runs = {n: _runs_of(recipe, n) for n, corpus in enumerate(recipe.data.train) if corpus.translated_by}
    if not runs:
        return {}
    langs = {n: [_lang_of(recipe, n, run) for run in its] for n, its in runs.items()}
    texts: dict[int, list[Path]] = {n: [] for n in runs}
    for source in find_sources(recipe):
        if source.split == "train" and source.corpus in runs and isinstance(source.src.place, Path):
            texts[source.corpus].append(source.src.place)
    folder = recipe.data_folder if recipe.data_folder.name.strip(".") else recipe.data_folder.resolve()
    if not checks:
        refuse_foreign_files(folder)
    folder = folder.with_name(f"{folder.name}.translated")
    jobs = {n: [_job(recipe, n, runs[n], langs[n][0], text, folder) for text in its] for n, its in texts.items()}
    found: dict[int, list[Path]] = {}
    for n, its in jobs.items():
        found[n] = [Path(args.output) for args in its]
        if checks and not all(map(Path.is_file, found[n])):
            found[n] = []
            talk(f"data.train.{n}: {its[0].input} is not translated yet, so the corpus is left out of the check")
        for args in its if found[n] else ():
            if Path(args.output).is_file():
                talk(f"data.train.{n}: {args.input} was translated before: {args.output}")
                continue
            talk(f"data.train.{n}: translating {args.input} by {' and '.join(args.run)} into {args.output}")
            folder.mkdir(parents=True, exist_ok=True)
            try:
                translate(args)
            except SystemExit as stop:  # at a signal, for a program in Python to know what it was
                if stop.code == INTERRUPTED:
                    raise KeyboardInterrupt from None
                raise
    if checks and not any(found.get(n, True) for n in range(len(recipe.data.train))):
        raise RecipeError(
            "--check: all of data.train is yet to be translated, so there is nothing to check. Leave --check out."
        )
    return found


def _runs_of(recipe: Recipe, n: int) -> list[Path]:
    """Find the runs that translate a corpus. Raises RunError for a folder that is none."""
    found: list[Path] = []
    for name in names_of(recipe.data.train[n].translated_by):
        folder = recipe.origin.find("data.train", name, lambda place: all(map(_is_run, runs_of(place))))
        found += runs_of(folder)
        if not all(map(_is_run, runs_of(folder))):
            raise RunError(
                f"data.train.{n}.translated_by: {name} is no run folder: "
                f"{recipe.origin.tried('data.train', name)}. Name the folder that nmt-train wrote, runs/NAME."
            )
    return found


def _is_run(folder: Path) -> bool:
    return is_run(folder) and not is_prepared(folder)


def _lang_of(recipe: Recipe, n: int, run: Path) -> str:
    """Return the language that a run is to translate a corpus into, of several that it knows; "" where it has one.

    Raises RunError for a run of other languages than the corpus.
    """
    corpus, its = recipe.data.train[n], read_recipe(run / RECIPE).data
    every = [(its.src_lang, its.trg_lang), *map(its.languages_of, range(len(its.train)))]
    known = [list(dict.fromkeys(side)) for side in zip(*every, strict=True)]

    def fitting(wanted: Sequence[str]) -> list[list[str]]:
        return [[lang for lang in side if _alike(lang, want)] for side, want in zip(known, wanted, strict=True)]

    wanted = recipe.data.languages_of(n)[:: -1 if corpus.back_translates else 1]
    fits, (side, other) = fitting(wanted), ("trg", "src") if corpus.back_translates else ("src", "trg")
    if not all(fits):
        text = ", ".join(names_of(corpus.trg if corpus.back_translates else corpus.src))
        meant = f", or, if it is text in {wanted[1]}, write {other}: {text}" if all(fitting(wanted[::-1])) else ""
        raise RunError(
            f"data.train.{n}.translated_by: {run} translates {' or '.join(known[0])} to {' or '.join(known[1])}, but "
            f"{side}: {text} is to be translated from {wanted[0]} to {wanted[1]}. Name a run that does{meant}."
        )
    return (wanted[1] if wanted[1] in fits[1] else fits[1][0]) if len(known[1]) > 1 else ""


def _alike(lang: str, other: str) -> bool:
    """Return whether two are the same language, as far as that is told; scripts and regions may differ."""
    primary = {language_of(lang).primary, language_of(other).primary}
    return len(primary) == 1 or UNTOLD in primary


def _job(recipe: Recipe, n: int, runs: Sequence[Path], lang: str, text: Path, folder: Path) -> argparse.Namespace:
    """Return the arguments of nmt-translate for a file. Raises RunError for a run without weights."""
    sleep_while_waiting()  # before torch
    from nmt.cli.translate_job import settings_of

    flags = ["--format=pairs", "--decode.n_best=1", *(_SAMPLING if recipe.data.train[n].back_translates else ())]
    args = new_parser().read(["RUN", f"--input={text}", *flags, *([f"--decode.trg_lang={lang}"] if lang else [])])
    args.run = list(map(str, runs))
    made_of = {name: value for name, value in settings_of(args).items() if name not in _NO_MATTER}
    digest = hashlib.sha256(json.dumps([made_of, sha256_of(text)], sort_keys=True).encode()).hexdigest()
    args.output = str(folder / f"{without_ending(text.name)[:100]}.{digest[:12]}.jsonl")
    return args
