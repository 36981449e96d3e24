"""What a picture of attention shows: which layers and heads of which sentence pairs. No drawing.

Layers and heads are counted from 1 by people and in everything here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from nmt.errors import NmtError
from nmt.recipe.model_options import Attention

Layers = Sequence[int] | Literal["last", "all"]
Heads = Sequence[int] | Literal["mean", "all"]
# What looks, and at what: the words of `page.js`.
KINDS: dict[Attention, str] = {
    "cross": "cross: translation at source",
    "encoder": "encoder: source at itself",
    "decoder": "decoder: translation at itself",
}


@dataclass(frozen=True, slots=True)
class Alignment:
    """Where a model looked while it wrote one translation.

    weights: (n_layer, n_head, T, S), rows summing to 1; T target and S source pieces, EOS included. Of another kind
    than cross, the rows are what looks and the columns what it looks at.
    """

    weights: Tensor
    src_pieces: list[str]
    trg_pieces: list[str]
    title: str = ""
    kind: Attention = "cross"


@dataclass(frozen=True, slots=True)
class Panel:
    """One heat map: name says which layer and head, weights is (T, S)."""

    name: str
    weights: Tensor
    layer: int
    head: int | None  # None: the mean of all


def panels(alignment: Alignment, layers: Layers, heads: Heads) -> list[list[Panel]]:
    """The heat maps of one pair: a row for each layer, a column for each head, or one column for their mean.

    Raises NmtError naming the layers or heads that do not exist.
    """
    n_layer, n_head = alignment.weights.shape[:2]
    wanted_layers = _numbers("layer", layers, n_layer)
    if heads == "mean":
        means = [(i, alignment.weights[i - 1].mean(0)) for i in wanted_layers]
        of = f", mean of {n_head} heads" if n_head > 1 else ""
        return [[Panel(f"layer {i}{of}", mean, i, None)] for i, mean in means]
    wanted_heads = _numbers("head", heads, n_head)
    return [
        [Panel(f"layer {i}, head {j}", alignment.weights[i - 1, j - 1], i, j) for j in wanted_heads]
        for i in wanted_layers
    ]


def _numbers(what: str, wanted: Sequence[int] | str, n: int) -> list[int]:
    if wanted == "all":
        return list(range(1, n + 1))
    if wanted == "last":
        return [n]
    assert not isinstance(wanted, str), wanted
    if missing := [str(number) for number in wanted if not 1 <= number <= n]:
        raise NmtError(f"there is no {what} {', '.join(missing)}: the model has {what}s 1 to {n}.")
    return list(wanted)
