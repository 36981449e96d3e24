"""How often the pairs of each corpus are visited in an epoch: corpora of unequal size or worth, mixed by arithmetic.

Nothing is copied: a pair that is visited twice is a number that occurs twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nmt.errors import RecipeError
from nmt.recipe.data_options import DataConfig

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Mixture:
    """Pairs that lie corpus after corpus, and how often each corpus is visited in an epoch.

    sizes: pairs of each corpus, in their order. weights: visits of each of its pairs in an epoch, on average; 0.25 is
    another quarter of the corpus in each epoch, 2.5 every pair twice and another half of them once more.
    """

    sizes: tuple[int, ...]
    weights: tuple[float, ...]

    @property
    def is_even(self) -> bool:
        """Whether every pair is visited once in each epoch."""
        return all(weight == 1.0 for weight in self.weights)

    def rows(self, seed: int, epoch: int) -> Rows:
        """The pairs of an epoch, each as often as it is visited, in order of corpora.

        What is visited a fraction of a time is a window that moves over the corpus from epoch to epoch, in an order
        drawn once for all epochs: after enough of them every pair was seen as often as any other, but for one visit.
        """
        parts, first = [], 0
        for number, (size, weight) in enumerate(zip(self.sizes, self.weights, strict=True)):
            whole, share = divmod(weight, 1.0)
            every = np.arange(first, first + size, dtype=np.int64)
            parts += [every] * int(whole)
            # Rounded so that the windows of all epochs lie end to end.
            begin, end = (round(n * share * size) for n in (epoch, epoch + 1))
            if end > begin:
                order = np.random.default_rng([seed, number, size]).permutation(size)
                parts.append(first + np.sort(order[np.arange(begin, end) % size]))
            first += size
        return np.concatenate(parts)


def mixture_of(data: DataConfig, sizes: Sequence[int]) -> Mixture:
    """The mixture that a recipe asks for, of corpora that were prepared with so many pairs.

    With temperature T the shares of corpora of n pairs go with n^(1/T), as in multilingual BERT and M4 (Arivazhagan et
    al. 2019, "Massively multilingual neural machine translation in the wild", section 4): the largest corpus is visited
    once, smaller ones more often. A corpus' weight multiplies that.
    Raises RecipeError where corpora are to be weighted that were not prepared so.
    """
    weights = [files.weight for files in data.train]
    if len(weights) != len(sizes):
        if data.temperature != 1.0 or any(weight != 1.0 for weight in weights):
            raise RecipeError(
                f"data.train: {len(weights)} corpora in the recipe, but the data was prepared from {len(sizes)}, so "
                "that weights and data.temperature cannot be told apart. Prepare it again with nmt-preprocess."
            )
        weights = [1.0] * len(sizes)
    largest = max(sizes)
    found = tuple(
        weight * (size / largest) ** (1 / data.temperature - 1) if size else 0.0
        for weight, size in zip(weights, sizes, strict=True)
    )
    if not any(int(weight * size) for weight, size in zip(found, sizes, strict=True)):
        raise RecipeError(
            f"data.train: with weights of {', '.join(f'{weight:g}' for weight in weights)} an epoch would have no "
            "pair. A weight is how often each pair of a corpus is visited in an epoch."
        )
    return Mixture(tuple(sizes), found)
