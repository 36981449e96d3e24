"""nmt-preprocess: prepare the corpora of a recipe, or of files on the command line; check them; show prepared pairs.

Imports only the recipe modules before the recipe is read, so --help and errors in the recipe appear at once.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from nmt.cli.begin import Stop, end_startup, printable, talk, write_stdout
from nmt.cli.parser import OVERRIDE, Parser, add_override_flags, is_corpus, overrides_of, run, whole_number
from nmt.errors import AlarmError, RecipeError
from nmt.files import RECIPE, is_run
from nmt.recipe.draft import exports_note, portable_options, unsupported
from nmt.recipe.model_options import TransformerOptions
from nmt.recipe.options import Recipe
from nmt.recipe.places import is_prepared
from nmt.recipe.reader import differences, read_recipe
from nmt.recipe.reader import overrides_of as options_of
from nmt.recipe.yaml_marks import as_yaml

# Options for `--vocab-from RUN`, which fine-tunes RUN: far lower learning rates than of a new run.
# The warm-up is auto, a twentieth of the run and at most 200 updates.
_FINE_TUNING = (("optim.lr", "3e-4"), ("optim.muon_lr", "6e-4"), ("train.updates", "5000"))
_WITHOUT_RECIPE = ("train", "valid", "test", "langs", "portable", "back_translate")
_INHERITED_SUBWORD_OPTIONS = ("kind", "joint", "normalize", "whitespace", "symbols")

_DESCRIPTION = """\
Read the parallel text of RECIPE, filter the training pairs, learn subwords, and write the folder that nmt-train reads.
Without a recipe, name the files: --train SRC TRG --valid SRC TRG --langs SRC TRG --out DIR, or one file with both
sides: CSV, TSV, JSON, JSONL, TMX, Parquet or Arrow. The command then writes a recipe to train with and to edit,
DIR/recipe.yaml; with --vocab-from RUN it fine-tunes that run. Files are UTF-8, plain or compressed (.gz, .zst, .xz); a
recipe may also name datasets (docs/data.md). Relative names are searched beside the recipe, then in the current folder,
then in the folder of the environment variable NMT_DATA."""

_EXAMPLES = (
    "nmt-preprocess corpus.csv --langs en de",
    "nmt-preprocess --train train.de train.en --valid valid.de valid.en \\",
    "    --langs de en --out prepared/mine --time-budget 20m",
    "nmt-preprocess recipes/dates.yaml",
)

# Options for a corpus without a recipe. Sizes suit the corpus and the time; pre-norm trains without careful tuning.
# fmt: off
OWN_CORPUS = options_of({
    "model": {
        "preset": "auto", "norm": "pre", "scale_emb_or_prj": "emb", "position": "rotary", "rotary_enc_attn": True,
        "prj_transform": True, "lexical_attn": True, "emb_init": "cooccurrence", "attn_dropout": 0.1,
    },
    "batch": {"max_tokens": 2048},
    "optim": {
        "name": "muon", "muon_lr": "auto", "lr": "auto", "betas": [0.9, 0.999], "weight_decay": 0.1, "schedule": "auto",
        "warmup": "auto", "clip": 1.0,
    },
    "train": {"updates": 100_000, "save_every": 500, "keep_last": 5},
    "valid": {"every": "auto", "patience": 10},
})
# fmt: on


def preprocess(args: argparse.Namespace) -> int:
    """Run the command. Returns the exit code; raises NmtError."""
    if args.recipe and is_corpus(args.recipe):
        args.recipe, args.train = None, [[args.recipe], *(args.train or [])]
    if args.recipe and (conflicting := [flag for flag in _WITHOUT_RECIPE if getattr(args, flag)]):
        flags = ", ".join(f"--{flag.replace('_', '-')}" for flag in conflicting)
        raise RecipeError(
            f"{flags}: for use without a recipe, but {args.recipe} is given. "
            "Override its options by their dotted names: --data.valid.src FILE."
        )
    if args.report and not args.check:
        raise RecipeError("--report needs --check. Without --check the report is report.html in the prepared folder.")
    overrides = overrides_of(args)
    if args.recipe:
        recipe = read_recipe(args.recipe, overrides)
    elif missing := [flag for flag in ("train", "langs") if not getattr(args, flag)]:
        raise RecipeError(
            f"neither a recipe nor {', '.join('--' + flag for flag in missing)}. Expected: nmt-preprocess RECIPE, or "
            "nmt-preprocess CORPUS --langs SRC TRG, or nmt-preprocess --train SRC TRG --valid SRC TRG --langs SRC TRG "
            "--out DIR."
        )
    else:
        corpora = args.train, args.langs, args.valid, args.test, args.back_translate or ()
        recipe = recipe_of_files(*corpora, overrides)
        rejected = [option for of_engine in unsupported(recipe).values() for option in of_engine]
        if args.portable and rejected:
            replaced = portable_options(rejected)
            if chosen := [name for name, _ in replaced if name in dict(overrides) or recipe.train.init_from]:
                raise RecipeError(
                    f"--portable: {', '.join(chosen)} cannot be exported as given here or in the run of --vocab-from. "
                    "Leave --portable or those flags out."
                )
            overrides += replaced
            recipe = recipe_of_files(*corpora, overrides)
    if args.show is None:
        return _prepare(recipe, args, overrides)
    from nmt.data.corpus import show_pairs

    end_startup()
    for line in show_pairs(recipe.data_folder, args.show):
        write_stdout(f"{printable(line)}\n")
    return 0


def _prepare(recipe: Recipe, args: argparse.Namespace, overrides: Sequence[tuple[str, str]]) -> int:
    """Prepare the data of the recipe, or only check it. Returns the exit code. overrides: command-line options."""
    from nmt.cli.translated import translate_corpora
    from nmt.data.prepare import beside, prepare
    from nmt.data.report import refuse_foreign_page

    end_startup()
    with Stop(("SIGINT", "SIGTERM", "SIGHUP")):  # a signal deletes unfinished files first
        translations = translate_corpora(recipe, checks=args.check)
        if not args.check:
            prepare(recipe, recipe.data_folder, overwrite=args.overwrite, talk=talk, translations=translations)
        else:
            page = Path(args.report or beside(recipe.data_folder, ".report.html"))
            refuse_foreign_page(page)
            facts = prepare(recipe, recipe.data_folder, talk=talk, only_report=page, translations=translations)
            if facts["alarms"]:
                talk("check: the data look seriously wrong, see ALARM above")
                return AlarmError.exit_code if recipe.data.alarms == "stop" else 0
            talk(f"check: no alarm{', but see the warnings above' if facts['warnings'] else ''}")
            return 0
    overrides = [(name, value) for name, value in overrides if name != "data.alarms"]
    if not args.recipe:  # the recipe beside the data has these options, unless it existed before
        requested, recipe = recipe, read_recipe(recipe.data_folder / RECIPE)
        changed = differences(recipe.model_dump(mode="json"), requested.model_dump(mode="json"))
        sections = tuple(f"{option}." for option in changed)
        overrides = [(name, value) for name, value in overrides if f"{name}.".startswith(sections)]
    flags = [word for name, value in overrides for word in (f"--{name}", value)]
    command = ["nmt-train", str(args.recipe or recipe.data_folder / RECIPE), *flags]
    talk(f"the model can be exported to {exports_note(recipe)}")
    talk(f"train with: {shlex.join(command)}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    parser = Parser("nmt-preprocess", description=_DESCRIPTION, examples=_EXAMPLES)
    add = parser.add_argument
    add("recipe", metavar="RECIPE", nargs="?", help="the recipe, a YAML file; or a corpus, as --train")
    add("--overwrite", action="store_true", help="replace prepared data, once the new data is complete")
    text = "without a recipe: choose a model that can be exported to CTranslate2 and Hugging Face's transformers"
    add("--portable", action="store_true", help=text)
    text = "if the data look seriously wrong, warn instead of stopping with exit code 3; short for --data.alarms warn"
    add("--accept-alarms", action="store_const", const="warn", dest=f"{OVERRIDE}data.alarms", help=text)
    add("--report", metavar="FILE", help="page that --check writes [default: DIR.report.html beside the data folder]")
    add = parser.add_mutually_exclusive_group().add_argument
    text = "prepare nothing: read all data and write only the report, an HTML page; exit code 3 if the data look "
    add("--check", action="store_true", help=f"{text}seriously wrong, as with swapped files or misaligned lines")
    text = "print N pairs of the prepared data as text, pieces and ids, always the same; RECIPE may be the folder"
    add("--show", metavar="N", type=whole_number("1, 2, ...", least=1), help=text)
    add = parser.add_argument_group("without a recipe").add_argument
    sides = ("SRC", "TRG")
    text = "two training files of text, or one with both sides, whose columns are found by their names; repeatable"
    add("--train", action="append", nargs="+", metavar=sides, help=text)
    add("--valid", nargs="+", metavar=sides, help="validation files, likewise")
    add("--test", nargs="+", metavar=sides, help="test files, likewise")
    text = "target-language text for back-translation, a sentence a line: RUN translates FILE into the source language"
    add("--back-translate", action="append", nargs=2, metavar=("RUN", "FILE"), help=f"{text}; repeatable")
    add("--langs", help="languages, as in: --langs de en", nargs=2, metavar=sides)
    add_override_flags(parser)
    return run(preprocess, parser, argv)


def recipe_of_files(
    train: Sequence[Sequence[str]],
    langs: Sequence[str],
    valid: Sequence[str] | None = None,
    test: Sequence[str] | None = None,
    back_translate: Sequence[Sequence[str]] = (),
    overrides: Sequence[tuple[str, str]] = (),
    given_by: str = "command line",
) -> Recipe:
    """Return a recipe for corpora on the command line, each one file with both sides or one file a side.

    back_translate: pairs of a run and a file of target text that the run translates. given_by: see `read_recipe`.
    """
    first, values = Path(train[0][0]), dict(overrides)
    vocab_from = values.get("subwords.vocab_from")
    out = values.get("data.out") or f"prepared/{first.name.removesuffix(''.join(first.suffixes)) or 'own'}"
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(out).resolve().name).strip("-._")[:100]
    has_valid = valid or any(option.partition(".valid")[0] == "data" for option in values)
    data = {
        "src_lang": langs[0],
        "trg_lang": langs[1],
        "train": [
            *(_files(names, "train") for names in train),
            *({"trg": text, "translated_by": run, "tags": ["bt"]} for run, text in back_translate),
        ],
        "out": out,
        "valid": _files(valid, "valid") if valid else None,
        "valid_size": None if has_valid else "auto",
        "test": _files(test, "test") if test else None,
    }
    defaults = _default_options(vocab_from)
    if values.get("model.architecture", "transformer") != "transformer":
        useless = {f"model.{name}" for name in TransformerOptions.model_fields}
        defaults = [(name, value) for name, value in defaults if name not in useless]
    options = [*defaults, *options_of({"name": name or "own", "data": data}), *overrides]
    return read_recipe(None, options, given_by)


def _files(names: Sequence[str], flag: str) -> dict[str, str]:
    """Return the options of a corpus of one file with both sides, or of two files."""
    if len(names) > 2:
        raise RecipeError(f"--{flag}: {len(names)} files: {' '.join(names)}. Expected one with both sides, or SRC TRG.")
    return {"file": names[0]} if len(names) == 1 else dict(zip(("src", "trg"), names, strict=True))


def _default_options(vocab_from: str | None) -> Sequence[tuple[str, str]]:
    """Return options for a new model, or for fine-tuning if `vocab_from` is a run with weights."""
    folder = Path(vocab_from or "")
    has_weights = (folder / "model").is_dir() or any(folder.glob("checkpoints/update-*"))
    if vocab_from is None or not has_weights or not is_run(folder) or is_prepared(folder):
        return OWN_CORPUS
    talk(
        f"{vocab_from} is a run: the recipe has its model, begins with its weights (train.init_from), and has a lower "
        "learning rate and a short warm-up"
    )
    base: Recipe = read_recipe(folder / RECIPE)
    model_options = [name for name in type(base.model).model_fields if name not in base.model.useless]
    return [
        *((name, value) for name, value in OWN_CORPUS if not name.startswith("model.")),
        ("data.protect", as_yaml(base.data.protect)),
        *((f"subwords.{name}", as_yaml(getattr(base.subwords, name))) for name in _INHERITED_SUBWORD_OPTIONS),
        *((f"model.{name}", as_yaml(getattr(base.model, name))) for name in model_options),
        ("train.init_from", vocab_from),
        *_FINE_TUNING,
    ]


if __name__ == "__main__":
    sys.exit(main())
