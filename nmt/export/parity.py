"""Comparison of an exported model with the original: both translate the same lines and score the same translations.

What is compared with is anything that translates and scores; each engine has one of these in its own file.
"""

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from nmt import checkpoint
from nmt.data.subwords import Subwords
from nmt.decoding.long_lines import MAX_SRC_LEN
from nmt.decoding.scorer import score_tokens
from nmt.decoding.translator import Translator
from nmt.errors import DataError, RunError
from nmt.models.base import SearchModel
from nmt.models.transformer.Models import LearnedPositions, PositionalEncoding
from nmt.recipe.decode_options import DecodeConfig
from nmt.recipe.draft import PRECISIONS
from nmt.recipe.places import DATA_AT
from nmt.run import Run

MOST_TOKENS = 200  # of a greedy translation, EOS not counted


class Exported(Protocol):
    """An exported model, on the CPU, as far as a comparison needs to know it."""

    def greedy(self, lines: Sequence[str], most: int) -> list[str]:
        """The translation of each line by greedy search, which ends it after `most` tokens."""

    def score(self, lines: Sequence[str], trg_ids: Sequence[list[int]]) -> list[list[float]]:
        """Log-probability of each token of given translations of the lines, EOS included."""


class Tolerance(NamedTuple):
    """Most that the log-probability of a token may differ, anywhere and on average. Without bound anywhere, the texts
    may differ, too."""

    worst: float
    mean: float


SAME = Tolerance(0.0, 0.0)  # the same arithmetic
ROUNDED = Tolerance(1e-3, 1e-3)  # fp32, but sums are taken in another order
FP16 = Tolerance(math.inf, 0.01)
BF16 = Tolerance(math.inf, 0.05)
QUANTISED = Tolerance(math.inf, 0.2)


class Parity(NamedTuple):
    """Result of a comparison. n_same: lines that both translate alike by greedy search; mean and worst: difference of a
    token's log-probability."""

    n_line: int
    n_same: int
    mean: float
    worst: float

    @property
    def text(self) -> str:
        return (
            f"{self.n_same:,} of {self.n_line:,} lines translated alike by greedy search; log-probability of a token: "
            f"{self.mean:.1e} apart on average, {self.worst:.1e} at most"
        )


class Ours(Exported):
    """A model of ours. Searched with nothing that other engines have not: what it writes may be no UTF-8."""

    def __init__(self, model: SearchModel, subwords: Subwords) -> None:
        self._model, self._subwords = model, subwords

    def ids(self, lines: Sequence[str], most: int) -> list[list[int]]:
        """Ids of the translation of each line by greedy search."""
        config = DecodeConfig(beam=1, max_len_a=0.0, max_len_b=most)
        translator = Translator(self._model, self._subwords, config, whole_characters=False)
        found: dict[int, list[int]] = {}
        for numbers, hypotheses in translator.batches(self._subwords.src.encode(lines)):
            found.update(zip(numbers.tolist(), (best[0].ids for best in hypotheses), strict=True))
        return [found[number] for number in range(len(lines))]

    def greedy(self, lines: Sequence[str], most: int) -> list[str]:
        return [self._subwords.trg.decode(ids) for ids in self.ids(lines, most)]

    def score(self, lines: Sequence[str], trg_ids: Sequence[list[int]]) -> list[list[float]]:
        return score_tokens(self._model, self._subwords.src.encode(lines), trg_ids)


def compare(
    model: SearchModel,
    subwords: Subwords,
    exported: Exported,
    lines: Sequence[str],
    tolerance: Tolerance,
    most: int = MOST_TOKENS,
) -> Parity:
    """Translate and score with both, on the CPU. most: tokens of a translation. Raises RunError if the two are not the
    same model, and DataError if every line is too long."""
    lines = [line for line, ids in zip(lines, subwords.src.encode(lines), strict=True) if len(ids) <= MAX_SRC_LEN]
    if not lines:
        raise DataError(f"every line to compare on has more than {MAX_SRC_LEN:,} subwords: name other ones.")
    ours = Ours(model, subwords)
    trg_ids = ours.ids(lines, most)
    texts = list(zip(lines, map(subwords.trg.decode, trg_ids), exported.greedy(lines, most), strict=True))
    different = [one for one in texts if one[1] != one[2]]
    if different and math.isfinite(tolerance.worst):
        line, a, b = different[0]
        raise RunError(f"the exported model is another one:\n  {line}\nis here\n  {a}\nand there\n  {b}")
    scores = zip(ours.score(lines, trg_ids), exported.score(lines, trg_ids), strict=True)
    apart = [abs(a - b) for both in scores for a, b in zip(*both, strict=True)]
    found = Parity(len(texts), len(texts) - len(different), sum(apart) / len(apart), max(apart))
    if not (found.worst <= tolerance.worst and found.mean <= tolerance.mean):  # so that a NaN is no success
        wider = "" if math.isfinite(tolerance.worst) else " Take a wider --precision or --quantization."
        raise RunError(f"the exported model is another one: {found.text}, which is too much.{wider}")
    return found


def copy_front_end(run: Run, folder: Path) -> None:
    """Put recipe, subwords, and what is known of the training data into a folder: what reading and writing take."""
    for file in (run.recipe_file, run.subwords_file):
        shutil.copyfile(file, folder / file.name)
    if run.data_file.exists():
        known = checkpoint.read_json(run.data_file)
        told = {key: value for key, value in known.items() if key != DATA_AT}  # the folder is of no use elsewhere
        text = json.dumps(told, indent=1) + "\n"
        (folder / run.data_file.name).write_text(text, encoding="utf-8", newline="\n")


def export(run: Run, name: str | None, folder: Path, precision: str) -> None:
    """Write the model of a run, or its checkpoint of a name, with weights of that precision.

    Raises RunError for weights that fp16 is too narrow for.
    """
    source = run.weights_folder(name)
    state = checkpoint.verify(source)
    weights = checkpoint.load_tensors(source, checkpoint.MODEL)
    dtype: torch.dtype = getattr(torch, PRECISIONS[precision])
    narrow = {key: tensor.to(dtype) for key, tensor in weights.items() if tensor.is_floating_point()}
    for key, tensor in narrow.items():
        if not torch.isfinite(tensor).all() and torch.isfinite(weights[key]).all():
            raise RunError(f"{source}: {key} holds numbers that are too large for {precision}: take bf16 or fp32.")
    folder.mkdir()
    copy_front_end(run, folder)
    kept = {"update": state["update"], "from": source.name, "precision": precision}
    checkpoint.save(Run(folder).model_folder, {checkpoint.MODEL: weights | narrow}, kept)


def read(folder: Path) -> SearchModel:
    """The model as translation reads it, on the CPU."""
    return Run(folder).load_model(torch.device("cpu"))[0]


# Their tables end somewhere; ours go on. As many rows as nmt-translate reads subwords, and as many again.
N_POSITION = 2048


def position_table(place: nn.Module) -> Tensor:
    """(N_POSITION or more, D), for positions that are added and not turned by."""
    if isinstance(place, PositionalEncoding):
        zero = torch.zeros(1, N_POSITION, place.pos_table.size(-1), device=place.pos_table.device)
        rows: Tensor = place(zero)
        return rows[0]
    assert isinstance(place, LearnedPositions)
    table = place.pos_emb.weight
    return torch.cat([table, table[-1:].expand(max(0, N_POSITION - len(table)), -1)])
