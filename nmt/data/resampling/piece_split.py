"""Subword regularisation: pieces fall apart into what they were merged from, differently each time a pair is read.

Like BPE-dropout (Provilkov, Emelianenko, Voita 2020) it shows a model the parts of a word it has learned whole, and so
how to read and spell rare ones. Merges are taken back after the encoding instead of left out in it, so that ids are
enough: no text is stored or encoded again, a batch costs milliseconds, and the draws are those of a seed.
"""

import numpy as np

from nmt.data.arrays.ragged import Ragged
from nmt.data.vocabulary.subwords import Codec


class Splitter:
    """Splits each piece with probability `rate`, and then each of its two parts, as far down as it goes."""

    def __init__(self, codec: Codec, rate: float) -> None:
        self.rate = rate
        self.left, self.right = codec.parts()

    def __call__(self, rows: Ragged, rng: np.random.Generator) -> Ragged:
        """Ids of texts, without BOS and EOS -> of the same texts, as many or more."""
        ids, lengths = rows.values.astype(np.int64), rows.lengths.astype(np.int64)
        of_row = np.repeat(np.arange(len(lengths)), lengths)
        unasked = np.ones(len(ids), dtype=bool)  # each piece is asked once
        while True:
            splits = unasked & (self.left[ids] >= 0)
            splits &= rng.random(len(ids)) < self.rate
            if not splits.any():
                break
            n_part = 1 + splits
            first = np.cumsum(n_part) - n_part
            parts = np.repeat(ids, n_part)
            parts[first[splits]] = self.left[ids[splits]]
            parts[first[splits] + 1] = self.right[ids[splits]]
            ids, of_row, unasked = parts, np.repeat(of_row, n_part), np.repeat(splits, n_part)
        return Ragged(ids, np.bincount(of_row, minlength=len(lengths)))
