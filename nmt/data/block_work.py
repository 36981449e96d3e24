"""Tasks on a block of training pairs, in this process or in a worker: read and filter, measure, count units, encode.
And the conclusions from files of all blocks.

Each task is a function of the block and of what all blocks share, so any process may do it. What a later task needs of
a block lies in a file; `keep.py` makes the blocks, hands them round and puts the answers together.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from nmt.data.alignment_shift import RECORD, find_shifts
from nmt.data.arrays import Ragged, gathered
from nmt.data.corpus import dtype_of_ids
from nmt.data.dedup import N_SHOWN, count_duplicates, keys_of, kinds_of
from nmt.data.filters import (
    CODES,
    HELD_OUT,
    KEPT,
    ODD,
    REASON_OF,
    Filter,
    UsualRatio,
    filters_of,
    most_bytes,
    oddities,
    reason_to_drop,
)
from nmt.data.letters import WordsOf
from nmt.data.placeholders import BYTES, in_names, protected_pair
from nmt.data.subwords import Codec, Subwords
from nmt.data.survey import Looked, aligned_by, measured
from nmt.data.text import SIDES, Block, Rarity, cut, dress_of
from nmt.data.units import KnownCuts, Lexicon, Units, facts_of, ids_in, read_cut_words, words_in
from nmt.data.worker_pool import Work, serve_as_worker
from nmt.processes import read_packed, write_packed
from nmt.recipe.data_options import DataConfig, FilterConfig, SubwordsConfig

# File of blocks of training pairs.
Mask = NDArray[np.bool_]
Numbers = NDArray[Any]


class BlockSide(NamedTuple):
    """One side of a block. Everything but the texts is of all lines, those that are dropped too."""

    # For the alignment of lines, as `survey.aligned_by` gives it.
    len: Numbers
    anchors: Numbers
    n_anchor: Numbers
    # What they are learnt from and encoded by: the units as `Units` has them, with placeholders if there are some.
    units: bytes  # with line feeds between them
    at: Numbers
    n_unit: Numbers
    n_char: Numbers
    n_word: Numbers
    # The kept lines, with line feeds between them; and with placeholders, where the recipe protects something.
    text: bytes
    protected: bytes | None = None

    @property
    def learnt(self) -> bytes:
        """The kept lines as they are learnt from."""
        return self.text if self.protected is None else self.protected

    def texts(self) -> list[str]:
        """The kept lines."""
        return self.text.decode("utf-8").split("\n")

    def learnt_texts(self) -> list[str]:
        """The kept lines with placeholders, where they have some."""
        return self.learnt.decode(**BYTES).split("\n")


class BlockContent(NamedTuple):
    """A block that was looked at. kept: which of its pairs are not dropped."""

    kept: Mask
    src: BlockSide
    trg: BlockSide

    @property
    def sides(self) -> tuple[BlockSide, BlockSide]:
        """The source side, and the target side."""
        return self.src, self.trg

    def place(self, n: int) -> int:
        """The place of the n-th kept pair among all pairs of the block, both from 0."""
        return int(np.flatnonzero(self.kept)[n])


def write_block(path: Path, block: BlockContent) -> int:
    """Add a block to a file. Returns its offset there."""
    content: dict[str, Any] = {"kept": block.kept}
    for name, side in zip(SIDES, block.sides, strict=True):
        content |= {f"{name}_{key}": value for key, value in side._asdict().items() if value is not None}
    with path.open("ab") as file:
        offset = file.tell()
        write_packed(cast(BinaryIO, file), content)
    return offset


def read_block(path: str, offset: int) -> BlockContent:
    """The block that lies there."""
    with open(path, "rb") as file:
        file.seek(offset)
        found = read_packed(file.read)
    assert found is not None, "a block is not where it was written"
    src, trg = (
        BlockSide(**{key: found[f"{name}_{key}"] for key in BlockSide._fields if f"{name}_{key}" in found})
        for name in SIDES
    )
    return BlockContent(found["kept"], src, trg)


_UNREAD = 255  # the code of a pair of which a side is no text


class Task:
    """The work on the blocks of one command."""

    def __init__(self, setup: Mapping[str, Any], number: int = 0) -> None:
        """setup: what `keep_training_pairs` says. number: of this process, from 0; each has a file of its own."""
        self._config = DataConfig.model_validate(setup["data"], context=True)
        subwords = SubwordsConfig.model_validate(setup["subwords"])
        self._normalize, self._words_of = subwords.normalize, WordsOf(subwords)
        # What is learnt from is the text itself, or else has placeholders, which nothing can be measured of.
        self._known = {name: Lexicon() for name in SIDES}
        self._known_learnt = {name: Lexicon() for name in SIDES} if self._config.protect else self._known
        self._path = Path(setup["folder"]) / f"blocks.{number}"
        self._sources = setup["sources"]
        self._kinds = kinds_of(FilterConfig.model_validate(source["filters"]) for source in self._sources)
        self._setup = setup
        self._drawn, self._drawn_bags = (setup.get(name, np.empty(0, np.uint64)) for name in ("drawn", "drawn_bags"))
        self._longest = most_bytes(self._config.max_len) + 8  # what is cut there is too long all the same
        self._filters = [self._filters_of(source) for source in self._sources]
        self._subwords: Subwords | None = None
        self._cuts: list[KnownCuts] = []

    def _filters_of(self, source: Mapping[str, Any]) -> list[Filter]:
        usual = UsualRatio(*source["usual"]) if source["usual"] else None
        languages = source["languages"][0], source["languages"][1]
        return filters_of(FilterConfig.model_validate(source["filters"]), self._config.max_len, languages, usual)

    def decide(self, block: Mapping[str, Any]) -> dict[str, Any]:
        """Return which pairs are kept as far as their own text tells, as codes, and the keys of repeated ones."""
        sides, codes, *_ = self._read(block)
        kept = codes == KEPT
        return {"codes": codes, **keys_of(sides[0].some(kept), sides[1].some(kept), self._kinds)}

    def look(self, block: Mapping[str, Any]) -> dict[str, Any]:
        """Filter a block and measure it; leave in the file what is needed of it later. Returns the fields of `Looked`.

        block: as `blocks_of` gives it, with the number of its `source`, and `codes` where they are known already.
        """
        sides, codes, before, notes = self._read(block)
        kept = codes == KEPT
        learnt, unlike = self._protected(sides, kept, notes)
        left, counts = list[BlockSide](), []
        for side, its in zip(sides, learnt, strict=True):
            told, count = aligned_by(side)
            counts.append(count)
            left.append(
                BlockSide(
                    **told,
                    units=b"\n".join(its.keys),
                    at=its.at.astype(np.uint16 if len(its.keys) <= 1 << 16 else np.uint32),
                    n_unit=its.n_unit.astype(np.uint32),
                    n_char=its.n_char.astype(np.uint32),
                    n_word=its.n_word().astype(np.uint32),
                    text=side.text(kept),
                    protected=None if its is side else its.text(kept),
                )
            )
            self._note(side, kept, notes)
        offset = write_block(self._path, BlockContent(kept, *left))
        return Looked(
            str(self._path),
            offset,
            int(kept.sum()),
            dict(notes),
            _dropped(sides, codes, before, block),
            [block["first"] + n for n in unlike],
            [dress_of(side.text + b"\n") for side in left],
            np.array(counts, np.uint32),
            **measured(*sides, kept, self._setup),
        )._asdict()

    def count(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Count each word of the kept lines, and make the records by which all lines are aligned.

        task: file and offset of the block; `rarity` of anchors; `words`: whether words are counted; `src_chosen`,
        `trg_chosen`: the kept lines that count, where it is not all.
        """
        block = read_block(task["file"], task["offset"])
        answer: dict[str, Any] = {}
        notes = Counter[str]()
        records, rarity = np.empty(len(block.kept), RECORD), Rarity(task["rarity"])
        for name, side in zip(SIDES, block.sides, strict=True):
            at, n_unit = side.at, side.n_unit
            line = np.repeat(np.arange(len(n_unit), dtype=np.uint32), side.n_anchor)
            records[f"{name}_len"] = side.len
            records[f"{name}_anchors"] = rarity.rarest(side.anchors, line, len(n_unit))
            if not task["words"]:
                continue
            chosen = block.kept
            if f"{name}_chosen" in task:
                chosen = chosen.copy()
                chosen[chosen] = task[f"{name}_chosen"]
            known, units = self._units_of(side, name)
            counts = np.bincount(at if chosen.all() else at[np.repeat(chosen, n_unit)], minlength=len(units))
            occur = np.flatnonzero(counts)
            words, answer[f"{name}_n"] = words_in(known, self._words_of).counted(units[occur], counts[occur], notes)
            answer[f"{name}_words"] = "\n".join(words).encode("utf-8")
        return {**answer, "records": records.tobytes(), "notes": dict(notes)}

    def shifts(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Find misaligned lines of two files. task: `path` of the records, the `first` of the files, `n_pair`."""
        return find_shifts(Path(task["path"]), task["first"], task["n_pair"])

    def duplicates(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Count repeated pairs. task: `path` of the hashes of pairs."""
        return count_duplicates(Path(task["path"]))

    def encode(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """The ids of the kept pairs of a block, and which of them are not too long.

        task: file and offset of the block; `subwords`: their file; `cut_words`: for each vocabulary the file of how
        words are cut, or none; `before`: ids that every source begins with.
        """
        if self._subwords is None:
            self._subwords = Subwords.load(task["subwords"])
            paths = [Path(path) if path else None for path in task["cut_words"]]
            cuts = {path: read_cut_words(path) for path in paths}
            self._cuts = [cuts[paths[0]], cuts[paths[-1]]]
        dtype, block = dtype_of_ids(self._subwords), read_block(task["file"], task["offset"])
        codecs, rows = (self._subwords.src, self._subwords.trg), []
        for name, side, codec, cuts_of in zip(SIDES, block.sides, codecs, self._cuts, strict=True):
            values, lengths = self._ids_of_lines(side, block.kept, name, codec, cuts_of)
            if name == "src" and task["before"]:
                starts = np.cumsum(lengths, dtype=np.int64) - lengths
                values = np.insert(values, np.repeat(starts, len(task["before"])), task["before"] * len(starts))
                lengths = lengths + len(task["before"])
            rows.append(Ragged(values.astype(dtype), lengths.astype(np.int32)))
        fits = np.logical_and(*(each.lengths <= self._config.max_len for each in rows))
        answer: dict[str, Any] = {"fits": fits, "too_long": _too_long(block, fits)}
        for name, side, codec, each in zip(SIDES, block.sides, codecs, rows, strict=True):
            answer |= {f"{name}_values": each.values, f"{name}_lengths": each.lengths}
            answer[f"{name}_counts"] = np.bincount(each.some(fits).values, minlength=codec.size)
            for what, of_lines in (("n_word", side.n_word), ("n_char", side.n_char)):
                answer[f"{name}_{what}"] = int(of_lines[block.kept][fits].sum(dtype=np.int64))
        return answer

    def _ids_of_lines(
        self, side: BlockSide, kept: NDArray[np.bool_], name: str, codec: Codec, cuts: KnownCuts
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Ids of the kept lines of a side, end to end, and how many each has."""
        n_unit = side.n_unit.astype(np.int64)
        if codec.sentencepiece:  # its lines have to be whole
            texts = side.learnt_texts() if kept.any() else []
            lines = Ragged.of(codec.encode(texts), np.dtype(np.int32))
            return lines.values, lines.lengths.astype(np.int64)
        known, units = self._units_of(side, name)
        ids = ids_in(known, self._words_of, codec, cuts).rows.of(units)
        values, n_id = gathered(*ids, side.at if kept.all() else side.at[np.repeat(kept, n_unit)])
        ends = np.concatenate([[0], np.cumsum(n_id)])[np.cumsum(n_unit[kept])]
        return values, np.diff(ends, prepend=0)

    def _units_of(self, side: BlockSide, name: str) -> tuple[Lexicon, NDArray[Any]]:
        """Return the lexicon of a side, and the numbers of the units of a block there."""
        known = self._fresh(self._known_learnt, name)
        return known, known.numbers(side.units.split(b"\n"))

    @staticmethod
    def _fresh(lexicons: dict[str, Lexicon], name: str) -> Lexicon:
        """The lexicon of a side, an empty one where it is full."""
        if lexicons[name].is_full:
            lexicons[name] = Lexicon()
        return lexicons[name]

    def _read(
        self, block: Mapping[str, Any]
    ) -> tuple[tuple[Units, Units], NDArray[np.uint8], dict[int, str], Counter[str]]:
        """Both sides of a block; what each pair is dropped for, as a code; why some cannot be read; what is odd."""
        notes, unread, texts = Counter[str](), dict(block["flaws"]), [block[name] for name in SIDES]
        src, trg = (
            Units(text, self._normalize, self._fresh(self._known, name))
            for name, text in zip(SIDES, texts, strict=True)
        )
        if "codes" in block:
            return (src, trg), block["codes"], unread, notes
        filters = self._filters[block["source"]]
        src_lines, trg_lines = (text.decode("utf-8").split("\n")[:-1] for text in texts)
        reasons = (reason_to_drop(*pair, filters=filters) for pair in zip(src_lines, trg_lines, strict=True))
        codes = np.array([CODES[reason] if reason else KEPT for reason in reasons], np.uint8)
        codes[list(unread)] = _UNREAD
        codes[self._is_drawn(src, trg) & (codes == KEPT)] = CODES[HELD_OUT]
        return (src, trg), codes, unread, notes

    def _is_drawn(self, src: Units, trg: Units) -> NDArray[np.bool_]:
        """Pairs of which a side is, nearly, one of a pair that is drawn for validation."""
        found = np.zeros(len(src), dtype=bool)
        for side in (src, trg) if len(self._drawn) else ():
            alike = np.isin(side.sums(facts_of(side.known).bags[side.which]), self._drawn_bags)
            if alike.any():
                found[alike] |= np.isin(Block(side.some(alike)).near()[0], self._drawn)
        return found

    def _protected(
        self, sides: tuple[Units, Units], kept: NDArray[np.bool_], notes: Counter[str]
    ) -> tuple[tuple[Units, Units], list[int]]:
        """The kept lines as they are learnt from, with placeholders; and the pairs whose items are not the same."""
        kinds, unlike = self._config.protect, list[int]()
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
        src_units, trg_units = (
            Units(_joined(side), self._normalize, self._fresh(self._known_learnt, name))
            for name, side in zip(SIDES, lines, strict=True)
        )
        return (src_units, trg_units), unlike

    def _note(self, side: Units, kept: NDArray[np.bool_], notes: Counter[str]) -> None:
        if ODD.search(b"".join(side.keys).decode("utf-8")):  # the different words, which are less than the text
            notes.update(odd for line in side.some(kept) for odd in oddities(line))


def _joined(lines: Sequence[str]) -> bytes:
    """Lines, each ended by a line feed; they may have placeholders."""
    return "\n".join([*lines, ""]).encode(**BYTES)


def _dropped(
    sides: tuple[Units, Units], codes: NDArray[np.uint8], unread: Mapping[int, str], block: Mapping[str, Any]
) -> list[list[Any]]:
    """By reason: how many pairs are dropped, and of the first few the line, and the texts where they can be shown."""
    of_reason: dict[str, list[int]] = {}
    for n in np.flatnonzero(codes != KEPT).tolist():
        of_reason.setdefault(unread.get(n) or REASON_OF[int(codes[n])], []).append(n)
    return [
        [reason, len(of), [[block["first"] + n, *_shown(sides, n, unread)] for n in of[:N_SHOWN]]]
        for reason, of in of_reason.items()
    ]


def _shown(sides: tuple[Units, Units], n: int, unread: Mapping[int, str]) -> list[str]:
    return [] if n in unread else [cut(side.line(n)) for side in sides]


def _too_long(block: BlockContent, fits: NDArray[np.bool_]) -> list[list[Any]]:
    """Of each pair that is too long its number among the lines of the block; of the first few the texts, too."""
    found: list[list[Any]] = []
    if not fits.all():
        numbers, texts = np.flatnonzero(block.kept), [side.learnt_texts() for side in block.sides]
        for n in np.flatnonzero(~fits).tolist():
            shown = [cut(in_names(side[n])) for side in texts] if len(found) < N_SHOWN else []
            found.append([int(numbers[n]), *shown])
    return found


def task_of(setup: Mapping[str, Any], number: int) -> Work:
    """Return the function that does a task by its name. number: of this process among those that work, from 0."""
    tasks = Task(setup, number)
    by_name = {
        "decide": tasks.decide,
        "look": tasks.look,
        "count": tasks.count,
        "shifts": tasks.shifts,
        "duplicates": tasks.duplicates,
        "encode": tasks.encode,
    }
    return lambda name, content: by_name[name](content)


if __name__ == "__main__":
    sys.exit(serve_as_worker(task_of))
