"""The ids of the units that lines are cut into: each is asked for in every block, and found once."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nmt.data.learn import MOST_REMEMBERED, WORD_CAP, CutWords, WordsOf
from nmt.data.pack import read_packed, write_packed
from nmt.data.subwords import LONGEST_REMEMBERED, N_SPECIAL, Codec


class UnitIds:
    """Tells the ids of units. Where learning has left how it cut the words, most are put together from those."""

    def __init__(self, codec: Codec, words_of: WordsOf, cut_words: Path | None) -> None:
        """words_of: cuts units into words; cut_words: what `write_cut_words` wrote."""
        self._codec, self._words_of = codec, words_of
        self._of_word = _read_cut_words(cut_words) if cut_words else {}
        self._known: dict[str, list[int]] = {}

    def __call__(self, units: Sequence[str]) -> list[list[int]]:
        """The ids of each unit."""
        known, new, others = self._known, dict[str, list[int]](), list[str]()
        for unit in units:
            if unit not in known:
                if ids := self._by_words(unit):
                    new[unit] = ids
                else:
                    others.append(unit)
        new |= zip(others, self._codec.encode_units(others), strict=True)
        if len(known) < MOST_REMEMBERED:
            known.update((unit, ids) for unit, ids in new.items() if len(unit) <= LONGEST_REMEMBERED)
        return [new[unit] if unit in new else known[unit] for unit in units]

    def _by_words(self, unit: str) -> list[int]:
        """The ids of a unit of which all words were learnt from; none for others."""
        if not self._of_word or len(unit) > WORD_CAP:
            return []
        ids: list[int] = []
        for word in self._words_of.of_unit(unit, 0, Counter()):
            found = self._of_word.get(word)
            if found is None:
                return []
            ids += found
        return ids


def write_cut_words(path: Path, cut: CutWords) -> None:
    """For other processes."""
    content: dict[str, Any] = {"words": "\n".join(cut.words).encode("utf-8")}
    with path.open("wb") as file:
        write_packed(file, {**content, "values": cut.values, "lengths": cut.lengths})


def _read_cut_words(path: Path) -> dict[str, list[int]]:
    with path.open("rb") as file:
        found = read_packed(file.read)
    assert found is not None
    values, ends = (found["values"] + N_SPECIAL).tolist(), np.cumsum(found["lengths"]).tolist()
    words = found["words"].decode("utf-8").split("\n")
    return {word: values[a:b] for word, a, b in zip(words, [0, *ends], ends, strict=False)}
