"""nmt-export: a trained model for another engine, and the proof that it is still the same model."""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from nmt.cli.command import must_be_free, printable, run
from nmt.data.lines import read_lines
from nmt.errors import DataError, NmtError
from nmt.files import exchange

_DESCRIPTION = """\
Write the model of the run folder RUN as a folder of CTranslate2, then translate and score some lines with both: what is
not the same model is not written. The lines are those of the validation set, or of --lines."""
QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16")
N_LINE = 200  # compared where there are more


def export(args: argparse.Namespace) -> int:
    """The command behind the flags."""
    from nmt.api import load
    from nmt.export.ctranslate2 import export as write
    from nmt.export.parity import compare
    from nmt.models.transformer.Models import Transformer

    folder = Path(args.output)
    lines = _lines(args)
    model = load(args.run, checkpoint=args.checkpoint, device="cpu")
    if lines is None:
        lines = _validation_lines(model.recipe.data_folder)
    must_be_free(folder, overwrite=args.overwrite)
    if folder.exists() and not (folder / "model.bin").is_file():
        raise NmtError(f"{folder} is no exported model, so it is not replaced. Choose another name.")
    assert isinstance(model.model, Transformer)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        write(model.model, model.recipe.model, model.subwords, temporary, args.quantization)
        parity = compare(model.model, model.subwords, temporary, lines[:N_LINE], exact=args.quantization is None)
        if not (folder.exists() and exchange(temporary, folder)):
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _say(parity.text)
    _say(f"written: {folder}")
    return 0


def _lines(args: argparse.Namespace) -> list[str] | None:
    return None if args.lines is None else _some(args.lines, [line or "" for line in read_lines(args.lines)])


def _validation_lines(prepared: Path) -> list[str]:
    from nmt.data.corpus import Prepared

    try:
        return _some(str(prepared), Prepared.open(prepared).valid.texts()[0])
    except DataError as error:
        raise DataError(f"{error} Or name a file of source lines to compare the two models on: --lines FILE.") from None


def _some(name: str, lines: list[str]) -> list[str]:
    if found := [line for line in lines if line.strip()]:
        return found
    raise DataError(f"{name}: no lines to compare the two models on.")


def _say(text: str) -> None:
    print(f"nmt-export: {printable(text)}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    parser = argparse.ArgumentParser("nmt-export", description=_DESCRIPTION)
    add = parser.add_argument
    add("run", metavar="RUN", help="The run folder that nmt-train wrote.")
    add("--to", choices=["ctranslate2"], required=True, help="The engine.")
    add("--output", "-o", metavar="FOLDER", required=True, help="Written when it is whole and has been compared.")
    add("--overwrite", action="store_true", help="Replace a model that was exported before.")
    add("--quantization", choices=QUANTIZATIONS, help="Of the weights; by default they stay in fp32.")
    add("--checkpoint", metavar="NAME", help="A checkpoint of the run, like update-00012000.")
    add("--lines", metavar="FILE", help="Source lines to compare on; by default those of the validation set.")
    return run("nmt-export", export, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
