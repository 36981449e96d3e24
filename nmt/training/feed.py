"""What an update is made of: this rank's batches, made a little ahead of their use.

The feed owns no position: it is told where to begin, so reading ahead cannot make a checkpoint wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nmt.data.batches import Batch, Change, make_batch, make_packed, read_ahead
from nmt.data.corpus import Prepared
from nmt.data.mixture import Rows, mixture_of
from nmt.data.plan import Plan, Position
from nmt.data.resampled import Resampled
from nmt.data.split import Splitter
from nmt.recipe.options import Recipe
from nmt.training.memory import Work
from nmt.training.parallel import Ranks
from nmt.training.state import dropout_seed


@dataclass(frozen=True)
class Portion:
    """This rank's part of the update at `position`, and the position after it."""

    work: list[Work]
    position: Position
    following: Position


class Feed:
    """Portions of the training pairs, in the order of the plan."""

    def __init__(self, recipe: Recipe, data: Prepared, ranks: Ranks) -> None:
        self.seed, self.corpus, self.ranks = recipe.seed, data.train, ranks
        assert recipe.batch.max_tokens != "auto", "resolve the recipe first"
        batch, subwords = recipe.batch, data.subwords
        self.resampled: Resampled | None = None
        self.max_tokens = planned = recipe.batch.max_tokens
        if batch.bpe_dropout or batch.unigram_alpha:
            self.resampled = Resampled(
                subwords, bpe_dropout=batch.bpe_dropout, unigram_alpha=batch.unigram_alpha, seed=recipe.seed
            )
            planned = self.resampled.planned(data.train, self.max_tokens, packed=batch.packed)
        self.plan = Plan(
            data.train.src_len,
            data.train.trg_len,
            seed=recipe.seed,
            max_tokens=planned,
            per_update=recipe.batch.per_update,
            pool=recipe.batch.pool,
            packed=recipe.batch.packed,
            tokens_per_update=recipe.batch.tokens_per_update,
            mixture=mixture_of(recipe.data, data.sizes),
        )
        self.longest = recipe.data.max_len + 1  # with EOS
        rate = batch.split_rate
        self.splitters = (Splitter(subwords.src, rate), Splitter(subwords.trg, rate)) if rate else None

    def begin(self, position: Position) -> Iterator[Portion]:
        """The portions from a position on, for ever."""

        def todo() -> Iterator[tuple[list[Rows], Position, Position]]:
            following = position
            while True:
                here = following
                update, following = self.plan.at(here)
                yield update, here, following

        return read_ahead(lambda item: self._make(*item), todo())

    def n_gold(self, portion: Portion) -> int:
        """Target tokens of the whole update, over all ranks."""
        if self.splitters is None and self.resampled is None:
            # Every rank knows every length, so the divisor needs no communication.
            return self.plan.n_gold(self.plan.at(portion.position)[0])
        # What was cut anew is known only where the batch was made.
        return int(self.ranks.sum(sum(item.batch.n_gold for item in portion.work if item.counts))[0])

    def _make(self, update: list[Rows], position: Position, following: Position) -> Portion:
        work, layer_seed = [], dropout_seed(self.seed, position)
        for (index, rows), counts in self.ranks.share(list(enumerate(update))):
            # The index counts over all ranks, so the masks do not depend on how many there are.
            seed = dropout_seed(self.seed, position, index)
            work.append(Work(self.batch(rows, seed, position.epoch), counts, seed, layer_seed))
        return Portion(work, position, following)

    def batch(self, rows: Rows, seed: int, epoch: int = 0) -> Batch:
        """Some pairs as the batch that training makes of them in an epoch. seed: of what is drawn for it."""
        change = self._change(rows, seed, epoch)
        if self.plan.packed:
            return make_packed(self.corpus, rows, self.max_tokens, self.plan.most_packed, self.longest, change)
        return make_batch(self.corpus, rows, change)

    def _change(self, rows: Rows, seed: int, epoch: int) -> Change | None:
        """How a batch cuts its words anew or splits its subwords, if they are to be."""
        if self.resampled is not None:
            if self.plan.packed:
                return self.resampled.packed_change(rows, epoch, self.max_tokens, self.longest)
            return self.resampled.change(rows, epoch, self.max_tokens)
        if self.splitters is None:
            return None
        split_src, split_trg = self.splitters
        rng = np.random.default_rng(seed)
        return lambda src, trg: (split_src(src, rng), split_trg(trg, rng))
