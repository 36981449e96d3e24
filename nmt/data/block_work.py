"""Tasks on a block of training pairs: filter, measure, count units, encode. And two tasks on files of all blocks.

A task depends only on its block and on settings that all blocks share, so any process can run it. Each block is stored
in a file for later tasks. `keep.py` makes the blocks, distributes the tasks and merges the results.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from nmt.data.alignment_shift import find_shifts
from nmt.data.arrays import Ragged
from nmt.data.corpus import dtype_of_ids
from nmt.data.dedup import N_SHOWN, NO_KEY, count_duplicates, keys_for, keys_of
from nmt.data.filters import CODES, HELD_OUT, KEPT, REASONS, CorpusFacts, filters_of, oddities, reason_to_drop
from nmt.data.letters import WordsOf
from nmt.data.placeholders import in_names, protected_pair
from nmt.data.subwords import Codec, Subwords
from nmt.data.survey import BlockContent, HeldOut, KeptBlock, MeasuredBlock, measured, read_block, write_block
from nmt.data.text import Block, Hashes, cut
from nmt.data.units import Mask, Units
from nmt.recipe.options import Recipe
from nmt.recipe.places import SUBWORDS

Codes = NDArray[np.uint8]
Use = tuple[int, int, NDArray[Any]]  # words, characters, and occurrences of each id
Examples = list[tuple[int, list[str]]]  # numbers of lines, and texts of both sides
_T = TypeVar("_T")


class TextBlock(NamedTuple):
    """Pairs of a training source. first: number of the first line.

    flaws: reasons of pairs with a flaw or a low score, by place in the block. The lines of a flawed pair are empty.
    """

    source: int
    first: int
    start: int  # number of its first pair among those of all sources
    src: Sequence[str]
    trg: Sequence[str]
    flaws: dict[int, str]


_UNREAD = 255  # code of a pair with a flaw or a low score
_MOST_REMEMBERED, _LONGEST_REMEMBERED = 100_000, 40  # units, and characters of a unit


class Task:
    """Methods for the blocks of one command, with what a process remembers between blocks."""

    def __init__(
        self, recipe: Recipe, folder: Path, sources: list[CorpusFacts], held_out: HeldOut, drawn: Hashes
    ) -> None:
        """sources: the training sources. drawn: hashes of the validation lines that were drawn from the training files;
        pairs near them are dropped."""
        self._data, self._folder, self._held_out, self._drawn = recipe.data, folder, held_out, drawn
        self._words_of = _remembering(WordsOf(recipe.subwords))
        self._ids_of = dict[Codec, Callable[[str], list[int]]]()  # functions of a unit
        self._key_dtype = keys_for(source.config for source in sources)
        self._filters = list(map(filters_of, sources))
        self._subwords: Subwords | None = None

    def decide(self, block: TextBlock) -> tuple[int, Codes, NDArray[Any]]:
        """Return the source of the block, a code for each pair by the filters on text, and keys to find duplicates."""
        sides = Units(block.src), Units(block.trg)
        codes = self._codes(block, sides)
        keys, kept = np.full(len(codes), NO_KEY, self._key_dtype), codes == KEPT
        keys[kept] = keys_of(sides[0].some(kept), sides[1].some(kept), self._key_dtype)
        return block.source, codes, keys

    def filter_and_measure(
        self, block: TextBlock, codes: Codes | None
    ) -> tuple[MeasuredBlock, list[tuple[str, int, Examples]], list[int], Counter[str]]:
        """Filter and measure a block, and write it to a file for later tasks. codes: of the pairs, if known.

        Return the measurements; reason and number of dropped pairs, with the first few; lines whose items of
        data.protect differ between the sides; and counts of oddities.
        """
        sides, notes = (Units(block.src), Units(block.trg)), Counter[str]()
        codes = self._codes(block, sides) if codes is None else codes
        kept = codes == KEPT
        lines = [side.some(kept) for side in sides]
        learnt, unlike = lines, list[int]()
        if self._data.protect:
            pairs = [protected_pair(src, trg, self._data.protect) for src, trg in zip(*lines, strict=True)]
            learnt = [[src for src, _, _ in pairs], [trg for _, trg, _ in pairs]]
            unlike = [n for n, (_, _, are_alike) in enumerate(pairs) if not are_alike]
            notes.update("protected" for line, new in zip(lines[0], learnt[0], strict=True) if new != line)
        notes.update(oddity for kept_lines in lines for line in kept_lines for oddity in oddities(line))
        path, content = self._folder / f"block.{block.start}", BlockContent(kept, lines, learnt)
        write_block(path, content)
        kept_block = KeptBlock(str(path), block.source, block.first, len(lines[0]))
        measurements = measured(kept_block, *sides, content, self._held_out)
        unlike_lines = (block.first + np.flatnonzero(kept)[unlike]).tolist()
        return measurements, _dropped(sides, codes, block), unlike_lines, notes

    def count(self, kept: KeptBlock, masks: Sequence[Mask]) -> list[Counter[str]]:
        """Count each word of both sides. masks: lines of each side to count, empty for all."""
        counts_of_sides = list[Counter[str]]()
        for n, lines in enumerate(read_block(kept).learnt):
            side, counts = Units(lines), Counter[str]()
            at = side.at[np.repeat(masks[n], side.n_unit)] if masks else side.at
            for unit, times in zip(side.units, np.bincount(at, minlength=len(side.units)).tolist(), strict=True):
                for word in self._words_of(unit) if times else ():
                    counts[word] += times
            counts_of_sides.append(counts)
        return counts_of_sides

    shifts = staticmethod(find_shifts)
    duplicates = staticmethod(count_duplicates)

    def encode(self, kept: KeptBlock, before: list[int]) -> tuple[list[Ragged], list[Use], Examples]:
        """Encode the kept pairs of a block by the subwords in the folder. before: ids at the start of every source.

        Return the ids and the counts of both sides of the pairs within max_len, and the first few of the longer pairs.
        """
        if self._subwords is None:
            self._subwords = Subwords.load(self._folder / SUBWORDS)
        dtype, codecs, block = dtype_of_ids(self._subwords), (self._subwords.src, self._subwords.trg), read_block(kept)
        sides, rows = list(map(Units, block.learnt)), list[Ragged]()
        for side, codec, prefix in zip(sides, codecs, (before, list[int]()), strict=True):
            ids = self._ids_of_lines(side, codec)
            starts = np.cumsum(ids.lengths, dtype=np.int64) - ids.lengths
            values = np.insert(ids.values, np.repeat(starts, len(prefix)), prefix * len(starts))
            rows.append(Ragged(values.astype(dtype), (ids.lengths + len(prefix)).astype(np.int32)))
        fits = np.logical_and(*(ids.lengths <= self._data.max_len for ids in rows))
        rows = [ids.some(fits) for ids in rows]
        uses = list[Use]()
        for side, codec, ids in zip(sides, codecs, rows, strict=True):
            n_word, n_char = (int(n_of_line[fits].sum()) for n_of_line in (side.n_word(), side.n_char))
            uses.append((n_word, n_char, np.bincount(ids.values, minlength=codec.size)))
        numbers, long = kept.first + np.flatnonzero(block.kept), np.flatnonzero(~fits)[:N_SHOWN].tolist()
        too_long = [(int(numbers[n]), [cut(in_names(side.lines[n])) for side in sides]) for n in long]
        return rows, uses, too_long

    def _ids_of_lines(self, side: Units, codec: Codec) -> Ragged:
        """Return the ids of each line."""
        if codec.speller:  # it needs whole lines
            return Ragged.of(codec.encode(side.lines), np.int32)
        ids_of = self._ids_of.setdefault(codec, _remembering(lambda unit: codec.encode([unit[1:]])[0]))
        units = Ragged.of(list(map(ids_of, side.units)), np.int32).picked(side.at)
        return Ragged(units.values, np.add.reduceat(units.lengths, side.first))

    def _codes(self, block: TextBlock, sides: tuple[Units, Units]) -> Codes:
        """Return a code for each pair: KEPT, or the reason by which its text alone is dropped."""
        filters = self._filters[block.source]
        pairs = zip(sides[0].lines, sides[1].lines, strict=True)
        reasons = (reason_to_drop(src, trg, filters) for src, trg in pairs)
        codes = np.array([CODES[reason] if reason else KEPT for reason in reasons], np.uint8)
        codes[list(block.flaws)] = _UNREAD
        for side in sides if len(self._drawn) else ():  # drop pairs with a near copy of a drawn validation line
            is_near = np.isin(side.bags(), self._held_out.bags)
            if is_near.any():
                is_near[is_near] = np.isin(Block(side.some(is_near)).near()[0], self._drawn)
                codes[is_near & (codes == KEPT)] = CODES[HELD_OUT]
        return codes


def _remembering(function: Callable[[str], _T]) -> Callable[[str], _T]:
    """Return a function of a unit that remembers its results. Long units, such as whole lines, hardly repeat."""
    remembered = lru_cache(_MOST_REMEMBERED)(function)
    return lambda unit: remembered(unit) if len(unit) <= _LONGEST_REMEMBERED else function(unit)


def _dropped(sides: tuple[Units, Units], codes: Codes, block: TextBlock) -> list[tuple[str, int, Examples]]:
    """Return for each reason the number of dropped pairs, and line number and readable texts of the first few."""
    counts, first = Counter[str](), defaultdict[str, Examples](list)
    for n in np.flatnonzero(codes != KEPT).tolist():
        reason = block.flaws.get(n) or REASONS[codes[n] - 1]
        counts[reason] += 1
        if counts[reason] <= N_SHOWN:
            texts = [cut(side.lines[n]) for side in sides]
            first[reason].append((block.first + n, texts if n not in block.flaws or any(texts) else []))
    return [(reason, n, first[reason]) for reason, n in counts.items()]
