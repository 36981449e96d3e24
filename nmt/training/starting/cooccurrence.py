"""First embeddings from the training pairs: a subword and its translation occur in the same pairs, and begin as
neighbours.

This is cross-language latent semantic indexing (Littman, Dumais, Landauer 1998): singular vectors of the matrix of
which subword occurs in which pair. Training then has a dictionary before its first update. The vectors are found by
the randomised subspace iteration of Halko, Martinsson, Tropp 2011, algorithm 4.4.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag, normalize

from nmt.data.stored.corpus import Corpus, Ids
from nmt.progress import Bar

MAX_PAIRS = 200_000  # more of them change the neighbours little, and take memory and time
_N_POWER, _N_EXTRA = 4, 32  # iterations, and dimensions beyond those wanted: both make the vectors more exact
_NOISE = 0.1  # share of the variance: what tells apart subwords that occur in exactly the same pairs


def cooccurrence_embeddings(
    corpus: Corpus, n_vocab: int, width: int, *, trg_offset: int, seed: int, quiet: bool = True
) -> Tensor:
    """(n_vocab, width) embeddings, of variance 1 / width as a normal initialisation would have.

    trg_offset: what is added to target ids, 0 where both sides share their ids and n_src_vocab where they do not;
    n_vocab counts all rows. A subword that occurs nowhere gets noise. At most MAX_PAIRS pairs are looked at, evenly
    spread over the corpus. Unless quiet, stderr has a progress bar.
    """
    occurrence = _Occurrence(*_occurrences(corpus, trg_offset), n_vocab)
    generator = torch.Generator().manual_seed(seed % 2**63)
    known = torch.zeros(n_vocab, width)
    vectors = _singular_vectors(occurrence, width + 1, generator, quiet)[:, 1:]  # the first tells only how frequent
    known[:, : vectors.size(1)] = normalize(vectors, dim=1)
    noise = torch.randn(n_vocab, width, generator=generator) * width**-0.5
    seen = known.any(dim=1, keepdim=True)
    return torch.where(seen, (1 - _NOISE) ** 0.5 * known + _NOISE**0.5 * noise, noise)


def _occurrences(corpus: Corpus, trg_offset: int) -> tuple[Ids, Ids]:
    """Which subword occurs in which pair, each once: ids and pair numbers, sorted by pair."""
    n_pair = min(corpus.n_pair, MAX_PAIRS)
    src, trg = corpus.pairs(np.arange(n_pair) * corpus.n_pair // n_pair)
    pair = np.arange(n_pair)
    ids = np.concatenate([*src, *(row + trg_offset for row in trg)])
    of_pair = np.concatenate([np.repeat(pair, list(map(len, side))) for side in (src, trg)])
    n_id = int(ids.max(initial=0)) + 1
    key = np.unique(of_pair * n_id + ids)
    return key % n_id, key // n_id


class _Occurrence:
    """The sparse matrix A (subwords x pairs) of 1 / sqrt(pairs of the subword · subwords of the pair)."""

    def __init__(self, ids: Ids, pairs: Ids, n_vocab: int) -> None:
        per_id, per_pair = np.bincount(ids, minlength=n_vocab), np.bincount(pairs)
        weight = (per_id[ids] * per_pair[pairs].astype(np.float64)) ** -0.5
        by_id = np.argsort(ids, kind="stable")
        self.shape = (n_vocab, len(per_pair))
        self._of_id = self._bags(pairs[by_id], per_id, weight[by_id])
        self._of_pair = self._bags(ids, per_pair, weight)

    @staticmethod
    def _bags(members: Ids, sizes: Ids, weight: NDArray[np.floating]) -> tuple[Tensor, Tensor, Tensor]:
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        return torch.from_numpy(members), torch.from_numpy(starts), torch.from_numpy(weight).float()

    def times(self, x: Tensor) -> Tensor:
        """A x: (pairs, K) -> (subwords, K)"""
        return self._product(self._of_id, x)

    def transposed_times(self, x: Tensor) -> Tensor:
        """AT x: (subwords, K) -> (pairs, K)"""
        return self._product(self._of_pair, x)

    @staticmethod
    def _product(bags: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        members, starts, weight = bags
        product: Tensor = embedding_bag(members, x, starts, mode="sum", per_sample_weights=weight)
        return product


def _singular_vectors(a: _Occurrence, n: int, generator: torch.Generator, quiet: bool = True) -> Tensor:
    """The first n left singular vectors of A, or as many as it has, each times the root of its singular value."""
    n_found = min(n + _N_EXTRA, *a.shape)
    y = a.times(torch.randn(a.shape[1], n_found, generator=generator))
    for _ in Bar(range(_N_POWER), desc="first embeddings", disable=quiet, leave=False):
        y = a.times(a.transposed_times(torch.linalg.qr(y).Q))
    vectors, squares, _ = torch.linalg.svd(y, full_matrices=False)
    rooted: Tensor = vectors[:, :n] * squares[:n] ** 0.25
    return rooted
