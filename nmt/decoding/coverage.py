"""How much of a source its translation has looked at, for search that must not leave anything out."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.decoding.beam import Hypothesis
from nmt.decoding.scorer import Ids, score_tokens
from nmt.models.base import SearchModel

_N_LAYER = 2  # the last ones, as in alignments
_LEAST = 1e-4  # of the attention to a word that nothing looked at, whose logarithm would be the end of all comparison


def coverage(weights: Tensor) -> float:
    """The coverage penalty of Wu et al. 2016, section 7, without its weight: the sum over the source of log min(a, 1),
    a being what all target tokens together gave to a source token. 0: all is covered.

    weights: (n_layer, n_head, T, S), the source's end last, which need not be looked at.
    """
    given = weights[-_N_LAYER:].mean((0, 1)).sum(0)[:-1]
    return float(given.clamp(_LEAST, 1.0).log().sum())


@dataclass(frozen=True, slots=True)
class _Pair:
    sentence: int
    hypothesis: Hypothesis


def by_coverage(
    model: SearchModel,
    src_ids: Sequence[Ids],
    found: Sequence[Sequence[Hypothesis]],
    weight: float,
    *,
    max_tokens: int,
) -> list[list[Hypothesis]]:
    """The hypotheses of each sentence, ranked by their score and `weight` times their coverage together."""
    pairs = [_Pair(sentence, one) for sentence, its in enumerate(found) for one in its]
    covered = torch.zeros(len(pairs), dtype=torch.float64)

    def look(pair: int, weights: Tensor) -> None:
        covered[pair] = coverage(weights)

    src, trg = [src_ids[pair.sentence] for pair in pairs], [pair.hypothesis.ids for pair in pairs]
    score_tokens(model, src, trg, max_tokens=max_tokens, look=look)
    ranked: list[list[tuple[float, Hypothesis]]] = [[] for _ in found]
    for pair, value in zip(pairs, covered.tolist(), strict=True):
        ranked[pair.sentence].append((pair.hypothesis.normalised + weight * value, pair.hypothesis))
    return [[one for _, one in sorted(its, key=lambda both: -both[0])] for its in ranked]
