"""Back-translation and distillation for nmt-preprocess and `nmt.prepare`: a run translates one side of a corpus.

nmt-translate writes the translations to a folder beside the prepared data. A file name contains a digest of the run,
the options and the text, so a translation is reused until one of them changes.
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
from nmt.data.prepare import beside
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
_WITHOUT_EFFECT = ("nmt", "--device", "decode.cuda_graphs", "decode.max_tokens")  # no reason to translate again


def translate_corpora(recipe: Recipe, *, checks: bool = False) -> dict[int, list[Path]]:
    """Translate the training corpora with translated_by. Returns the files of each corpus, by its number n.

    checks: translate nothing; a corpus that is not translated yet has no files.
    Raises RunError, RecipeError or DataError for unsuitable runs, languages or files before any translation.
    """
    runs = {n: _runs_of(recipe, n) for n, corpus in enumerate(recipe.data.train) if corpus.translated_by}
    if not runs:
        return {}
    langs = {n: [_lang_of(recipe, n, run) for run in folders] for n, folders in runs.items()}
    folder = beside(recipe.data_folder, ".translated")
    jobs = list[tuple[int, argparse.Namespace]]()
    for source in find_sources(recipe):
        n, text = source.corpus, source.src.place
        if source.split == "train" and n in runs and isinstance(text, Path):
            jobs.append((n, _job(recipe, n, runs[n], langs[n][0], text, folder)))
    if not checks:
        refuse_foreign_files(recipe.data_folder)
    translations = {n: [Path(args.output) for number, args in jobs if number == n] for n in runs}
    for n, args in jobs:
        if Path(args.output).is_file():
            talk(f"data.train.{n}: {args.input} was translated before: {args.output}")
        elif checks:
            talk(f"data.train.{n}: {args.input} is not translated yet, so the corpus is left out of the check")
            translations[n] = []
        else:
            talk(f"data.train.{n}: translating {args.input} by {' and '.join(args.run)} into {args.output}")
            folder.mkdir(parents=True, exist_ok=True)
            try:
                translate(args)
            except SystemExit as stop:  # a Python program expects KeyboardInterrupt at Ctrl-C
                if stop.code == INTERRUPTED:
                    raise KeyboardInterrupt from None
                raise
    if checks and not any(translations.get(n, True) for n in range(len(recipe.data.train))):
        raise RecipeError(
            "--check: no corpus of data.train is translated yet, so there is nothing to check. Leave --check out."
        )
    return translations


def _runs_of(recipe: Recipe, n: int) -> list[Path]:
    """Find the runs that translate a corpus. Raises RunError for a folder that is not a run."""

    def are_runs(folder: Path) -> bool:
        return all(is_run(run) and not is_prepared(run) for run in runs_of(folder))

    runs: list[Path] = []
    for name in names_of(recipe.data.train[n].translated_by):
        folder = recipe.origin.find("data.train", name, are_runs)
        runs += runs_of(folder)
        if not are_runs(folder):
            raise RunError(
                f"data.train.{n}.translated_by: {name} is not a run folder: "
                f"{recipe.origin.tried('data.train', name)}. Name the folder that nmt-train wrote, runs/NAME."
            )
    return runs


def _lang_of(recipe: Recipe, n: int, run: Path) -> str:
    """Return the target language of a corpus for a run that knows several; "" for a run with a single one.

    Raises RunError for a run with other languages than the corpus.
    """
    corpus, run_data = recipe.data.train[n], read_recipe(run / RECIPE).data
    lang_pairs = [(run_data.src_lang, run_data.trg_lang), *map(run_data.languages_of, range(len(run_data.train)))]
    src_langs, trg_langs = (list(dict.fromkeys(side)) for side in zip(*lang_pairs, strict=True))

    src_lang, trg_lang = recipe.data.languages_of(n)[:: -1 if corpus.back_translates else 1]
    side, other = ("trg", "src") if corpus.back_translates else ("src", "trg")
    matches = [lang for lang in trg_langs if _same_language(lang, trg_lang)]
    if not matches or not any(_same_language(lang, src_lang) for lang in src_langs):
        text = ", ".join(names_of(getattr(corpus, side)))
        raise RunError(
            f"data.train.{n}.translated_by: {run} translates {' or '.join(src_langs)} to {' or '.join(trg_langs)}, "
            f"but {side}: {text} must be translated from {src_lang} to {trg_lang}. Name a run for that, or, if it is "
            f"text in {trg_lang}, write {other}: {text}."
        )
    return (trg_lang if trg_lang in matches else matches[0]) if len(trg_langs) > 1 else ""


def _same_language(lang: str, other: str) -> bool:
    """Return whether two codes may be the same language. An unknown one matches any; scripts and regions may differ."""
    primary = {language_of(lang).primary, language_of(other).primary}
    return len(primary) == 1 or UNTOLD in primary


def _job(recipe: Recipe, n: int, runs: Sequence[Path], lang: str, text: Path, folder: Path) -> argparse.Namespace:
    """Return the arguments of nmt-translate for a file. Raises RunError for a run without weights."""
    sleep_while_waiting()  # before torch
    from nmt.cli.translate_job import settings_of

    flags = ["--format=pairs", "--decode.n_best=1", *(_SAMPLING if recipe.data.train[n].back_translates else ())]
    args = new_parser().read(["RUN", f"--input={text}", *flags, *([f"--decode.trg_lang={lang}"] if lang else [])])
    args.run, args.is_text = list(map(str, runs)), True
    settings = {name: value for name, value in settings_of(args).items() if name not in _WITHOUT_EFFECT}
    digest = hashlib.sha256(json.dumps([settings, sha256_of(text)], sort_keys=True).encode()).hexdigest()
    args.output = str(folder / f"{without_ending(text.name)[:100]}.{digest[:12]}.jsonl")
    return args
