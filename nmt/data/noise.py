"""Pairs as careless writers would have them: in capitals, in Title Case, in small letters, without an end, mistyped.

Which pairs, and how, follows from (seed, epoch, pair) and on nothing else, so resuming is exact and any number of ranks
gives the same. The text of the few pairs that are changed is made of their ids and encoded again.
"""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays import STEP, Numbers, Ragged, mixed
from nmt.data.plan import Rows
from nmt.data.subwords import Codec, Subwords
from nmt.recipe.training_options import NoiseConfig

Ids = NDArray[Any]

_END = re.compile(r"\s*[.!?…。！？｡।॥؟۔։።]+$")
_WORD = re.compile(r"\w+")
_MISTYPED = re.compile(r"[^\W\d_]{4,}")  # a shorter word would often become another
_TURKIC = ("tr", "tur", "az", "aze")  # whose capital of i has a dot
_ONE_TYPO_IN = 60  # characters, or one in a shorter text


class Noise:
    """Changes some pairs, each epoch others."""

    def __init__(
        self, config: NoiseConfig, subwords: Subwords, langs: tuple[str, str], *, seed: int, most: int
    ) -> None:
        """langs: of both sides. most: subwords of a side; a pair that would have more stays as it is."""
        self._subwords, self._seed, self._most = subwords, seed, most
        shares = config.shares()
        self._kinds, self._ends = list(shares), np.cumsum(list(shares.values()))
        self._dotted = [re.split("[-_]", lang.lower())[0] in _TURKIC for lang in langs]

    def __call__(self, src: Ragged, trg: Ragged, rows: Rows, epoch: int) -> tuple[Ragged, Ragged]:
        """The ids of some pairs as they are in an epoch. rows: their numbers."""
        (seed,) = np.random.SeedSequence([self._seed, epoch, len(self._kinds)]).generate_state(1, np.uint64)
        chance = mixed(rows.astype(np.uint64) * np.uint64(STEP) + seed)
        kind = np.searchsorted(self._ends, (chance >> np.uint64(11)) * 2.0**-53, side="right")
        changed = np.flatnonzero(kind < len(self._kinds))
        if not len(changed):
            return src, trg
        sides = src.rows(), trg.rows()
        for place, own in zip(changed.tolist(), mixed(chance[changed]), strict=True):
            texts = self._changed(self._kinds[kind[place]], [side[place] for side in sides], own)
            for side, ids in zip(sides, texts, strict=True):
                side[place] = ids
        return _ragged(sides[0], src), _ragged(sides[1], trg)

    def _changed(self, kind: str, pair: list[Ids], chance: np.uint64) -> list[Ids]:
        """The ids of both sides of a pair with one kind of noise; as they were where that is not possible."""
        codecs = self._subwords.src, self._subwords.trg
        if any(_has_symbol(codec, ids) for codec, ids in zip(codecs, pair, strict=True)):
            return pair
        src, trg = texts = [codec.decode(ids.tolist()) for codec, ids in zip(codecs, pair, strict=True)]
        if kind == "upper":
            src = in_capitals(src, dotted=self._dotted[0])
            trg = in_capitals(trg, dotted=self._dotted[1]) if src != texts[0] else trg
        elif kind == "title":
            src = _WORD.sub(lambda word: in_capitals(word[0][0], dotted=self._dotted[0]) + word[0][1:], src)
        elif kind == "lower":
            src = (src.replace("İ", "i").replace("I", "ı") if self._dotted[0] else src).lower()
        elif kind == "no_end":
            src, trg = (_END.sub("", text) or text for text in texts)
        else:
            src = mistyped(src, chance)
        found = []
        for codec, ids, text, other in zip(codecs, pair, texts, (src, trg), strict=True):
            tags = ids[: int((ids < codec.n_text).argmax())] if len(ids) and ids[0] >= codec.n_text else ids[:0]
            new = ids if other == text else np.append(tags, codec.encode([other])[0]).astype(ids.dtype)
            found.append(new)
        return found if max(map(len, found)) <= self._most else pair


def in_capitals(text: str, *, dotted: bool = False) -> str:
    """A text in capitals. dotted: the capital of i is İ."""
    return (text.replace("i", "İ") if dotted else text).upper()


def mistyped(text: str, chance: np.uint64) -> str:
    """A text in which letters of some words are swapped, left out or doubled; never the first of a word."""
    words = list(_MISTYPED.finditer(text))
    if not words:
        return text
    n = 1 + len(text) // _ONE_TYPO_IN
    draws: Numbers = mixed(np.arange(3 * n, dtype=np.uint64) * np.uint64(STEP) + chance)
    picked = {int(draw % np.uint64(len(words))): at for at, draw in enumerate(draws[:n])}
    for word, at in sorted(picked.items(), reverse=True):  # from the end, so that places before stay
        begin, end = words[word].span()
        i = begin + 1 + int(draws[n + at] % np.uint64(end - begin - 2))
        a, b = text[i], text[i + 1]
        text = text[:i] + (b + a, b, a + a + b)[int(draws[2 * n + at] % np.uint64(3))] + text[i + 2 :]
    return text


def _has_symbol(codec: Codec, ids: Ids) -> bool:
    """Return whether a text has a symbol or a placeholder in it, which no change may touch."""
    first = codec.n_text - len(codec.symbols) - len(codec.placeholders)
    return bool(((ids >= first) & (ids < codec.n_text)).any())


def _ragged(rows: list[Ids], like: Ragged) -> Ragged:
    lengths = np.array(list(map(len, rows)), dtype=like.lengths.dtype)
    return Ragged(np.concatenate(rows).astype(like.values.dtype, copy=False), lengths)
