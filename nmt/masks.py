"""Attention masks, of padded and of packed batches.

Shapes: B sentences, T queries, S keys. Masks are True where a query may attend.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Packing(NamedTuple):
    """Layout of sentences that lie end to end in one row, instead of in a padded row each. Made by `of`.

    start: (N + 1,) int32, index of the first token of each sentence, then the length of the row. longest: bound on the
    sentence lengths; it is the same for all batches of a run, since a compiled model is compiled anew for each value.
    sentence, position: (L,) int64, for each token of the row the number of its sentence and its position in that.
    """

    start: Tensor
    longest: int
    sentence: Tensor
    position: Tensor

    @classmethod
    def of(cls, start: Tensor, longest: int, n: int) -> "Packing":
        """Packing of a row of n tokens. Not to be compiled: the compiler of torch 2.11 takes start[1:] for start."""
        index = torch.arange(n, device=start.device, dtype=start.dtype)
        sentence = torch.bucketize(index, start[1:], right=True)
        return cls(start, longest, sentence, (index - start[sentence]).to(torch.int64))

    def twice(self) -> "Packing":
        """Packing of the row followed by a copy of itself."""
        start = torch.cat([self.start, self.start[1:] + self.start[-1]])
        sentence = torch.cat([self.sentence, self.sentence + len(self.start) - 1])
        return Packing(start, self.longest, sentence, self.position.repeat(2))


class PackedMask(NamedTuple):
    """Mask of a packed row: queries attend to keys of their own sentence, and if causal to no later ones.

    prepared: data that attention kernels compute from it once per batch (`ops.packed_mask`), or None.
    """

    query: Packing
    key: Packing
    causal: bool
    prepared: Any = None

    def matrix(self) -> Tensor:
        """The mask as a bool tensor, (1, 1, T, S)."""
        mask = self.query.sentence.unsqueeze(1) == self.key.sentence
        return (mask.tril() if self.causal else mask)[None, None]


class SearchMask:
    """Mask of a search, bool (B or 1, 1, K or 1, S), which several layers share: the K queries are the hypotheses of a
    sentence, not words. prepared: data that an attention kernel computes from it once, at the first layer; or None."""

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask
        self.prepared: Any = None


Mask = Tensor | PackedMask | SearchMask


def as_matrix(mask: Mask) -> Tensor:
    """Convert any mask to a bool tensor, (B or 1, 1, T or 1, S)."""
    if isinstance(mask, SearchMask):
        return mask.mask
    return mask.matrix() if isinstance(mask, PackedMask) else mask
