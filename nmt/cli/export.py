"""nmt-export: a trained model for another engine, and the proof that it is still the same model."""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.cli.begin import begun, talk
from nmt.cli.parser import Parser, must_be_free, run
from nmt.data.lines import read_lines
from nmt.errors import DataError, NmtError
from nmt.files import CARD, RECIPE, check_is_run, put_in_place
from nmt.recipe.draft import PRECISIONS, refuse_unsupported
from nmt.recipe.reader import read_recipe

if TYPE_CHECKING:
    from nmt.api import Model
    from nmt.export.parity import Exported, Tolerance

_DESCRIPTION = """\
Write the model of the run folder RUN for another engine, or stripped to what translation needs; then translate and
score some lines with both: what is not the same model is not written. The lines are those of the validation set, or
of --lines."""
_EXAMPLES = (
    "nmt-export runs/mine --to safetensors --precision bf16 --out mine.small",
    "nmt-export runs/portable --to ctranslate2 --quantization int8 --out mine.ct2",
)
TARGETS = ("ctranslate2", "huggingface", "safetensors")
QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16")
N_LINE = 200  # compared where there are more

# Names in a folder that is an export: those that every one has, and others that some have, or had in earlier versions.
_OF_RUN, _BESIDE = {RECIPE, "subwords.json"}, {"data.json", "lock", "decoding.json", CARD}
_VOCABULARIES = {"shared_vocabulary.json", "source_vocabulary.json", "target_vocabulary.json"}
_FILES = {
    "ctranslate2": (_OF_RUN | {"model.bin"}, _BESIDE | _VOCABULARIES | {"config.json"}),
    "huggingface": (
        {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"},
        {CARD, "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "model*.safetensors*"},
    ),
    "safetensors": (_OF_RUN | {"model"}, _BESIDE),
}


def is_exported(folder: Path, engine: str) -> bool:
    """Return whether a folder is an export for the engine, with nothing of others in it."""
    needed, others = _FILES[engine]
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return needed <= there and all(any(fnmatch(name, one) for one in needed | others) for name in there)


def export(args: argparse.Namespace) -> int:
    """The command behind the flags. Returns the exit code; raises NmtError."""
    for flag, target in (("quantization", "ctranslate2"), ("precision", "safetensors")):
        if getattr(args, flag) and args.to != target:
            raise NmtError(f"--{flag} belongs to --to {target}: leave it out.")
    check_is_run(Path(args.run))
    refuse_unsupported(args.to, read_recipe(Path(args.run) / RECIPE))
    from nmt.processes import sleep_while_waiting

    sleep_while_waiting()
    from nmt.api import load
    from nmt.export.parity import compare

    begun()
    folder = Path(os.path.abspath(args.output))  # "." has no name to be written beside
    model = load(args.run, checkpoint=args.checkpoint, device="cpu")
    lines = _lines(args, model.recipe.data_folder)
    must_be_free(folder, overwrite=args.overwrite)
    read, steps = _target(args, model)
    if folder.exists() and not is_exported(folder, args.to):
        raise NmtError(
            f"{args.output} is no model exported for {args.to}, or other files are in it, too, so it is not replaced. "
            "Choose another name."
        )
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    tags_of_corpora = list(dict.fromkeys(map(model.recipe.data.tags_of, model.recipe.data.train))) or [()]
    told = list[str]()
    try:
        for write, tolerance in steps:
            shutil.rmtree(temporary, ignore_errors=True)
            write(temporary)
            told = []  # of the last step, which is what is kept
            for tags in tags_of_corpora:
                found = compare(model.model, model.subwords.tagged(tags), read(temporary, tags), lines, tolerance)
                told.append(f"{' '.join(tags)}{': ' if tags else ''}{found.text}")
        if (card := Path(args.run) / CARD).is_file():
            shutil.copyfile(card, temporary / CARD)
        put_in_place(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for text in [*told, f"written: {args.output}"]:
        talk(f"nmt-export: {text}")
    return 0


def _target(
    args: argparse.Namespace, model: "Model"
) -> tuple[Callable[[Path, tuple[str, ...]], "Exported"], list[tuple[Callable[[Path], None], "Tolerance"]]]:
    """Return what reads an export, told the tags before every line, and steps: what writes it, and how exact it is.

    Each engine's package is imported only if it is wanted.
    """
    from nmt.export import parity
    from nmt.models.transformer.Models import Transformer

    if args.to == "safetensors":
        precision = args.precision or "fp32"
        tolerance = {"fp32": parity.SAME, "fp16": parity.FP16, "bf16": parity.BF16}[precision]
        write = partial(parity.export, model.run, args.checkpoint, precision=precision)
        return lambda folder, tags: parity.Ours(parity.read(folder), model.subwords.tagged(tags)), [(write, tolerance)]
    transformer = model.model
    assert isinstance(transformer, Transformer), "other ones were refused"
    if args.to == "huggingface":
        from nmt.export import huggingface

        write = partial(huggingface.export, transformer, model.recipe, model.subwords)
        return huggingface.Compared, [(write, parity.ROUNDED)]
    from nmt.export import ctranslate2

    def write_quantised(folder: Path, quantization: str | None = None) -> None:
        ctranslate2.export(transformer, model.recipe, model.subwords, folder, quantization)
        parity.copy_front_end(model.run, folder)

    steps: list[tuple[Callable[[Path], None], Tolerance]] = [(write_quantised, parity.ROUNDED)]
    if args.quantization:  # after the same in fp32: what quantisation may change would hide what is wrong
        steps.append((partial(write_quantised, quantization=args.quantization), parity.QUANTISED))
    return lambda folder, tags: ctranslate2.Compared(folder, model.subwords.tagged(tags)), steps


def _lines(args: argparse.Namespace, prepared: Path) -> list[str]:
    """Lines to compare the models on: those of a file, or of the validation set."""
    from nmt.data.corpus import Prepared

    try:
        found = list(read_lines(args.lines)) if args.lines else Prepared.open(prepared).valid.texts()[0]
    except DataError as error:
        raise error if args.lines else DataError(f"{error} Or name a file of source lines: --lines FILE.") from None
    if lines := [line for line in found if line.strip()]:
        return lines if args.lines else lines[:N_LINE]
    raise DataError(f"{args.lines or prepared}: no lines to compare the two models on.")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    parser = Parser("nmt-export", description=_DESCRIPTION, examples=_EXAMPLES)
    add = parser.add_argument
    add("run", metavar="RUN", help="The run folder that nmt-train wrote.")
    add("--to", choices=TARGETS, required=True, help="The engine; safetensors: nmt itself, with nothing but the model.")
    written = "Written when it is whole and has been compared."
    add("--output", "--out", "-o", metavar="FOLDER", required=True, help=written)
    add("--overwrite", action="store_true", help="Replace a model that was exported before.")
    kinds = f"Of CTranslate2's weights: {', '.join(QUANTIZATIONS)}. [default: none, fp32]"
    add("--quantization", choices=QUANTIZATIONS, metavar="KIND", help=kinds)
    add("--precision", choices=PRECISIONS, help="Of the weights of --to safetensors. [default: fp32]")
    add("--checkpoint", metavar="NAME", help="A checkpoint of the run, like update-00012000.")
    add("--lines", metavar="FILE", help="Source lines to compare on; by default those of the validation set.")
    return run(export, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
