"""Tasks on a block of training pairs, in this process or in a worker: read and filter, measure, count units, encode.
And the conclusions from files of all blocks.

Each task is a function of the block and of what all blocks share, so any process may do it. What a later task needs of
a block lies in a file; `keep.py` makes the blocks, hands them round and puts the answers together.
"""

import io
import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.lib.format import read_array, write_array
from numpy.typing import NDArray

from nmt.data.alignment_shift import find_shifts
from nmt.data.arrays import Ragged
from nmt.data.corpus import dtype_of_ids
from nmt.data.dedup import N_SHOWN, NO_KEY, count_duplicates, keys_for, keys_of
from nmt.data.filters import CODES, HELD_OUT, KEPT, ODD, REASON_OF, CorpusFacts, filters_of, oddities, reason_to_drop
from nmt.data.letters import WordsOf
from nmt.data.placeholders import BYTES, in_names, protected_pair
from nmt.data.subwords import Codec, Subwords
from nmt.data.survey import HeldOut, KeptBlock, Looked, measured
from nmt.data.text import SIDES, Block, Hashes, cut, dress_of
from nmt.data.units import Lexicon, Mask, UnitFacts, UnitIds, Units, UnitWords
from nmt.files import naming
from nmt.recipe.data_options import DataConfig, SubwordsConfig

# File of blocks of training pairs.
Codes = NDArray[np.uint8]
Numbers = NDArray[Any]


class BlockSide(NamedTuple):
    """The kept lines of one side of a block; texts as bytes."""

    # What they are learnt from and encoded by: the units as `Units` has them, with placeholders if there are some.
    units: Numbers  # with line feeds between them
    at: Numbers
    n_unit: Numbers
    n_char: Numbers
    n_word: Numbers
    # The lines, with line feeds between them; and with placeholders, where the recipe protects something.
    text: Numbers
    protected: Numbers  # empty where it is the text

    def texts(self) -> list[str]:
        """The kept lines."""
        return self.text.tobytes().decode("utf-8").split("\n")

    def learnt_texts(self) -> list[str]:
        """The kept lines with placeholders, where they have some."""
        return (self.protected if len(self.protected) else self.text).tobytes().decode(**BYTES).split("\n")


class BlockContent(NamedTuple):
    """A block that was looked at. kept: which of its pairs are not dropped."""

    kept: Mask
    sides: list[BlockSide]


def write_block(path: Path, block: BlockContent) -> int:
    """Add a block to a file. Returns its offset there."""
    content = io.BytesIO()  # numpy writes to a real file by itself, and tells nothing of a full disk
    for array in (block.kept, *itertools.chain.from_iterable(block.sides)):
        write_array(content, array)
    with path.open("ab") as file, naming(path):
        offset = file.tell()
        file.write(content.getbuffer())
    return offset


def read_block(block: KeptBlock) -> BlockContent:
    """The pairs of a block that were kept."""
    with open(block.file, "rb") as file:
        file.seek(block.offset)
        kept = read_array(file)
        return BlockContent(kept, [BlockSide(*(read_array(file) for _ in BlockSide._fields)) for _ in SIDES])


class Setup(NamedTuple):
    """Settings that all tasks share. sources: those of training, each with its own ratio of lengths. drawn: hashes of
    the sides of drawn validation pairs, to drop what is near them, and bags, one of which each such line has.
    """

    data: DataConfig
    subwords: SubwordsConfig
    folder: Path
    sources: list[CorpusFacts]
    held_out: HeldOut
    drawn: tuple[Hashes, Hashes] | None


class TextBlock(NamedTuple):
    """Pairs of a training source. first: number of the first line; src, trg: the lines, each ended by a line feed;
    flaws: places and reasons of pairs that are no text, whose lines are empty, or have a low score.
    """

    source: int
    first: int
    n_pair: int
    src: bytes
    trg: bytes
    flaws: dict[int, str]


class EncodedSide(NamedTuple):
    """Ids of the kept lines; of those that fit: how often each id, and how many words and characters there are."""

    rows: Ragged
    counts: Numbers
    n_word: int
    n_char: int


class Encoded(NamedTuple):
    """A block as ids. fits: which kept pairs are not too long; too_long: places and texts of the first few others."""

    fits: Mask
    too_long: list[tuple[int, list[str]]]
    sides: list[EncodedSide]


