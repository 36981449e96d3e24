"""Shared by the scripts that measure nmt-preprocess: a run of it in a process of its own, and the corpus they take."""

import itertools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from nmt.data.lines import read_lines
from nmt.errors import DataError

CORPUS = ("canlaw-en-fr.train.en.gz", "canlaw-en-fr.train.fr.gz")
_PREPARE = """
import json, sys
from pathlib import Path
from nmt.data.prepare import prepare
from nmt.recipe.reader import read_recipe
folder, overrides = json.loads(sys.argv[1])
stages = {}
prepare(read_recipe(None, overrides), Path(folder), overwrite=True, talk=lambda line: None, stages=stages)
print(json.dumps(stages))
"""


def command(folder: Path, overrides: Sequence[tuple[str, str]]) -> list[str]:
    """Return a command that prepares a folder, alarms accepted, and prints the seconds of each stage as JSON."""
    return [sys.executable, "-c", _PREPARE, json.dumps([str(folder), [*overrides, ("data.alarms", "warn")]])]


def located(name: str) -> Path:
    """A file of this name here, or in that which NMT_DATA names. Raises DataError where there is none."""
    folder = os.environ.get("NMT_DATA")
    for path in (Path(name), *([Path(folder, name)] if folder else [])):
        if path.exists():
            return path
    told = f"nor in {folder}, the folder that NMT_DATA names" if folder else "and NMT_DATA names no folder to look in"
    raise DataError(f"{name}: no such file here, {told}")


def pairs_of(
    names: Sequence[str], most: int, *, bad_utf8: Literal["drop"] | None = None
) -> list[tuple[str | None, str | None]]:
    """The first pairs of a source and a target, of which `located` knows where they are. bad_utf8: as in `read_lines`.

    Raises DataError where one of them ends before the other, and where there is no line.
    """
    sides = [list(itertools.islice(read_lines(located(name), bad_utf8=bad_utf8), most)) for name in names]
    check_lengths(names, [len(side) for side in sides])
    src, trg = sides
    return list(zip(src, trg, strict=True))


def check_lengths(names: Sequence[str], counts: Sequence[int]) -> None:
    """Raise DataError unless both files have as many lines as each other, and any. counts: of the lines that were read,
    which need not be all."""
    (less, shorter), (_, longer) = sorted(zip(counts, names, strict=True))
    if len(set(counts)) > 1:
        raise DataError(
            f"{shorter} ends after line {less:,}, and {longer} goes on: line n of one must be the translation of line "
            "n of the other. Look for a cut download or a stray line break."
        )
    if not less:
        raise DataError(f"{shorter} and {longer} have no lines.")
