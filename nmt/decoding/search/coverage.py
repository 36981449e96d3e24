"""How much of a source its translation has looked at, for search that must not leave anything out."""

from collections.abc import Sequence

from torch import Tensor

from nmt.decoding.scoring.scorer import Ids, score_tokens
from nmt.decoding.search.beam import Hypothesis
from nmt.models.base import SearchModel

_N_LAYER = 2  # the last ones, which align best
_LEAST = 1e-4  # of the attention to a word that nothing looked at, whose logarithm would be the end of all comparison


def coverage(weights: Tensor) -> float:
    """The coverage penalty of Wu et al. 2016, section 7, without its weight: the sum over the source of log min(a, 1),
    a being what all target tokens together gave to a source token. 0: all is covered.

    weights: (n_layer, n_head, T, S), the source's end last, which need not be looked at.
    """
    given = weights[-_N_LAYER:].mean((0, 1)).sum(0)[:-1]
    return float(given.clamp(_LEAST, 1.0).log().sum())


def by_coverage(
    model: SearchModel,
    src_ids: Sequence[Ids],
    found: Sequence[Sequence[Hypothesis]],
    weight: float,
    *,
    max_tokens: int,
) -> list[list[Hypothesis]]:
    """The hypotheses of each sentence, ranked by their score and `weight` times their coverage together."""
    pairs = [(sentence, one) for sentence, its in enumerate(found) for one in its]
    worth = [one.normalised for _, one in pairs]

    def look(pair: int, weights: Tensor) -> None:
        worth[pair] += weight * coverage(weights)

    src, trg = [src_ids[sentence] for sentence, _ in pairs], [one.ids for _, one in pairs]
    score_tokens(model, src, trg, max_tokens=max_tokens, look=look)
    ranked: list[list[Hypothesis]] = [[] for _ in found]
    for number in sorted(range(len(pairs)), key=lambda number: -worth[number]):
        sentence, one = pairs[number]
        ranked[sentence].append(one)
    return ranked