_UNREAD = 255  # the code of a pair of which a side is no text, or that has a low score


class Task:
    """The work on the blocks of one command."""

    def __init__(self, setup: Setup, number: int) -> None:
        """number: of this process, from 0; each has a file of its own."""
        self._setup, self._path = setup, setup.folder / f"blocks.{number}"
        self._normalize, self._words_of = setup.subwords.normalize, WordsOf(setup.subwords)
        # What is learnt from is the text itself, or else has placeholders, which nothing can be measured of.
        self._known = {name: Lexicon() for name in SIDES}
        self._known_learnt = {name: Lexicon() for name in SIDES} if setup.data.protect else self._known
        self._keys = keys_for(source.config for source in setup.sources)
        self._filters = list(map(filters_of, setup.sources))
        self._subwords: Subwords | None = None

    def decide(self, block: TextBlock) -> tuple[Codes, NDArray[Any]]:
        """Return which pairs are kept as far as their own text tells, as codes, and the keys of repeated ones."""
        sides = self._units(self._known, block.src, block.trg)
        codes = self._codes(block, sides)
        keys, kept = np.full(len(codes), NO_KEY, self._keys), codes == KEPT
        keys[kept] = keys_of(sides[0].some(kept), sides[1].some(kept), self._keys)
        return codes, keys

    def look(self, block: TextBlock, codes: Codes | None) -> Looked:
        """Filter a block and measure it; leave in the file what is needed of it later. codes: if known already."""
        sides, notes = self._units(self._known, block.src, block.trg), Counter[str]()
        codes = self._codes(block, sides) if codes is None else codes
        kept = codes == KEPT
        learnt, unlike = self._protected(sides, kept, notes)
        left = list[BlockSide]()
        for side, its in zip(sides, learnt, strict=True):
            at = its.at if kept.all() else its.at[np.repeat(kept, its.n_unit)]
            left.append(
                BlockSide(
                    units=np.frombuffer(b"\n".join(its.keys), np.uint8),
                    at=at.astype(np.uint16 if len(its.keys) <= 1 << 16 else np.uint32),
                    n_unit=its.n_unit[kept].astype(np.uint32),
                    n_char=its.n_char[kept].astype(np.uint32),
                    n_word=its.n_word()[kept].astype(np.uint32),
                    text=np.frombuffer(side.text(kept), np.uint8),
                    protected=np.frombuffer(b"" if its is side else its.text(kept), np.uint8),
                )
            )
            if ODD.search(b"".join(side.keys).decode("utf-8")):  # the different words, which are less than the text
                notes.update(odd for line in side.some(kept) for odd in oddities(line))
        offset = write_block(self._path, BlockContent(kept, left))
        return Looked(
            KeptBlock(str(self._path), offset, block.source, block.first, int(kept.sum())),
            dict(notes),
            _dropped(sides, codes, block),
            [block.first + n for n in unlike],
            [dress_of(side.text.tobytes() + b"\n") for side in left],
            **measured(*sides, kept, self._setup.held_out),
        )

    def count(self, kept: KeptBlock, chosen: Sequence[Mask]) -> tuple[list[tuple[list[str], Numbers]], Counter[str]]:
        """Count each word of the kept lines of both sides, of those that are chosen; return also what is odd."""
        block, found, notes = read_block(kept), list[tuple[list[str], Numbers]](), Counter[str]()
        for name, side, mine in zip(SIDES, block.sides, chosen, strict=True):
            known, units = self._units_of(side, name)
            at = side.at if mine.all() else side.at[np.repeat(mine, side.n_unit)]
            counts = np.bincount(at, minlength=len(units))
            occur = np.flatnonzero(counts)
            found.append(known.part(UnitWords, self._words_of).counted(units[occur], counts[occur], notes))
        return found, notes

    shifts = staticmethod(find_shifts)
    duplicates = staticmethod(count_duplicates)

    def encode(self, kept: KeptBlock, before: list[int], subwords: Path) -> Encoded:
        """Encode the kept pairs of a block. before: ids that every source begins with."""
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
        fits = np.logical_and(*(each.lengths <= self._setup.data.max_len for each in rows))
        sides = []
        for side, codec, each in zip(block.sides, codecs, rows, strict=True):
            counts = np.bincount(each.some(fits).values, minlength=codec.size)
            n_word, n_char = (int(n_of[fits].sum(dtype=np.int64)) for n_of in (side.n_word, side.n_char))
            sides.append(EncodedSide(each, counts, n_word, n_char))
        shown = np.flatnonzero(~fits)[:N_SHOWN].tolist()
        places, texts = np.flatnonzero(block.kept), [side.learnt_texts() for side in block.sides if shown]
        too_long = [(int(places[n]), [cut(in_names(side[n])) for side in texts]) for n in shown]
        return Encoded(fits, too_long, sides)

    def _ids_of_lines(self, side: BlockSide, name: str, codec: Codec) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Ids of the kept lines of a side, end to end, and how many each has."""
        if codec.speller:  # its lines have to be whole
            texts = side.learnt_texts() if len(side.n_unit) else []
            lines = Ragged.of(codec.encode(texts), np.int32)
            return lines.values, lines.lengths.astype(np.int64)
        known, units = self._units_of(side, name)
        values, n_id = known.part(UnitIds, codec).rows.of(units[side.at])
        ends = np.concatenate([[0], np.cumsum(n_id)])[np.cumsum(side.n_unit, dtype=np.int64)]
        return values, np.diff(ends, prepend=0)

    def _units_of(self, side: BlockSide, name: str) -> tuple[Lexicon, NDArray[Any]]:
        """Return the lexicon of a side, and the numbers of the units of a block there."""
        known = self._fresh(self._known_learnt, name)
        return known, known.numbers(side.units.tobytes().split(b"\n"))

    @staticmethod
    def _fresh(lexicons: dict[str, Lexicon], name: str) -> Lexicon:
        """The lexicon of a side, an empty one where it is full."""
        if lexicons[name].is_full:
            lexicons[name] = Lexicon()
        return lexicons[name]

    def _units(self, known: dict[str, Lexicon], src: bytes, trg: bytes) -> tuple[Units, Units]:
        """Both sides of some pairs, whose lines are each ended by a line feed, in units of these lexicons."""
        one, other = (self._fresh(known, name) for name in SIDES)
        return Units(src, self._normalize, one), Units(trg, self._normalize, other)

    def _codes(self, block: TextBlock, sides: tuple[Units, Units]) -> Codes:
        """Code of what each pair is dropped for, as far as its own text tells."""
        filters = self._filters[block.source]
        src, trg = (text.decode("utf-8").split("\n")[:-1] for text in (block.src, block.trg))
        reasons = (reason_to_drop(*pair, filters=filters) for pair in zip(src, trg, strict=True))
        codes = np.array([CODES[reason] if reason else KEPT for reason in reasons], np.uint8)
        codes[list(block.flaws)] = _UNREAD
        for side in sides if self._setup.drawn else ():  # nearly a side of a pair that is drawn for validation
            hashes, bags = cast(tuple[Hashes, Hashes], self._setup.drawn)
            alike = np.isin(side.sums(side.known.part(UnitFacts).bags.values[side.which]), bags)
            if alike.any():
                alike[alike] = np.isin(Block(side.some(alike)).near()[0], hashes)
                codes[alike & (codes == KEPT)] = CODES[HELD_OUT]
        return codes

    def _protected(
        self, sides: tuple[Units, Units], kept: NDArray[np.bool_], notes: Counter[str]
    ) -> tuple[tuple[Units, Units], list[int]]:
        """The kept lines as they are learnt from, with placeholders; and the pairs whose items are not the same."""
        kinds, unlike = self._setup.data.protect, list[int]()
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
        return self._units(self._known_learnt, *("\n".join([*side, ""]).encode(**BYTES) for side in lines)), unlike


def _dropped(
    sides: tuple[Units, Units], codes: Codes, block: TextBlock
) -> list[tuple[str, int, list[tuple[int, list[str]]]]]:
    """By reason: how many pairs are dropped, and of the first few the line, and the texts where they can be shown."""
    of_reason: dict[str, list[int]] = {}
    for n in np.flatnonzero(codes != KEPT).tolist():
        of_reason.setdefault(block.flaws.get(n) or REASON_OF[int(codes[n])], []).append(n)

    def shown(n: int) -> tuple[int, list[str]]:
        texts = [cut(side.line(n)) for side in sides]
        return block.first + n, texts if n not in block.flaws or any(texts) else []

    return [(reason, len(of), [shown(n) for n in of[:N_SHOWN]]) for reason, of in of_reason.items()]
