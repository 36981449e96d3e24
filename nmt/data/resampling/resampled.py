"""Pairs whose words are cut anew in each epoch, and the lengths that they get by it.

Pairs get longer, and batches are planned by the lengths that they usually get (`growth.py`). None becomes longer than
that, so a batch never has more than batch.max_tokens, on any number of ranks.
"""

from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays.chance import STEP, mixed
from nmt.data.arrays.ragged import Ragged
from nmt.data.batching.mixture import Rows
from nmt.data.resampling.growth import Growth
from nmt.data.resampling.resample import Resampler, with_dropout, with_probabilities
from nmt.data.stored.corpus import Corpus
from nmt.data.vocabulary.subwords import Codec, Subwords
from nmt.processes import n_core
from nmt.progress import Bar

_N_MEASURED = 1000  # pairs
_MOST_THREADS = 4
_N_AT_ONCE = 100_000  # ids of a side, or some more: operations on arrays that stay in the processor's cache
_N_MET = 5  # so many times that are read for their words alone


class Resampled:
    """How the pairs of a corpus are cut anew, in each epoch in another way."""

    def __init__(
        self,
        corpus: Corpus,
        subwords: Subwords,
        *,
        bpe_dropout: float,
        unigram_alpha: float,
        seed: int,
        most: int,
        quiet: bool = False,
    ) -> None:
        """most: ids of a side, which none grows over. quiet: no bar, since another process shows it."""

        def resampler(codec: Codec) -> Resampler:
            return with_dropout(codec, bpe_dropout) if bpe_dropout else with_probabilities(codec, unigram_alpha)

        self._src = resampler(subwords.src)
        self._trg = self._src if subwords.joint else resampler(subwords.trg)
        self._seed = seed
        self._n_at_once = 1 + int(_N_AT_ONCE / (1 + corpus.src_len.mean()))  # pairs
        # In subwords, as those of the corpus, that all pairs will have.
        self.src_len, self.trg_len = self._lengths(corpus, subwords, most, quiet)
        # While the model is made, when cores are idle: in the first epoch it would be beside the training.
        thread = ThreadPoolExecutor(1, thread_name_prefix="meet-words")
        self._met = thread.submit(self._meet, corpus)
        thread.shutdown(wait=False)

    def cut(self, src: Ragged, trg: Ragged, rows: Rows, epoch: int) -> tuple[Ragged, Ragged]:
        """The ids of some pairs as they are in an epoch. rows: their numbers."""
        self._met.result()
        seeds = self._seeds(epoch)
        src_len, trg_len = (lengths[rows].astype(np.int64) for lengths in (self.src_len, self.trg_len))
        return self._src(src, rows, seeds[0], src_len), self._trg(trg, rows, seeds[1], trg_len)

    def _lengths(
        self, corpus: Corpus, subwords: Subwords, most: int, quiet: bool
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        sample = corpus.picked(np.unique(np.linspace(0, corpus.n_pair - 1, _N_MEASURED).astype(np.int64)))
        sides = ((subwords.src, self._src, sample[0]), (subwords.trg, self._trg, sample[1]))
        growths = [Growth(codec, resampler, some) for codec, resampler, some in sides]
        seeds = self._seeds()
        lengths = [np.empty(corpus.n_pair, dtype=np.int32) for _ in sides]

        def tell(start: int) -> None:
            stop = min(start + self._n_at_once, corpus.n_pair)
            for rows, growth, all_lengths, seed in zip(corpus.rows(start, stop), growths, lengths, seeds, strict=True):
                chance = mixed(np.arange(start, stop, dtype=np.uint64) * np.uint64(STEP) + np.uint64(seed))
                usual = growth.lengths(rows)
                # Up or down by chance, so that many pairs together grow as they should.
                whole = np.floor(usual + (chance >> np.uint64(11)) * 2.0**-53).astype(np.int32)
                all_lengths[start:stop] = np.clip(whole, rows.lengths, np.maximum(most, rows.lengths))

        parts = range(0, corpus.n_pair, self._n_at_once)
        threads = ThreadPoolExecutor(min(_MOST_THREADS, n_core()))
        try:
            told = threads.map(tell, parts)
            unit = f" x {self._n_at_once} pairs"
            deque(Bar(told, desc="lengths", total=len(parts), unit=unit, disable=quiet, leave=False), maxlen=0)
        finally:
            threads.shutdown(cancel_futures=True)
        return lengths[0], lengths[1]

    def _meet(self, corpus: Corpus) -> None:
        """Draw the ways of the words of some pairs: of all there are in a small corpus, else of most that are met."""
        starts = range(0, corpus.n_pair, self._n_at_once)
        for at in np.unique(np.linspace(0, len(starts) - 1, _N_MET).astype(int)).tolist():
            sides = corpus.rows(starts[at], min(starts[at] + self._n_at_once, corpus.n_pair))
            for rows, resampler in zip(sides, (self._src, self._trg), strict=True):
                resampler.meet(rows)

    def _seeds(self, *epoch: int) -> list[int]:
        return [int(seed) for seed in np.random.SeedSequence([self._seed, *epoch]).generate_state(2, np.uint64)]
