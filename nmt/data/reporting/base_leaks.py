"""Validation and test lines among the pairs that the run was trained on which this one begins with."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nmt.data.reporting.leaks import Keys, Leaks
from nmt.data.stored.corpus import Prepared
from nmt.data.text.facts import Block
from nmt.errors import NmtError
from nmt.recipe.places import is_of_run, is_prepared
from nmt.recipe.reader import load_resolved

_N_PAIR = 10_000


def overlap_with_bases(bases: Iterable[Path], leaks: Leaks) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows as `Leaks.rows` has them, in `train of BASE`; and the bases whose training pairs are not there any more.

    bases: folders of runs or of prepared data, whatever else is left out.
    """
    rows: list[dict[str, Any]] = []
    unknown = []
    for base in dict.fromkeys(bases):
        try:
            data = Prepared.open(_data_of(base))
        except (NmtError, OSError):
            unknown.append(str(base))
            continue
        found = Leaks(leaks.splits)
        for src, trg, numbers in _texts(data):
            found.look(Keys.of(Block(src), Block(trg)), numbers)
        rows += [{**row, "in": f"train of {base}"} for row in found.rows() if row["in"] == "train"]
    return rows, unknown


def _data_of(base: Path) -> Path:
    if is_prepared(base):
        return base
    return load_resolved(base / "recipe.yaml").data_folder if is_of_run(base) else base


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
