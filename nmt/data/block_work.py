"""Tasks on a block of training pairs: filter, measure, count units, encode. And two tasks on files of all blocks.

A task depends only on its block and on settings that all blocks share, so any process can run it. A block is stored in
a file for later tasks. `keep.py` makes the blocks, distributes the tasks and merges the results.
"""

from collections import Counter
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
from nmt.data.filters import CODES, HELD_OUT, KEPT, ODD, REASONS, CorpusFacts, filters_of, oddities, reason_to_drop
from nmt.data.letters import WordsOf
from nmt.data.placeholders import BYTES, in_names, protected_pair
from nmt.data.subwords import Codec, Subwords
from nmt.data.survey import (
    BlockContent,
    BlockSide,
    HeldOut,
    KeptBlock,
    MeasuredBlock,
    measured,
    read_block,
    write_block,
)
from nmt.data.text import SIDES, Block, Hashes, cut, dress_of
from nmt.data.units import Mask, Units
from nmt.recipe.data_options import DataConfig, SubwordsConfig

Codes = NDArray[np.uint8]
Numbers = NDArray[Any]
_T = TypeVar("_T")


class TextBlock(NamedTuple):
    """Pairs of a training source. first: number of the first line. src, trg: the lines, each ended by a line feed.

    flaws: reasons of pairs with a flaw or a low score, by place in the block. The lines of a flawed pair are empty.
    """

    source: int
    first: int
    start: int  # number of its first pair among those of all sources
    n_pair: int
    src: bytes
    trg: bytes
    flaws: dict[int, str]


class EncodedSide(NamedTuple):
    """Ids of one side of the pairs within max_len. counts: occurrences of each id."""

    rows: Ragged
    counts: Numbers
    n_word: int
    n_char: int


class Encoded(NamedTuple):
    """A block as ids. n_long: kept pairs that are longer than max_len. too_long: lines and texts of the first few."""

    n_long: int
    too_long: list[tuple[int, list[str]]]
    sides: list[EncodedSide]


_UNREAD = 255  # code of a pair with a flaw or a low score
_MOST_REMEMBERED, _LONGEST_REMEMBERED = 100_000, 40  # units, and characters of a unit


