"""Which target subwords a source subword is translated by, and how often: IBM model 1, counted over the training pairs.

P. Brown et al. 1993, "The mathematics of statistical machine translation", section 4.4: two passes of its EM, since
more of them forget what is rare. A sentence is the set of its subwords, and EOS stands for the empty word.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays.chance import Ints
from nmt.data.vocabulary.subwords import EOS
from nmt.progress import Bar

if TYPE_CHECKING:  # translation reads the table, and no corpus
    from nmt.data.stored.corpus import Corpus

MAX_MEETINGS = 40_000_000  # of a source and a target subword in a pair: rare words gain by more, time and memory lose
N_KEPT = 64  # translations of a source subword
# A share of one. Shares are whole numbers, so their sum is the same in any order.
UNIT = 1 << 20
_AT_ONCE = 2_000_000
_N_BIT = 21  # of a subword, and of a share


class TranslationTable(NamedTuple):
    """What `translation_table` found.

    trg, share: (n_src, N_KEPT) the target subwords that a source subword is translated by most often, and how often, of
    UNIT times; 0 where there are no more. frequent: (n_trg,) all target subwords, the most frequent first.
    """

    trg: NDArray[np.int32]
    share: NDArray[np.int32]
    frequent: NDArray[np.int32]


class _Meetings(NamedTuple):
    """Each source subword of some pairs with each target subword of its pair.

    pair: (E,) source · n_trg + target, those of one target subword of one pair together; begin: where those begin.
    """

    pair: Ints
    begin: Ints

    @property
    def n_of(self) -> Ints:
        """How many source subwords there are for each target subword of each pair."""
        return np.diff(self.begin, append=len(self.pair))


class _Counts(NamedTuple):
    """How often pairs of subwords translate each other: their numbers, ascending, and the expected count of each."""

    pair: Ints
    weight: NDArray[np.float64]

    def shares(self, n_src: int, n_trg: int) -> NDArray[np.float64]:
        """Each count over all of its source subword."""
        src = self.pair // n_trg
        every = np.bincount(src, self.weight, minlength=n_src)
        shares: NDArray[np.float64] = self.weight / every[src]
        return shares


def translation_table(
    corpus: "Corpus", n_src: int, n_trg: int, *, joint: bool, n_meeting: int = MAX_MEETINGS, quiet: bool = True
) -> TranslationTable:
    """The table of a corpus, of pairs evenly spread over it where it has more than about n_meeting meetings.

    joint: both sides share their ids; a subword is then its own translation once more, so that what was never seen is
    copied. Unless quiet, stderr has a progress bar.
    """
    assert max(n_src, n_trg) < 1 << _N_BIT
    usual = float(((corpus.src_len[:10_000] + 1.0) * corpus.trg_len[:10_000]).mean())
    n_pair = max(1, min(corpus.n_pair, int(n_meeting / max(usual, 1.0))))
    rows = np.arange(n_pair) * corpus.n_pair // n_pair
    parts = np.array_split(rows, max(1, int(n_pair * usual / _AT_ONCE)))

    def meetings() -> Iterator[_Meetings]:
        for some in parts:
            yield _meetings(*corpus.pairs(some), n_src, n_trg)
            bar.update()

    with Bar(total=2 * len(parts), desc="translations of subwords", leave=False, disable=quiet) as bar:
        first = _merged([_summed(some, 1.0 / np.repeat(some.n_of, some.n_of)) for some in meetings()])
        share = first.shares(n_src, n_trg)
        counts = _merged([_summed(some, _expected(some, first.pair, share)) for some in meetings()])
    frequent = np.zeros(n_trg, dtype=np.int64)
    for some in parts:
        frequent += np.bincount(np.concatenate(corpus.pairs(some)[1]), minlength=n_trg)
    if joint:
        itself = np.arange(n_src)
        counts = _merged([counts, _Counts(itself * n_trg + itself, np.ones(n_src))])
    order = np.argsort(-frequent, kind="stable").astype(np.int32)
    return TranslationTable(*_best(counts.pair, counts.shares(n_src, n_trg), n_src, n_trg), order)


def _meetings(src: list[Ints], trg: list[Ints], n_src: int, n_trg: int) -> _Meetings:
    of_src, src_ids = _different([np.append(ids, EOS) for ids in src], n_src)
    of_trg, trg_ids = _different(trg, n_trg)
    n_of = np.bincount(of_src, minlength=len(src))
    first = np.cumsum(n_of) - n_of
    n_each = n_of[of_trg]  # source subwords for each target subword
    begin = np.cumsum(n_each) - n_each
    place = np.arange(int(n_each.sum())) + np.repeat(first[of_trg] - begin, n_each)
    return _Meetings(src_ids[place] * n_trg + np.repeat(trg_ids, n_each), begin)


def _different(sentences: list[Ints], n_vocab: int) -> tuple[Ints, Ints]:
    """The sentence of each subword, and the subword, each once in a sentence."""
    sentence = np.repeat(np.arange(len(sentences)), list(map(len, sentences)))
    key = np.unique(sentence * n_vocab + np.concatenate(sentences))
    return key // n_vocab, key % n_vocab


def _expected(some: _Meetings, pair: Ints, share: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much of each target subword each source subword of its pair has translated, by shares of before."""
    weight = share[np.searchsorted(pair, some.pair)]
    expected: NDArray[np.float64] = weight / np.repeat(np.add.reduceat(weight, some.begin), some.n_of)
    return expected


def _summed(some: _Meetings, weight: NDArray[np.float64]) -> _Counts:
    return _merged([_Counts(some.pair, weight)])


def _merged(counts: list[_Counts]) -> _Counts:
    """All counts, those of one pair of subwords added up."""
    pair = np.concatenate([one.pair for one in counts])
    order = np.argsort(pair, kind="stable")
    pair, count = pair[order], np.concatenate([one.weight for one in counts])[order]
    begin = np.flatnonzero(np.append(True, pair[1:] != pair[:-1])[: len(pair)])
    return _Counts(pair[begin], np.add.reduceat(count, begin))


def _best(
    pair: Ints, share: NDArray[np.float64], n_src: int, n_trg: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The N_KEPT largest shares of each source subword, and their target subwords."""
    whole = np.rint(share * UNIT).astype(np.int64)
    # Source, then the larger share, then target, in one number.
    key = (pair // n_trg << _N_BIT | UNIT - whole) << _N_BIT | pair % n_trg
    key.sort()
    src = key >> 2 * _N_BIT
    rank = np.arange(len(key)) - np.searchsorted(src, np.arange(n_src))[src]
    kept = rank < N_KEPT
    src, rank, key = src[kept], rank[kept], key[kept]
    trg, shares = (np.zeros((n_src, N_KEPT), dtype=np.int32) for _ in range(2))
    trg[src, rank] = key & (1 << _N_BIT) - 1
    shares[src, rank] = UNIT - (key >> _N_BIT & (1 << _N_BIT) - 1)
    return trg, shares
