"""Validation and test lines among the pairs that the run was trained on which this one begins with."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nmt.data.reporting.leaks import Keys, Leaks
from nmt.data.stored.corpus import Prepared
from nmt.data.text.facts import Block
from nmt.errors import DataError, NmtError
from nmt.files import parse_json
from nmt.recipe.places import RUN_DATA, is_of_run
from nmt.recipe.reader import load_resolved

_N_PAIR = 10_000


def overlap_with_bases(bases: Iterable[Path], leaks: Leaks) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows as `Leaks.rows` has them, in `train of BASE`; and the bases whose pairs cannot be read, with reasons.

    bases: runs, models and checkpoints in them, or folders of prepared data.
    """
    rows: list[dict[str, Any]] = []
    unknown = []
    for base in dict.fromkeys(map(_folder_of, bases)):
        try:
            data = _data_of(base)
        except (NmtError, OSError, ValueError) as error:
            unknown.append(f"{base} ({error})")
            continue
        found = Leaks(leaks.splits)
        for src, trg, numbers in _texts(data):
            found.look(Keys.of(Block(src), Block(trg)), numbers)
        rows += [{**row, "in": f"train of {base}"} for row in found.rows() if row["in"] == "train"]
    return rows, unknown


def _folder_of(base: Path) -> Path:
    """The run of a model or checkpoint in it."""
    return next((folder for folder in (base, *base.parents[:2]) if is_of_run(folder)), base)


def _data_of(base: Path) -> Prepared:
    if not is_of_run(base):
        return Prepared.open(base)
    data = Prepared.open(load_resolved(base / "recipe.yaml").data_folder)
    told = parse_json((base / RUN_DATA).read_bytes())
    if not isinstance(told, dict) or told.get("train") != data.train.fingerprint:
        raise DataError(f"{data.folder} holds other pairs than when it was trained on.")
    return data


def _texts(data: Prepared) -> Iterator[tuple[Sequence[str], Sequence[str], Any]]:
    """The training pairs, decoded from what is stored."""
    codecs = (data.subwords.src, data.subwords.trg)
    for start in range(0, data.train.n_pair, _N_PAIR):
        numbers = range(start, min(start + _N_PAIR, data.train.n_pair))
        src, trg = (
            [" ".join(codec.decode(ids.tolist()).split("\n")) for ids in side]
            for codec, side in zip(codecs, data.train.pairs(numbers), strict=True)
        )
        yield src, trg, np.array(numbers)
