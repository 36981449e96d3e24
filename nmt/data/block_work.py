"""Tasks on a block of training pairs: filter, measure, count units, encode. And two tasks on files of all blocks.

A task depends only on its block and on settings that all blocks share, so any process can run it. Each block is stored
in a file for later tasks. `keep.py` makes the blocks, distributes the tasks and merges the results.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.alignment_shift import find_shifts
from nmt.data.arrays import Ints, Ragged
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
from nmt.data.units import Lexicon, Mask, UnitIds, Units, UnitWords
from nmt.recipe.data_options import DataConfig, SubwordsConfig

Codes = NDArray[np.uint8]
Numbers = NDArray[Any]
WordCounts = tuple[list[str], Numbers]


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


class Task:
    """Methods for the blocks of one command, with the state that a process keeps between blocks."""

    def __init__(
        self,
        data: DataConfig,
        subwords: SubwordsConfig,
        folder: Path,
        sources: list[CorpusFacts],
        held_out: HeldOut,
        drawn: Hashes,
    ) -> None:
        """sources: the training sources. drawn: hashes of the validation lines that were drawn from the training files;
        pairs near them are dropped."""
        self._data, self._folder, self._held_out, self._drawn = data, folder, held_out, drawn
        self._words_of = WordsOf(subwords)
        # Text with placeholders is for learning only and cannot be measured, so it has lexicons of its own.
        self._lexicons = {name: Lexicon() for name in SIDES}
        self._learnt_lexicons = {name: Lexicon() for name in SIDES} if data.protect else self._lexicons
        self._key_dtype = keys_for(source.config for source in sources)
        self._filters = list(map(filters_of, sources))
        self._subwords: Subwords | None = None

    def decide(self, block: TextBlock) -> tuple[Codes, NDArray[Any]]:
        """Return a code for each pair by the filters on text, and the keys to find duplicates by."""
        sides = self._units(self._lexicons, block.src, block.trg)
        codes = self._codes(block, sides)
        keys, kept = np.full(len(codes), NO_KEY, self._key_dtype), codes == KEPT
        keys[kept] = keys_of(sides[0].some(kept), sides[1].some(kept), self._key_dtype)
        return codes, keys

    def filter_and_measure(self, block: TextBlock, codes: Codes | None) -> MeasuredBlock:
        """Filter and measure a block, and write it to a file for later tasks. codes: of the pairs, if known."""
        sides, notes = self._units(self._lexicons, block.src, block.trg), Counter[str]()
        codes = self._codes(block, sides) if codes is None else codes
        kept = codes == KEPT
        learnt_sides, unlike = self._protected(sides, kept, notes)
        kept_sides = list[BlockSide]()
        for side, learnt in zip(sides, learnt_sides, strict=True):
            at = learnt.at if kept.all() else learnt.at[np.repeat(kept, learnt.n_unit)]
            kept_sides.append(
                BlockSide(
                    units=np.frombuffer(b"\n".join(learnt.keys), np.uint8),
                    at=at.astype(np.uint16 if len(learnt.keys) <= 1 << 16 else np.uint32),
                    n_unit=learnt.n_unit[kept].astype(np.uint32),
                    n_char=learnt.n_char[kept].astype(np.uint32),
                    n_word=learnt.n_word()[kept].astype(np.uint32),
                    text=np.frombuffer(side.text(kept), np.uint8),
                    protected=np.frombuffer(b"" if learnt is side else learnt.text(kept), np.uint8),
                )
            )
            if ODD.search(b"".join(side.keys).decode("utf-8")):  # the distinct units are shorter than the text
                notes.update(oddity for line in side.some(kept) for oddity in oddities(line))
        path = self._folder / f"block.{block.start}"
        write_block(path, BlockContent(kept, kept_sides))
        return MeasuredBlock(
            KeptBlock(str(path), block.source, block.first, int(kept.sum())),
            dict(notes),
            _dropped(sides, codes, block),
            [block.first + n for n in unlike],
            [dress_of(side.text.tobytes() + b"\n" * bool(kept.any())) for side in kept_sides],
            **measured(*sides, kept, self._held_out),
        )

    def count(self, kept: KeptBlock, masks: Sequence[Mask]) -> list[WordCounts]:
        """Count each word of both sides. masks: lines of each side to count, empty for all."""
        block, counts_of_sides = read_block(kept), list[WordCounts]()
        for n, (name, side) in enumerate(zip(SIDES, block.sides, strict=True)):
            lexicon, units = self._units_of(side, name)
            at = side.at[np.repeat(masks[n], side.n_unit)] if masks else side.at
            counts = np.bincount(at, minlength=len(units))
            occur = np.flatnonzero(counts)
            counts_of_sides.append(lexicon.part(UnitWords, self._words_of).counted(units[occur], counts[occur]))
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
            values, lengths = self._ids_of_lines(side, name, codec)
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

    def _ids_of_lines(self, side: BlockSide, name: str, codec: Codec) -> tuple[NDArray[Any], Ints]:
        """Return the ids of the kept lines of a side, end to end, and the number of ids of each line."""
        if codec.speller:  # it needs whole lines
            texts = side.learnt_texts() if len(side.n_unit) else []
            lines = Ragged.of(codec.encode(texts), np.int32)
            return lines.values, lines.lengths.astype(np.int64)
        lexicon, units = self._units_of(side, name)
        values, n_id = lexicon.part(UnitIds, codec).rows.of(units[side.at])
        ends = np.concatenate([[0], np.cumsum(n_id)])[np.cumsum(side.n_unit, dtype=np.int64)]
        return values, np.diff(ends, prepend=0)

    def _units_of(self, side: BlockSide, name: str) -> tuple[Lexicon, NDArray[Any]]:
        """Return the lexicon of a side, and the numbers of the block's units in it."""
        lexicon = self._with_room(self._learnt_lexicons, name)
        return lexicon, lexicon.numbers(side.units.tobytes().split(b"\n"))

    @staticmethod
    def _with_room(lexicons: dict[str, Lexicon], name: str) -> Lexicon:
        """Return the lexicon of a side, after replacing a full one by an empty one."""
        if lexicons[name].is_full:
            lexicons[name] = Lexicon()
        return lexicons[name]

    def _units(self, lexicons: dict[str, Lexicon], src: bytes, trg: bytes) -> tuple[Units, Units]:
        """Return both sides of pairs in units of these lexicons. src, trg: lines, each ended by a line feed."""
        src_lexicon, trg_lexicon = (self._with_room(lexicons, name) for name in SIDES)
        return Units(src, src_lexicon), Units(trg, trg_lexicon)

    def _codes(self, block: TextBlock, sides: tuple[Units, Units]) -> Codes:
        """Return a code for each pair: KEPT, or the reason by which its text alone is dropped."""
        filters = self._filters[block.source]
        src, trg = (text.decode("utf-8").split("\n")[:-1] for text in (block.src, block.trg))
        reasons = (reason_to_drop(*pair, filters=filters) for pair in zip(src, trg, strict=True))
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
            src, trg = sides[0].line(n), sides[1].line(n)
            lines[0][n], lines[1][n], are_alike = protected_pair(src, trg, kinds)
            if not are_alike:
                unlike.append(n)
            elif lines[0][n] != src:
                notes["protected"] += 1
        return self._units(self._learnt_lexicons, *("\n".join([*side, ""]).encode(**BYTES) for side in lines)), unlike


def _dropped(
    sides: tuple[Units, Units], codes: Codes, block: TextBlock
) -> list[tuple[str, int, list[tuple[int, list[str]]]]]:
    """Return for each reason the number of dropped pairs, and line number and readable texts of the first few."""
    pairs_by_reason: dict[str, list[int]] = {}
    for n in np.flatnonzero(codes != KEPT).tolist():
        pairs_by_reason.setdefault(block.flaws.get(n) or REASONS[codes[n] - 1], []).append(n)

    def example(n: int) -> tuple[int, list[str]]:
        texts = [cut(side.line(n)) for side in sides]
        return block.first + n, texts if n not in block.flaws or any(texts) else []

    return [
        (reason, len(numbers), [example(n) for n in numbers[:N_SHOWN]]) for reason, numbers in pairs_by_reason.items()
    ]
