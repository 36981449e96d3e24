"""What the scripts that measure nmt-preprocess share: a run of it in a process of its own, and the corpus they take."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

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
    """What prepares a folder by these options, and prints one line of JSON: the seconds of each stage."""
    return [sys.executable, "-c", _PREPARE, json.dumps([str(folder), overrides])]


def located(name: str) -> Path:
    """A file of this name here, or in that which NMT_DATA names. Raises DataError where there is none."""
    folder = os.environ.get("NMT_DATA")
    for path in (Path(name), *([Path(folder, name)] if folder else [])):
        if path.exists():
            return path
    told = f"nor in {folder}, the folder that NMT_DATA names" if folder else "and NMT_DATA names no folder to look in"
    raise DataError(f"{name}: no such file here, {told}")
