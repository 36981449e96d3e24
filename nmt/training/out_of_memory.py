"""When memory runs out: into which pieces the batches of an update fall then.

An update whose batches are split is the same update: the loss is a sum over tokens, so the gradient of a batch is the
sum of those of its halves. Without dropout the two differ by rounding alone. With dropout each piece draws masks of its
own, for no generator can draw part of a tensor's masks: not those of the whole batch, but of the same expectation, and
always the same ones for the same pieces.
"""

from dataclasses import dataclass, replace

import numpy as np

from nmt.data.batching.batches import Batch, halves


@dataclass(frozen=True)
class Work:
    """One batch of an update on this rank. counts: False where a rank repeats one because others have more.

    seed: of its dropout, so that there is no generator state to lose. layer_seed: of what all batches of an update
    have in common, the layers that are left out.
    """

    batch: Batch
    counts: bool = True
    seed: int = 0
    layer_seed: int = 0

    @property
    def cost(self) -> int:
        """What the batch needs memory by: sentences x longest side."""
        return self.batch.src_seq.size(0) * max(self.batch.src_seq.size(1), self.batch.gold.size(1))

    def split(self) -> "list[Work]":
        """Two pieces with half the sentences each."""
        seeds = np.random.SeedSequence(self.seed).generate_state(2, np.uint64) >> np.uint64(1)
        return [replace(self, batch=half, seed=int(seed)) for half, seed in zip(halves(self.batch), seeds, strict=True)]


@dataclass
class Memory:
    """What a run has learnt of its memory. too_large: cost of the smallest batch that it could not hold; 0: none yet.

    n_failed: how often it was too small.
    """

    too_large: int = 0
    n_failed: int = 0

    def pieces(self, work: list[Work]) -> list[Work]:
        """The batches of an update, those halved that memory is known not to hold. A pair cannot be halved."""
        found: list[Work] = []
        for item in work:
            hopeless = self.too_large and item.cost >= self.too_large and item.batch.src_seq.size(0) > 1
            found += self.pieces(item.split()) if hopeless else [item]
        return found

    def ran_out(self, work: Work) -> None:
        """Remember that a batch was too large."""
        self.n_failed += 1
        self.too_large = min(work.cost, self.too_large or work.cost)
