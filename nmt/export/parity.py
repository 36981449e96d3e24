"""Comparison of an exported model with the original: both translate the same lines and score the same translations.

For each engine, `translate_and_score` in its own file is an `Exported`, once its first argument is bound.
"""

import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

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

MOST_TOKENS = 200  # of a greedy translation, without EOS

# An exported model, on the CPU: subwords, lines, translations of them as ids, and a number of tokens -> translations by
# greedy search, with at most so many tokens; and the log-probability of each token of those given, EOS included.
Exported = Callable[[Subwords, Sequence[str], Sequence[list[int]], int], tuple[list[str], list[list[float]]]]


# Largest allowed difference of a token's log-probability: for any token, and on average. If the first is infinite, the
# texts may differ, too.
Tolerance = tuple[float, float]
SAME: Tolerance = 0.0, 0.0  # the same arithmetic
ROUNDED: Tolerance = 1e-3, 1e-3  # fp32, with sums in another order
FP16: Tolerance = math.inf, 0.01
BF16: Tolerance = math.inf, 0.05
QUANTISED: Tolerance = math.inf, 0.2


class Parity(NamedTuple):
    """Result of a comparison. n_same: lines with the same greedy translation; mean, worst: absolute difference of the
    log-probability of a token."""

    n_line: int
    n_same: int
    mean: float
    worst: float

    @property
    def text(self) -> str:
        return (
            f"{self.n_same:,} of {self.n_line:,} lines have the same greedy translation; log-probabilities of tokens "
            f"differ by {self.mean:.1e} on average, {self.worst:.1e} at most"
        )


def _greedy(model: SearchModel, subwords: Subwords, src_ids: Sequence[list[int]], most: int) -> list[list[int]]:
    """Return the ids of a translation of each source by greedy search, only by features that other engines have: it may
    be invalid UTF-8."""
    config = DecodeConfig(beam=1, max_len_a=0.0, max_len_b=most)
    ids_of: dict[int, list[int]] = {}
    for numbers, hypotheses in Translator(model, subwords, config, is_free=True).batches(src_ids):
        ids_of.update(zip(numbers.tolist(), (n_best[0].ids for n_best in hypotheses), strict=True))
    return [ids_of[number] for number in range(len(src_ids))]


def translate_and_score(
    model: SearchModel, subwords: Subwords, lines: Sequence[str], trg_ids: Sequence[list[int]], most: int
) -> tuple[list[str], list[list[float]]]:
    """`Exported`, by a model of nmt."""
    src_ids = subwords.src.encode(lines)
    texts = [subwords.trg.decode(ids) for ids in _greedy(model, subwords, src_ids, most)]
    return texts, score_tokens(model, src_ids, trg_ids)


def compare(
    model: SearchModel,
    subwords: Subwords,
    exported: Exported,
    lines: Sequence[str],
    tolerance: Tolerance,
    most: int = MOST_TOKENS,
) -> Parity:
    """Translate and score with both models, on the CPU. most: largest number of tokens of a translation. Raises
    RunError if the two are not the same model, and DataError if all lines are too long."""
    lines = [line for line, ids in zip(lines, subwords.src.encode(lines), strict=True) if len(ids) <= MAX_SRC_LEN]
    if not lines:
        raise DataError(f"all lines to compare have more than {MAX_SRC_LEN:,} subwords: name others with --lines.")
    src_ids = subwords.src.encode(lines)
    trg_ids = _greedy(model, subwords, src_ids, most)
    translations, log_probs = exported(subwords, lines, trg_ids, most)
    texts = list(zip(lines, map(subwords.trg.decode, trg_ids), translations, strict=True))
    different, (worst, mean) = [row for row in texts if row[1] != row[2]], tolerance
    if different and math.isfinite(worst):
        line, a, b = different[0]
        raise RunError(f"the exported model translates differently:\n  {line}\nnmt:\n  {a}\nexport:\n  {b}")
    scores = zip(score_tokens(model, src_ids, trg_ids), log_probs, strict=True)
    errors = [abs(a - b) for rows in scores for a, b in zip(*rows, strict=True)]
    parity = Parity(len(texts), len(texts) - len(different), sum(errors) / len(errors), max(errors))
    if not (parity.worst <= worst and parity.mean <= mean):  # `not`, so that NaN fails
        advice = "" if math.isfinite(worst) else " Take a wider --precision or --quantization."
        raise RunError(f"the exported model differs too much: {parity.text}.{advice}")
    return parity


def copy_front_end(run: Run, folder: Path) -> None:
    """Copy the files that pre- and postprocessing need into a folder: recipe, subwords, facts of the training data."""
    for file in (run.recipe_file, run.subwords_file):
        shutil.copyfile(file, folder / file.name)
    if run.data_file.exists():
        facts = run.data_facts().items()
        portable = {key: value for key, value in facts if key != DATA_AT}  # without a path of this machine
        checkpoint.write_json(folder / run.data_file.name, portable)


def export(run: Run, name: str | None, folder: Path, precision: str) -> None:
    """Write the model of a run, or the checkpoint `name`, with weights in a precision. Raises RunError for weights that
    are too large for fp16."""
    source = run.weights_folder(name)
    state = checkpoint.verify(source)
    weights = checkpoint.load_tensors(source, checkpoint.MODEL)
    dtype: torch.dtype = getattr(torch, PRECISIONS[precision])
    converted = {key: tensor.to(dtype) for key, tensor in weights.items() if tensor.is_floating_point()}
    for key, tensor in converted.items():
        if not torch.isfinite(tensor).all() and torch.isfinite(weights[key]).all():
            raise RunError(f"{source}: {key} holds numbers that are too large for {precision}: take bf16 or fp32.")
    folder.mkdir()
    copy_front_end(run, folder)
    new_state = {"update": state["update"], "from": source.name, "precision": precision}
    checkpoint.save(Run(folder).model_folder, {checkpoint.MODEL: weights | converted}, new_state)


# Rows of an exported position table, which has a fixed size there: twice the subwords that nmt-translate reads.
N_POSITION = 2048


def position_table(encoding: nn.Module) -> Tensor:
    """Return the table of additive positions, (N_POSITION or more, D); not for rotary ones."""
    if isinstance(encoding, PositionalEncoding):
        return encoding.rows(0, N_POSITION)[0]
    assert isinstance(encoding, LearnedPositions)
    table = encoding.pos_emb.weight
    return torch.cat([table, table[-1:].expand(max(0, N_POSITION - len(table)), -1)])
