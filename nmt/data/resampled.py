"""Pairs whose words are cut anew, within the batches that the plan has made of them.

Pairs get longer by it, and the plan knows only the stored lengths. So batches are planned with that much less of the
budget as nearly all pairs grow, which is measured on a few; or, where sentences are packed end to end, as many of them
together grow. Of a batch that would be larger than the budget all the same, some sentences stay as they are stored:
those that are too long, or, of packed ones, those that grow most. What memory has to hold is never more than
batch.max_tokens says, on any number of ranks.
"""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from nmt.data.batches import Change
from nmt.data.corpus import Corpus, Ids
from nmt.data.mixture import Rows
from nmt.data.resample import Resampler, with_dropout, with_probabilities
from nmt.data.subwords import Codec, Subwords

_N_MEASURED = 400
_SHARE = 0.95  # of the measured pairs that the room suffices for


class Resampled:
    """How training pairs are cut anew, in each epoch in another way."""

    def __init__(self, subwords: Subwords, *, bpe_dropout: float, unigram_alpha: float, seed: int) -> None:
        def resampler(codec: Codec) -> Resampler:
            return with_dropout(codec, bpe_dropout) if bpe_dropout else with_probabilities(codec, unigram_alpha)

        self._src = resampler(subwords.src)
        self._trg = self._src if subwords.joint else resampler(subwords.trg)
        self._seed = seed

    def planned(self, corpus: Corpus, max_tokens: int, *, packed: bool = False) -> int:
        """The budget to plan batches of stored lengths with, so that they keep to max_tokens when cut anew."""
        rows = np.unique(np.linspace(0, corpus.n_pair - 1, _N_MEASURED).astype(np.int64))
        stored = corpus.pairs(rows)
        new = self._cut(*stored, rows, 0)
        if packed:
            return max(1, int(max_tokens / max(map(partial(_growth_of_many, max_tokens), stored, new))))
        before, after = _longest(*stored), _longest(*new)
        growth = np.quantile(after / before, _SHARE)
        return max(1, int(max_tokens / growth))

    def change(self, rows: Rows, epoch: int, max_tokens: int) -> Change:
        """What to do to the ids of some pairs: cut them anew where the batch keeps to max_tokens."""
        most = max_tokens // len(rows)

        def cut(src: list[Ids], trg: list[Ids]) -> tuple[list[Ids], list[Ids]]:
            new_src, new_trg = self._cut(src, trg, rows, epoch)
            return _within(most, new_src, src), _within(most, new_trg, trg)

        return cut

    def packed_change(self, rows: Rows, epoch: int, n_place: int, longest: int) -> Change:
        """The same for pairs that are packed into rows of n_place, where none may be over `longest` with its end."""

        def cut(src: list[Ids], trg: list[Ids]) -> tuple[list[Ids], list[Ids]]:
            new_src, new_trg = (
                _within(longest, new, stored)
                for new, stored in zip(self._cut(src, trg, rows, epoch), (src, trg), strict=True)
            )
            return _fitting(n_place, new_src, src), _fitting(n_place, new_trg, trg)

        return cut

    def _cut(self, src: list[Ids], trg: list[Ids], rows: Rows, epoch: int) -> tuple[list[Ids], list[Ids]]:
        seeds = np.random.SeedSequence([self._seed, epoch]).generate_state(2, np.uint64).tolist()
        return self._src(src, rows, seeds[0]), self._trg(trg, rows, seeds[1])


def _longest(src: list[Ids], trg: list[Ids]) -> NDArray[np.int64]:
    """The longer side of each pair, with its end."""
    return np.array([max(len(a), len(b)) + 1 for a, b in zip(src, trg, strict=True)])


def _growth_of_many(n_place: int, stored: list[Ids], new: list[Ids]) -> float:
    """By how much so many sentences as fill n_place grow together, or, twice in a hundred times, by more."""
    before, after = (np.array([len(ids) + 1 for ids in side]) for side in (stored, new))
    growth = after.sum() / before.sum()
    n_sentence = max(1.0, n_place / after.mean())
    spread = np.std(after - growth * before) / after.mean() / n_sentence**0.5
    return float(growth * (1 + 2 * spread))


def _fitting(n_place: int, new: list[Ids], stored: list[Ids]) -> list[Ids]:
    """The new ones, but the stored ones of those that grow most, until all of them fit n_place with their ends."""
    growth = np.array([len(a) - len(b) for a, b in zip(new, stored, strict=True)])
    too_many = sum(map(len, new)) + len(new) - n_place
    if too_many <= 0:
        return new
    most_first = np.argsort(-growth, kind="stable")
    back = set(most_first[: int(np.searchsorted(np.cumsum(growth[most_first]), too_many)) + 1].tolist())
    return [b if n in back else a for n, (a, b) in enumerate(zip(new, stored, strict=True))]


def _within(most: int, new: list[Ids], stored: list[Ids]) -> list[Ids]:
    """The new ones, but the stored ones where those are longer than `most` with their end."""
    return [a if len(a) < most else b for a, b in zip(new, stored, strict=True)]
