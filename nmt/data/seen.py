"""Which pairs came before: exactly, nearly, or too often with another translation.

Held for each pair and each kind that is asked for: a hash of 64 bits in a table that is at most two thirds full, so 12
bytes; counting translations takes two such tables with 2 more bytes a place, 30 bytes. Of 100 million different pairs
one is taken for another with a probability of 1 in 3,700.
"""

import hashlib
import re
import unicodedata
from array import array
from collections.abc import Sequence

from nmt.recipe.filter_options import FilterConfig

DUPLICATE = "duplicate"
NEAR_DUPLICATE = "near duplicate"
TRANSLATIONS = "many translations"

_DIGIT = re.compile(r"\d")
_NO_WORD = re.compile(r"[\W_]+")
_MOST_COUNTED = (1 << 16) - 1


class Tally:
    """How often each key was counted: a hash table with open addressing in two plain arrays."""

    def __init__(self, n_expected: int, *, counts: bool = True) -> None:
        """n_expected: keys that are likely; with more the table grows. counts=False: once is all that is known."""
        self._n_key = 0
        self._keys = array("Q", [0]) * (n_expected * 3 // 2 + 8)
        self._counts = array("H", [0]) * len(self._keys) if counts else None

    def count(self, key: int) -> int:
        """How often a key of 64 bits, not 0, was counted before; without counts 1 stands for once or more."""
        place = self._place(key)
        if not self._keys[place]:
            if 3 * self._n_key >= 2 * len(self._keys):
                self._grow()
                place = self._place(key)
            self._keys[place] = key
            self._n_key += 1
            before = 0
        else:
            before = 1 if self._counts is None else self._counts[place]
        if self._counts is not None and before < _MOST_COUNTED:
            self._counts[place] = before + 1
        return before

    def times(self, key: int) -> int:
        """How often a key was counted; nothing is counted by asking."""
        place = self._place(key)
        if not self._keys[place]:
            return 0
        return 1 if self._counts is None else self._counts[place]

    @property
    def n_byte(self) -> int:
        """Bytes of memory held."""
        arrays = [self._keys] if self._counts is None else [self._keys, self._counts]
        return sum(len(each) * each.itemsize for each in arrays)

    def _place(self, key: int) -> int:
        keys, place = self._keys, key % len(self._keys)
        while keys[place] and keys[place] != key:
            place = place + 1 if place + 1 < len(keys) else 0
        return place

    def _grow(self) -> None:
        keys, counts = self._keys, self._counts
        self._keys = array("Q", [0]) * (2 * len(keys))
        self._counts = None if counts is None else array("H", [0]) * (2 * len(keys))
        for n, key in enumerate(keys):
            if key:
                place = self._place(key)
                self._keys[place] = key
                if counts is not None and self._counts is not None:
                    self._counts[place] = counts[n]


class Seen:
    """Remembers the pairs that were kept, and tells those that need not be kept again."""

    def __init__(self, config: FilterConfig, n_pair: int, others: Sequence[FilterConfig] = ()) -> None:
        """n_pair: how many pairs there will be at most; others: the filters of corpora that have their own.

        What one of them asks for is remembered of the pairs of all.
        """
        self._config, every = config, (config, *others)
        self._exact = Tally(n_pair, counts=False) if any(one.drop_duplicates for one in every) else None
        self._near = Tally(n_pair, counts=False) if any(one.drop_near_duplicates for one in every) else None
        counts = any(one.max_translations for one in every)
        self._src = Tally(n_pair) if counts else None
        self._trg = Tally(n_pair) if counts else None

    def reason_to_drop(self, src: str, trg: str, own: FilterConfig | None = None) -> str | None:
        """Why a pair is not for training after those before it. One that is, is remembered.

        own: the filters of its corpus, one of the others.
        """
        config = own or self._config
        again = self._exact is not None and self._exact.count(hash_of(f"{src}\n{trg}"))
        if again and config.drop_duplicates:
            return DUPLICATE
        again = self._near is not None and self._near.count(hash_of(f"{skeleton(src)}\n{skeleton(trg)}"))
        if again and config.drop_near_duplicates:
            return NEAR_DUPLICATE
        if self._src is not None and self._trg is not None:
            key_src, key_trg = hash_of(src), hash_of(trg)
            n_before, most = max(self._src.times(key_src), self._trg.times(key_trg)), config.max_translations
            if most and n_before >= min(most, _MOST_COUNTED):
                return TRANSLATIONS
            self._src.count(key_src)
            self._trg.count(key_trg)
        return None


def hash_of(text: str) -> int:
    """64 bits that depend on the text alone, not on the process; never 0."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "little") or 1


def skeleton(text: str) -> str:
    """What near duplicates have in common: NFKC, case folded, every digit 0, no white space, punctuation and symbols.

    Vowel signs and other marks stay, which tell words apart in many scripts. Where nothing else would be left, so do
    punctuation and symbols.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    digits_alike = _DIGIT.sub("0", folded)
    return _NO_WORD.sub("" if folded.isascii() else _marks, digits_alike) or folded.strip()


def _marks(found: re.Match[str]) -> str:
    return "".join(character for character in found.group() if unicodedata.category(character)[0] == "M")
