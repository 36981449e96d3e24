"""How long texts usually become when their words are cut anew: what batches are planned by."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nmt.data.corpus import Ids
from nmt.data.resample import Resampler
from nmt.data.subwords import N_SPECIAL, Codec
from nmt.data.ways import N_WAY

_N_FREQUENT = 2000  # pieces, the first ones, of which all ways are looked at
_N_WAY_OF_RARE = 4


class Growth:
    """How many ids a text becomes, from how many its words have become on the average.

    Of a piece that is a word its ways tell; a word of several pieces becomes what those would, times a factor that is
    measured, since its borders move.
    """

    def __init__(self, codec: Codec, resampler: Resampler, sample: Sequence[Ids]) -> None:
        """sample: of the texts that will be asked for."""
        self._resampler = resampler
        usual = np.ones(codec.size)
        pieces = np.array(
            [piece for piece in range(N_SPECIAL, N_SPECIAL + len(codec.plain_vocab())) if _is_text(codec, piece)]
        )
        frequent = pieces < N_SPECIAL + _N_FREQUENT
        for some, n_way in ((pieces[frequent], N_WAY), (pieces[~frequent], _N_WAY_OF_RARE)):
            if len(some):
                usual[some] = resampler.usual(some, n_way)
        ids, n_id = np.concatenate(sample), np.array(list(map(len, sample)))
        words = np.split(ids, np.flatnonzero(resampler.begins(ids, n_id))[1:])
        words = [word for word in words if len(word) > 1]
        factor = 1.0
        if words:
            factor = sum(map(len, resampler(words, np.arange(len(words)), 0))) / usual[np.concatenate(words)].sum()
        # Of a piece that is part of a word, then of one that is a word.
        self._usual, self._n_piece = np.concatenate([usual * factor, usual]), codec.size

    def lengths(self, ids: Ids, n_id: NDArray[np.integer]) -> NDArray[np.float64]:
        """How many ids each of some texts usually becomes, no fewer than it has.

        ids: of all, end to end. n_id: of each.
        """
        ids = ids.astype(np.intp)
        begins = self._resampler.begins(ids, n_id)
        is_whole = begins & np.append(begins[1:], True)
        sums = np.append(0.0, np.cumsum(self._usual[ids + is_whole * self._n_piece]))
        ends = np.cumsum(n_id, dtype=np.int64)
        becomes: NDArray[np.float64] = np.maximum(sums[ends] - sums[ends - n_id], n_id)
        return becomes


def _is_text(codec: Codec, piece: int) -> bool:
    """Not so of a piece that ends within a character."""
    try:
        codec.raw([piece])[0].decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