class Task:
    """Methods for the blocks of one command, with what a process remembers between blocks."""

    def __init__(
        self,
        data: DataConfig,
        subwords: SubwordsConfig,
        folder: Path,
        sources: list[CorpusFacts],
        held_out: HeldOut,
        drawn: Hashes,
        number: int,
    ) -> None:
        """sources: the training sources. drawn: hashes of the validation lines that were drawn from the training files;
        pairs near them are dropped. number: of this process, from 0. Each process has its own file."""
        self._data, self._held_out, self._drawn = data, held_out, drawn
        self._path = folder / f"blocks.{number}"
        self._words_of = _remembering(WordsOf(subwords))
        self._ids_of = dict[Codec, Callable[[str], list[int]]]()  # functions of a unit
        self._key_dtype = keys_for(source.config for source in sources)
        self._filters = list(map(filters_of, sources))
        self._subwords: Subwords | None = None

    def decide(self, block: TextBlock) -> tuple[Codes, NDArray[Any]]:
        """Return a code for each pair by the filters on text, and the keys to find duplicates by."""
        sides = _units(block)
        codes = self._codes(block, sides)
        keys, kept = np.full(len(codes), NO_KEY, self._key_dtype), codes == KEPT
        keys[kept] = keys_of(sides[0].some(kept), sides[1].some(kept), self._key_dtype)
        return codes, keys

    def filter_and_measure(self, block: TextBlock, codes: Codes | None) -> MeasuredBlock:
        """Filter and measure a block, and write it to the file for later tasks. codes: of the pairs, if known."""
        sides, notes = _units(block), Counter[str]()
        codes = self._codes(block, sides) if codes is None else codes
        kept = codes == KEPT
        learnt_sides, unlike = self._protected(sides, kept, notes)
        kept_sides = list[BlockSide]()
        for side, learnt in zip(sides, learnt_sides, strict=True):
            at = learnt.at if kept.all() else learnt.at[np.repeat(kept, learnt.n_unit)]
            kept_sides.append(
                BlockSide(
                    units=_stored(learnt.units),
                    at=at.astype(np.uint16 if len(learnt.units) <= 1 << 16 else np.uint32),
                    n_unit=learnt.n_unit[kept].astype(np.uint32),
                    n_char=learnt.n_char[kept].astype(np.uint32),
                    n_word=learnt.n_word()[kept].astype(np.uint32),
                    text=_stored(side.some(kept)),
                    protected=_stored([] if learnt is side else learnt.some(kept)),
                )
            )
            if ODD.search("".join(side.units)):  # the distinct units are shorter than the text
                notes.update(oddity for line in side.some(kept) for oddity in oddities(line))
        offset = write_block(self._path, BlockContent(kept, kept_sides))
        return MeasuredBlock(
            KeptBlock(str(self._path), offset, block.source, block.first, int(kept.sum())),
            dict(notes),
            _dropped(sides, codes, block),
            [block.first + n for n in unlike],
            [dress_of(side.text.tobytes() + b"\n" * bool(kept.any())) for side in kept_sides],
            **measured(*sides, kept, self._held_out),
        )

    def count(self, kept: KeptBlock, masks: Sequence[Mask]) -> list[Counter[str]]:
        """Count each word of both sides. masks: lines of each side to count, empty for all."""
        counts_of_sides = list[Counter[str]]()
        for n, side in enumerate(read_block(kept).sides):
            at = side.at[np.repeat(masks[n], side.n_unit)] if masks else side.at
            units, counts = side.unit_texts(), Counter[str]()
            for unit, times in zip(units, np.bincount(at, minlength=len(units)).tolist(), strict=True):
                for word in self._words_of(unit) if times else ():
                    counts[word] += times
            counts_of_sides.append(counts)
        return counts_of_sides

    shifts = staticmethod(find_shifts)
    duplicates = staticmethod(count_duplicates)

    def encode(self, kept: KeptBlock, before: list[int], subwords: Path) -> Encoded:
        """Encode the kept pairs of a block. before: ids at the beginning of every source."""
        if self._subwords is None:
            self._subwords = Subwords.load(subwords)
        dtype, block = dtype_of_ids(self._subwords), read_block(kept)
        codecs, rows = (self._subwords.src, self._subwords.trg), []
        for name, side, codec in zip(SIDES, block.sides, codecs, strict=True):
            ids = self._ids_of_lines(side, codec)
            values, lengths = ids.values, ids.lengths
            if name == "src" and before:
                starts = np.cumsum(lengths, dtype=np.int64) - lengths
                values = np.insert(values, np.repeat(starts, len(before)), before * len(starts))
                lengths = lengths + len(before)
            rows.append(Ragged(values.astype(dtype), lengths.astype(np.int32)))
        fits = np.logical_and(*(ids.lengths <= self._data.max_len for ids in rows))
        sides = []
        for side, codec, ids in zip(block.sides, codecs, rows, strict=True):
            short = ids.some(fits)
            counts = np.bincount(short.values, minlength=codec.size)
            n_word, n_char = (int(n_of_line[fits].sum(dtype=np.int64)) for n_of_line in (side.n_word, side.n_char))
            sides.append(EncodedSide(short, counts, n_word, n_char))
        long = np.flatnonzero(~fits).tolist()
        places, texts = np.flatnonzero(block.kept), [side.learnt_texts() for side in block.sides if long]
        too_long = [(kept.first + int(places[n]), [cut(in_names(side[n])) for side in texts]) for n in long[:N_SHOWN]]
        return Encoded(len(long), too_long, sides)

    def _ids_of_lines(self, side: BlockSide, codec: Codec) -> Ragged:
        """Return the ids of the kept lines of a side."""
        if codec.speller:  # it needs whole lines
            return Ragged.of(codec.encode(side.learnt_texts() if len(side.n_unit) else []), np.int32)
        ids_of = self._ids_of.setdefault(codec, _remembering(lambda unit: codec.encode([unit[1:]])[0]))
        units = Ragged.of(list(map(ids_of, side.unit_texts())), np.int32).picked(side.at)
        first = np.cumsum(side.n_unit, dtype=np.int64) - side.n_unit
        return Ragged(units.values, np.add.reduceat(units.lengths, first))

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

    def _protected(
        self, sides: tuple[Units, Units], kept: NDArray[np.bool_], notes: Counter[str]
    ) -> tuple[tuple[Units, Units], list[int]]:
        """Return the kept lines with placeholders, to learn from, and the pairs whose items differ."""
        kinds, unlike = self._data.protect, list[int]()
        if not kinds:
            return sides, unlike
        lines = [""] * len(kept), [""] * len(kept)
        for n in np.flatnonzero(kept).tolist():
            src, trg = sides[0].lines[n], sides[1].lines[n]
            lines[0][n], lines[1][n], are_alike = protected_pair(src, trg, kinds)
            if not are_alike:
                unlike.append(n)
            elif lines[0][n] != src:
                notes["protected"] += 1
        return (Units(lines[0]), Units(lines[1])), unlike


def _units(block: TextBlock) -> tuple[Units, Units]:
    """Return both sides of a block in units."""
    src, trg = (Units(text.decode("utf-8").split("\n")[:-1]) for text in (block.src, block.trg))
    return src, trg


def _stored(texts: Sequence[str]) -> NDArray[np.uint8]:
    """Return texts as `BlockSide` has them."""
    return np.frombuffer("\n".join(texts).encode(**BYTES), np.uint8)


def _remembering(function: Callable[[str], _T]) -> Callable[[str], _T]:
    """Return a function of a unit that remembers its results. Long units, such as whole lines, hardly repeat."""
    remembered = lru_cache(_MOST_REMEMBERED)(function)
    return lambda unit: remembered(unit) if len(unit) <= _LONGEST_REMEMBERED else function(unit)


def _dropped(
    sides: tuple[Units, Units], codes: Codes, block: TextBlock
) -> list[tuple[str, int, list[tuple[int, list[str]]]]]:
    """Return for each reason the number of dropped pairs, and line number and readable texts of the first few."""
    pairs_by_reason: dict[str, list[int]] = {}
    for n in np.flatnonzero(codes != KEPT).tolist():
        pairs_by_reason.setdefault(block.flaws.get(n) or REASONS[codes[n] - 1], []).append(n)

    def example(n: int) -> tuple[int, list[str]]:
        texts = [cut(side.lines[n]) for side in sides]
        return block.first + n, texts if n not in block.flaws or any(texts) else []

    return [
        (reason, len(numbers), [example(n) for n in numbers[:N_SHOWN]]) for reason, numbers in pairs_by_reason.items()
    ]
