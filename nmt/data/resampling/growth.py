"""How long texts usually become when their words are cut anew: what batches are planned by."""

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays.ragged import Ragged
from nmt.data.resampling.resample import Resampler
from nmt.data.vocabulary.subwords import N_SPECIAL, Codec


class Growth:
    """How many ids a text becomes, from how many its words have become on the average.

    Of a piece that is a word its ways tell; a word of several pieces becomes what those would, times a factor that is
    measured, since its borders move.
    """

    def __init__(self, codec: Codec, resampler: Resampler, sample: Ragged) -> None:
        """sample: of the texts that will be asked for."""
        self._resampler = resampler
        usual = np.ones(codec.size)
        pieces = np.array(
            [piece for piece in range(N_SPECIAL, N_SPECIAL + len(codec.plain_vocab())) if _is_text(codec, piece)]
        )
        usual[pieces] = resampler.usual(pieces)
        begins = np.flatnonzero(resampler.begins(sample.values, sample.lengths))
        words = Ragged(sample.values, np.diff(begins, append=len(sample.values)))
        words = words.some(words.lengths > 1)
        factor = 1.0
        if n_word := len(words.lengths):
            factor = len(resampler(words, np.arange(n_word), 0).values) / usual[words.values].sum()
        # Of a piece that is part of a word, then of one that is a word.
        self._usual, self._n_piece = np.concatenate([usual * factor, usual]), codec.size

    def lengths(self, rows: Ragged) -> NDArray[np.float64]:
        """How many ids each of some texts usually becomes, no fewer than it has."""
        ids, n_id = rows.values.astype(np.intp), rows.lengths.astype(np.int64)
        begins = self._resampler.begins(ids, n_id)
        is_whole = begins & np.append(begins[1:], True)
        becomes = np.zeros(len(n_id))
        some = n_id > 0
        becomes[some] = np.add.reduceat(
            self._usual.take(ids + is_whole * self._n_piece), (np.cumsum(n_id) - n_id)[some]
        )
        grown: NDArray[np.float64] = np.maximum(becomes, n_id)
        return grown


def _is_text(codec: Codec, piece: int) -> bool:
    """Whether a piece is text by itself: one that ends within a character is not."""
    try:
        codec.raw([piece])[0].decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
