"""Masks of attention: what a query may look at, in a batch that is padded and in one that is packed.

Shapes: B sentences, T queries, S keys. Masks are True where looking is allowed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Packing(NamedTuple):
    """Sentences that lie end to end in one row, in place of one row each with padding: see `of`.

    start: (N + 1,) int32, where each begins, and where the last ends: the length of the row. longest: a bound on their
    lengths; the same for all batches of a run, or a compiled model would be compiled for each. sentence, position:
    which sentence each place of the row belongs to, and where in it the place is, int64, as long as the row.
    """

    start: Tensor
    longest: int
    sentence: Tensor
    position: Tensor

    @classmethod
    def of(cls, start: Tensor, longest: int, n: int) -> "Packing":
        """In a row of n places. Not to be compiled: the compiler of torch 2.11 takes start[1:] for start."""
        place = torch.arange(n, device=start.device, dtype=start.dtype)
        sentence = torch.bucketize(place, start[1:], right=True)
        return cls(start, longest, sentence, (place - start[sentence]).to(torch.int64))

    def twice(self) -> "Packing":
        """Packing of a row of twice the length, which has all sentences and then all of them once more."""
        start = torch.cat([self.start, self.start[1:] + self.start[-1]])
        sentence = torch.cat([self.sentence, self.sentence + len(self.start) - 1])
        return Packing(start, self.longest, sentence, self.position.repeat(2))


class PackedMask(NamedTuple):
    """Mask of a packed row: its queries look at the keys of their own sentence, and only back if causal.

    prepared: what attention makes of it once a batch (`ops.packed_mask`), if anything.
    """

    query: Packing
    key: Packing
    causal: bool
    prepared: Any = None

    def matrix(self) -> Tensor:
        """The same as a bool tensor, (1, 1, T, S)."""
        mask = self.query.sentence.unsqueeze(1) == self.key.sentence
        return (mask.tril() if self.causal else mask)[None, None]


class SharedMask:
    """A mask, bool (B or 1, 1, T or 1, S), that several layers use: what one makes of it serves all.

    in_search: its T queries are hypotheses of a sentence, not words.
    """

    def __init__(self, mask: Tensor, *, in_search: bool = False) -> None:
        self.mask, self.in_search = mask, in_search
        self._made: dict[Callable[[Tensor], Any], Any] = {}

    def made(self, make: Callable[[Tensor], Any]) -> Any:
        """make(mask), computed once."""
        if make not in self._made:
            self._made[make] = make(self.mask)
        return self._made[make]


Mask = Tensor | PackedMask | SharedMask


def as_matrix(mask: Mask) -> Tensor:
    """Any mask as a bool tensor, (B or 1, 1, T or 1, S)."""
    if isinstance(mask, SharedMask):
        return mask.mask
    return mask.matrix() if isinstance(mask, PackedMask) else mask
