"""Where words begin in ids, as far as the pieces tell, without a look at the text."""

import numpy as np
from numpy.typing import NDArray

from nmt.data.stored.corpus import Ids
from nmt.data.vocabulary.letters import LETTER, kind_of
from nmt.data.vocabulary.subwords import N_SPECIAL, Codec

# What a piece has bits of: whether it begins a word, its first kind of character, and its last one or that a word ends.
_BEGINS, _FIRST, _ENDS, _KINDS = 0x80, 3, 0x40, 0x07


class WordStarts:
    """What pieces tell of the words that `in_words` cuts a text into.

    Symbols, placeholders and tags are words. A piece with a space before it begins one, in white space too, and so does
    one that goes on with another kind of character. Words that nothing tells apart are taken for one: no piece reaches
    over a beginning.
    """

    def __init__(self, codec: Codec) -> None:
        plain = range(N_SPECIAL, N_SPECIAL + len(codec.plain_vocab()))
        self.is_symbol = np.zeros(codec.size, dtype=bool)
        self.is_symbol[plain.stop :] = True
        self.is_letters = np.zeros(codec.size, dtype=bool)  # nothing but easy letters, and a space before them
        self._bits = np.where(self.is_symbol, _BEGINS | _ENDS, 0).astype(np.uint8)
        for i in plain:
            raw = codec.raw([i])[0]
            if raw.startswith(b" "):
                self._bits[i] = _BEGINS
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError:  # it begins or ends within a character
                continue
            letters = text.removeprefix(" ")
            self.is_letters[i] = bool(letters) and all(kind_of(one) == LETTER for one in letters)
            self._bits[i] |= kind_of(text[0]) << _FIRST
            if text[-1] != "'":  # which belongs to some of the letters that may follow it, as in "it's"
                self._bits[i] |= kind_of(text[-1])

    def __call__(self, ids: Ids, n_id: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Whether a word begins at each id of some sequences. n_id: of each sequence."""
        bits = self._bits.take(ids)
        begins = bits >= _BEGINS
        last, first = bits[:-1] & _KINDS, (bits[1:] >> np.uint8(_FIRST)) & _KINDS
        begins[1:] |= (bits[:-1] & _ENDS) != 0
        begins[1:] |= (last != first) & (last != 0) & (first != 0)
        begins[(np.cumsum(n_id) - n_id)[n_id > 0]] = True
        return begins
