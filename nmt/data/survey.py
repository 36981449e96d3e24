"""What is measured of the pairs while they go by, in one pass: lengths, scripts, leaks, repetitions, shifted lines.

Pairs are collected into blocks and looked at with numpy, a block at a time. Nothing is kept of a pair but, on the disk
and until the end, 52 bytes for its alignment and 16 for its repetitions.
"""

import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nmt.data.duplicates import PAIR, count_duplicates
from nmt.data.leaks import Keys, Leaks
from nmt.data.report_text import Anchors, Block
from nmt.data.shift import Alignment, find_shifts, records_of
from nmt.data.sources import Source

LONGEST = 4096  # characters; longer lines are counted as so long
STEPS = 8  # bars of the histogram of ratios for each doubling
FARTHEST = 5  # doublings; ratios beyond are counted as these

_MOST_PAIRS = 10_000
_MOST_CHARACTERS = 2_000_000
_CODES = 0x110000
Texts = tuple[list[str], list[str]]


class Survey:
    """Gets every pair that is read, in order; `finish` ends it."""

    def __init__(self, folder: Path, sources: Sequence[Source], held_out: Mapping[str, Texts]) -> None:
        """folder: where two files may stand until `finish`; held_out: the lines of validation and test sets."""
        self._pairs_path, self._records_path = folder / "survey.pairs", folder / "survey.records"
        self._pairs, self._records = self._pairs_path.open("wb"), self._records_path.open("wb")
        self._files: list[tuple[Source, int]] = []  # and how many records each has
        self._anchors = Anchors()
        self.lengths = np.zeros((2, 2, LONGEST + 1), dtype=np.int64)  # side; read, kept
        self.ratios = np.zeros((2, 2 * STEPS * FARTHEST + 1), dtype=np.int64)  # read, kept
        self._characters = np.zeros((2, _CODES), dtype=np.int64)
        self._n_kept = 0
        self.alignments: list[tuple[Source, Alignment]] = []
        self.duplicates: dict[str, Any] = {}
        self._empty()
        keys = {}
        for split, (src, trg) in held_out.items():
            blocks = Block(src), Block(trg)
            keys[split] = Keys.of(*blocks)
            of_split = [source for source in sources if source.split == split]
            if len(of_split) == 1:
                self.begin(of_split[0])
                self._align(*blocks)
        self.leaks = Leaks(keys)

    def begin(self, source: Source) -> None:
        """The pairs that follow are those of this source."""
        self._flush()
        self._anchors = Anchors()
        self._files.append((source, 0))

    def add(self, src: str | None, trg: str | None, *, kept: bool) -> None:
        """The next pair. None: a side that could not be read."""
        src, trg = src or "", trg or ""
        self._src.append(src)
        self._trg.append(trg)
        self._kept.append(kept)
        self._n_character += len(src) + len(trg)
        if len(self._src) == _MOST_PAIRS or self._n_character >= _MOST_CHARACTERS:
            self._flush()

    def finish(self, done: Callable[[int], object]) -> None:
        """Draw the conclusions that need all pairs. done: is told how many pairs more have been looked at."""
        self._flush()
        self._pairs.close()
        self._records.close()
        start = 0
        for source, n_pair in self._files:
            self.alignments.append((source, find_shifts(self._records_path, start, n_pair, done=done)))
            start += n_pair
        self.duplicates = count_duplicates(self._pairs_path)
        self._records_path.unlink()
        self._pairs_path.unlink()

    def scripts(self) -> dict[str, dict[str, int]]:
        """How many characters of each kind the kept pairs have on each side, most frequent first."""
        return {side: _by_script(counts) for side, counts in zip(("src", "trg"), self._characters, strict=True)}

    def _empty(self) -> None:
        self._src: list[str] = []
        self._trg: list[str] = []
        self._kept: list[bool] = []
        self._n_character = 0

    def _align(self, src: Block, trg: Block) -> None:
        records = records_of(src, trg, self._anchors)
        self._records.write(records.tobytes())
        source, n_pair = self._files[-1]
        self._files[-1] = source, n_pair + len(records)

    def _flush(self) -> None:
        if not self._src:
            return
        src, trg = Block(self._src), Block(self._trg)
        kept = np.array(self._kept)
        self._align(src, trg)
        for side, block in enumerate((src, trg)):
            lengths = np.minimum(block.lengths, LONGEST)
            for which, chosen in enumerate((lengths, lengths[kept])):
                self.lengths[side, which] += np.bincount(chosen, minlength=LONGEST + 1)
            of_kept = block.codes[np.repeat(kept, block.lengths + 1)]
            counts = np.bincount(of_kept)
            self._characters[side, : len(counts)] += counts
            self._characters[side, 10] -= int(kept.sum())  # the line feeds between the lines
        filled = (src.lengths > 0) & (trg.lengths > 0)
        steps = np.zeros(len(filled), dtype=np.int64)
        steps[filled] = np.rint(STEPS * np.log2(trg.lengths[filled] / src.lengths[filled])).astype(np.int64)
        steps = np.clip(steps, -STEPS * FARTHEST, STEPS * FARTHEST) + STEPS * FARTHEST
        for which, chosen in enumerate((filled, filled & kept)):
            self.ratios[which] += np.bincount(steps[chosen], minlength=self.ratios.shape[1])
        self._remember(src, trg, np.flatnonzero(kept))
        self._empty()

    def _remember(self, src: Block, trg: Block, kept: Any) -> None:
        if not len(kept):
            return
        keys = Keys.of(src, trg).only(kept)
        self.leaks.look(keys, self._n_kept + np.arange(len(kept)))
        pairs = np.empty(len(kept), PAIR)
        pairs["src"], pairs["trg"] = keys.hashes["exact", "src"], keys.hashes["exact", "trg"]
        self._pairs.write(pairs.tobytes())
        self._n_kept += len(kept)


def _by_script(counts: Any) -> dict[str, int]:
    found: Counter[str] = Counter()
    for code in np.flatnonzero(counts).tolist():
        found[_script(chr(code))] += int(counts[code])
    return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))


def _script(character: str) -> str:
    """The script of a letter, as its name says it, or the kind of another character."""
    kind = unicodedata.category(character)
    if kind[0] == "L":
        # Named by the script first, in all of Unicode: LATIN SMALL LETTER A, CJK UNIFIED IDEOGRAPH-4E00.
        word = unicodedata.name(character, "unnamed").partition(" ")[0].partition("-")[0]
        return {"CJK": "Chinese characters"}.get(word, word.capitalize())
    kinds = {"M": "marks", "N": "numbers", "P": "punctuation", "S": "symbols", "Z": "white space", "C": "control"}
    return "white space" if character == "\t" else kinds[kind[0]]
