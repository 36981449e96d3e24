"""nmt-export: write a trained model for another engine, and check that its output is the same."""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.cli.begin import Stop, end_startup, talk
from nmt.cli.parser import Parser, must_be_free, run
from nmt.data.lines import read_lines
from nmt.errors import DataError, NmtError
from nmt.files import CARD, RECIPE, check_is_run, put_in_place
from nmt.processes import sleep_while_waiting
from nmt.recipe.draft import PRECISIONS, refuse_unsupported
from nmt.recipe.places import RUN_DATA, SUBWORDS
from nmt.recipe.reader import read_recipe

if TYPE_CHECKING:
    from nmt.api import Model
    from nmt.export.parity import Exported, Tolerance

_DESCRIPTION = """\
Export the model of the run folder RUN for another engine, or without the state of training. Some lines are translated
and scored by both models, and the export is written only if they agree. The lines are from the validation set, or
those of --lines."""
_EXAMPLES = (
    "nmt-export runs/mine --to safetensors --precision bf16 --out mine.small",
    "nmt-export runs/portable --to ctranslate2 --quantization int8 --out mine.ct2",
)
TARGETS = ("ctranslate2", "huggingface", "safetensors")
QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16")
N_LINE = 200  # lines of the validation set to compare, at most

_OF_RUN = (RECIPE, SUBWORDS, RUN_DATA, "lock", "translations", CARD)
# Files in an export, by engine: two that mark it, and patterns for the names of the others.
_FILES: dict[str, tuple[set[str], tuple[str, ...]]] = {
    "ctranslate2": ({RECIPE, "model.bin"}, (*_OF_RUN, "config.json", "*_vocabulary.json")),
    "huggingface": ({"config.json", "generation_config.json"}, (CARD, "*token*.json", "model*.safetensors*")),
    "safetensors": ({RECIPE, "model"}, _OF_RUN),
}


def is_exported(folder: Path, engine: str) -> bool:
    """Return whether a folder is an export for the engine, without other files."""
    marks, others = _FILES[engine]
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return marks <= names and all(any(fnmatch(name, pattern) for pattern in (*marks, *others)) for name in names)


def export(args: argparse.Namespace) -> int:
    """Run the command. Returns the exit code; raises NmtError."""
    for flag, target in (("quantization", "ctranslate2"), ("precision", "safetensors")):
        if getattr(args, flag) and args.to != target:
            raise NmtError(f"--{flag} needs --to {target}: leave it out.")
    check_is_run(Path(args.run))
    refuse_unsupported(args.to, read_recipe(Path(args.run) / RECIPE))
    sleep_while_waiting()  # before torch
    from nmt.api import load

    end_startup()
    folder = Path(os.path.abspath(args.output))  # "." has no name for a temporary folder beside it
    model = load(args.run, checkpoint=args.checkpoint, device="cpu")
    lines = _lines(args, model.recipe.data_folder)
    if folder.exists() and not is_exported(folder, args.to):
        raise NmtError(
            f"{args.output}: not replaced, because it is not a model exported for {args.to} or holds other files, "
            "too. Choose another name."
        )
    must_be_free(folder, overwrite=args.overwrite, is_folder=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    with Stop():  # a signal deletes the unfinished export first
        try:
            messages = _write(args, model, temporary, lines)
            if args.checkpoint in (None, "model") and (card := Path(args.run) / CARD).is_file():
                shutil.copyfile(card, temporary / CARD)
            put_in_place(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    for message in [*messages, f"written: {args.output}"]:
        talk(f"nmt-export: {message}")
    return 0


def _write(args: argparse.Namespace, model: "Model", folder: Path, lines: Sequence[str]) -> list[str]:
    """Write the export and compare it with the model. Returns a message for the tags of each training corpus.

    Only the package of the chosen engine is imported. Raises RunError for an export that differs.
    """
    from nmt.export import parity
    from nmt.models.transformer.Models import Transformer

    recipe, subwords = model.recipe, model.subwords
    tags_of_corpora = list(dict.fromkeys(map(recipe.data.tags_of, recipe.data.train))) or [()]

    def compared(exported: "Exported", tolerance: "Tolerance") -> list[str]:
        messages = []
        for tags in tags_of_corpora:
            result = parity.compare(model.model, subwords.tagged(tags), exported, lines, tolerance)
            messages.append(f"{' '.join(tags)}{': ' if tags else ''}{result.text}")
        return messages

    shutil.rmtree(folder, ignore_errors=True)
    if args.to == "safetensors":
        precision = args.precision or "fp32"
        parity.export(model.run, args.checkpoint, folder, precision)
        tolerance = {"fp32": parity.SAME, "fp16": parity.FP16, "bf16": parity.BF16}[precision]
        from nmt.api import load

        return compared(partial(parity.translate_and_score, load(folder, device="cpu").model), tolerance)
    assert isinstance(model.model, Transformer), "refuse_unsupported has refused the others"
    if args.to == "huggingface":
        from nmt.export import huggingface

        huggingface.export(model.model, recipe, subwords, folder)
        return compared(partial(huggingface.translate_and_score, folder), parity.ROUNDED)
    from nmt.export import ctranslate2

    for quantization in dict.fromkeys((None, args.quantization)):  # fp32 first: rounding would hide a wrong export
        ctranslate2.export(model.model, recipe, subwords, folder, quantization)
        parity.copy_front_end(model.run, folder)
        tolerance = parity.QUANTISED if quantization else parity.ROUNDED
        messages = compared(partial(ctranslate2.translate_and_score, folder), tolerance)
    return messages


def _lines(args: argparse.Namespace, prepared: Path) -> list[str]:
    """Return the lines of --lines, or lines of the validation set."""
    from nmt.data.corpus import Prepared

    try:
        candidates = list(read_lines(args.lines)) if args.lines else Prepared.open(prepared).valid.texts()[0]
    except DataError as error:
        raise error if args.lines else DataError(f"{error} Or name a file of source lines: --lines FILE.") from None
    if lines := [line for line in candidates if line.strip()]:
        return lines if args.lines else lines[:N_LINE]
    raise DataError(f"{args.lines or prepared}: no line with text to compare the two models on.")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    parser = Parser("nmt-export", description=_DESCRIPTION, examples=_EXAMPLES)
    add = parser.add_argument
    add("run", metavar="RUN", help="The run folder that nmt-train wrote.")
    add("--to", choices=TARGETS, required=True, help="Format; safetensors: a run folder for nmt, with the model alone.")
    add("--output", "--out", "-o", metavar="FOLDER", required=True, help="Output folder, written once it is checked.")
    add("--overwrite", action="store_true", help="Replace an earlier export.")
    text = f"Weight type of CTranslate2: {', '.join(QUANTIZATIONS)}. [default: none, fp32]"
    add("--quantization", choices=QUANTIZATIONS, metavar="KIND", help=text)
    add("--precision", choices=PRECISIONS, help="Weight type of --to safetensors. [default: fp32]")
    add("--checkpoint", metavar="NAME", help="A checkpoint of the run, like update-00012000.")
    add("--lines", metavar="FILE", help="Source lines to compare on; by default those of the validation set.")
    return run(export, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
