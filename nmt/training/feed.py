"""Data loader: this rank's batches of each update, made a little ahead of their use. The feed stores no position, which
is an argument, so reading ahead cannot corrupt a checkpoint."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays import Ragged
from nmt.data.batches import Batch, make_batch, make_packed, read_ahead
from nmt.data.corpus import Prepared
from nmt.data.plan import Plan, Position, Rows, mixture_of
from nmt.data.resample import Noise, Resampled
from nmt.recipe.options import Recipe
from nmt.training.memory import Work
from nmt.training.parallel import Ranks
from nmt.training.state import dropout_seed


@dataclass(frozen=True)
class Portion:
    """The update at `position`: its batches over all ranks, this rank's part as tensors, and the following position."""

    batches: list[Rows]
    position: Position
    following: Position
    work: list[Work] = field(default_factory=list)


class Feed:
    """Portions of the training pairs, in the order of the plan."""

    def __init__(self, recipe: Recipe, data: Prepared, ranks: Ranks) -> None:
        self.seed, self.data, self.ranks = recipe.seed, data, ranks
        batch, subwords = recipe.batch, data.subwords
        assert batch.max_tokens != "auto", "resolve the recipe first"
        self.longest = recipe.data.max_len + 1  # with EOS
        max_len = min(self.longest, batch.max_tokens) - 1
        samples = batch.bpe_dropout or batch.unigram_alpha
        self.resampled = Resampled(data.train, subwords, batch, seed=recipe.seed, most=max_len) if samples else None
        lengths = self.resampled or data.train
        options = batch.model_dump(include={"max_tokens", "per_update", "pool", "packed", "tokens_per_update"})
        mixture = mixture_of(recipe.data, data.sizes)
        self.plan = Plan(lengths.src_len, lengths.trg_len, seed=recipe.seed, mixture=mixture, **options)
        noise, sizes = recipe.regularize.noise, enumerate(data.sizes)
        corpora = [(*recipe.data.languages_of(i), size) for i, size in sizes] if noise.shares() else []
        self.noise = Noise(noise, subwords, corpora, seed=recipe.seed, most=max_len) if corpora else None

    def begin(self, start: Position) -> Iterator[Portion]:
        """The portions from a position on, without end."""
        updates = pairwise(self.plan.updates_from(start))
        portions = (Portion(batches, position, following) for (position, batches), (following, _) in updates)
        return read_ahead(self._make, portions)

    def n_gold(self, portion: Portion) -> int:
        """Target tokens of the whole update, over all ranks."""
        if self.resampled is None and self.noise is None:
            # Every rank knows every length, so the divisor needs no communication.
            return self.plan.n_gold(portion.batches)
        # Resampling and noise change lengths, which only the rank that made the batch knows.
        return sum(self.ranks.all_gather(sum(item.batch.n_gold for item in portion.work if item.counts)))

    def batch(self, rows: Rows) -> Batch:
        """The batch that training makes of these pairs in the first epoch."""
        return self._batch(*self._texts(rows, epoch=0))

    def _make(self, portion: Portion) -> Portion:
        """Add the tensors of this rank to a portion."""
        position = portion.position
        for (index, rows), counts in self.ranks.share(list(enumerate(portion.batches))):
            seed = dropout_seed(self.seed, position, index)
            src, trg = self._texts(rows, position.epoch)
            for chosen, part_counts in self._parts(src, trg, rows):
                batch = self._batch(src.some(chosen), trg.some(chosen))
                portion.work.append(Work(batch, counts and part_counts, seed))
                seed = dropout_seed(seed, position, index)  # of the second part
        return portion

    def _texts(self, rows: Rows, epoch: int) -> tuple[Ragged, Ragged]:
        """Source and target of pairs in an epoch, resampled and with noise as the recipe says."""
        src, trg = self.data.train.picked(rows)
        if self.resampled is not None:
            src, trg = self.resampled.cut(src, trg, rows, epoch)
        return (src, trg) if self.noise is None else self.noise(src, trg, rows, epoch)

    def _parts(self, src: Ragged, trg: Ragged, rows: Rows) -> list[tuple[NDArray[np.bool_], bool]]:
        """Masks of the pairs of a batch: of one part, or of two if noise made pairs longer than the longest was. Then
        the other pairs need no padding to that length. Each part comes with whether it counts: all ranks need the same
        number of parts, so a rank may repeat a pair that does not count."""
        src_len, trg_len = self.plan.lengths(rows)
        grown = (src.lengths >= src_len.max()) | (trg.lengths >= trg_len.max())  # planned lengths include EOS
        parts = [(mask, True) for mask in (~grown, grown) if mask.any()]
        if len(parts) == 1 and self.noise is not None and self.ranks.world_size > 1:
            parts.append((np.arange(len(rows)) == 0, False))
        return parts

    def _batch(self, src: Ragged, trg: Ragged) -> Batch:
        if self.plan.packed:
            return make_packed(src, trg, self.plan.max_tokens, self.plan.most_packed, self.longest)
        return make_batch(src, trg, self.plan.padded)
