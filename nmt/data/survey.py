"""Measurements of the pairs, put together from blocks: lengths, scripts, leaks, repetitions, misaligned lines.

Nothing is kept of a pair but, on the disk and until the end, 20 bytes for its alignment and 16 for its repetitions.
"""

import itertools
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.alignment_shift import LONGEST as LONGEST_TOLD
from nmt.data.alignment_shift import RECORD, Alignment, Stretch, records_of
from nmt.data.arrays import gathered
from nmt.data.dedup import LEVELS, PAIR, PARTS, Keys, Known, Leaks
from nmt.data.letters import units_of
from nmt.data.sources import Source
from nmt.data.text import N_HASH, SIDES, Anchors, Block, Dress, Hashes, dress_of_lines, rarity_of, row_hashes
from nmt.data.units import Mask, Units, facts_of, hashes_of
from nmt.data.worker_pool import WorkerPool

# Measurements of a block of pairs for the survey.
LONGEST = 4096  # characters; longer lines are counted as so long
STEPS = 8  # of the histogram of ratios for each doubling
FARTHEST = 5  # doublings; ratios beyond are counted as these
N_STEP = 2 * STEPS * FARTHEST + 1

N_EXTREME = 3  # pairs that are shown, of the shortest and of the longest

LEAK_KEYS = [(level, part) for level in LEVELS for part in PARTS]


class HeldOut:
    """Keys of the validation and test lines, to find them again."""

    def __init__(self, known: Known, bags: Hashes) -> None:
        """bags: of all lines of both sides, which training may have on either."""
        self.known, self.bags = known, np.unique(bags)

    def packed(self) -> dict[str, Any]:
        """All of it as arrays by name, to be sent to a process that measures."""
        found = {f"known_{level}_{part}": hashes for (level, part), hashes in self.known.hashes.items()}
        return found | {"bags": self.bags}

    @classmethod
    def unpacked(cls, found: Mapping[str, Any]) -> "HeldOut":
        """HeldOut from what `packed` returned."""
        known = Known({(level, part): found[f"known_{level}_{part}"] for level, part in LEAK_KEYS})
        return cls(known, found["bags"])


class Looked(NamedTuple):
    """A block that was read, filtered and measured; what later tasks need of it lies in `file`, from `offset` on.

    dropped: reason, number of pairs, and line and texts of the first few. unlike: lines whose items of data.protect are
    not the same on both sides. dress: of source and target. The others are made by `measured` and `aligned_by`.
    """

    file: str
    offset: int
    n_kept: int
    notes: dict[str, int]
    dropped: list[list[Any]]
    unlike: list[int]
    dress: list[Dress]
    anchor_counts: NDArray[np.uint32]  # (2, N_HASH) occurrences of each hash of an anchor
    n_pair: int  # read
    lengths: NDArray[np.int32]  # (2, LONGEST + 1) kept lines of source and target, by their characters
    by_length: list[list[tuple[int, int]]]  # characters and number of the shortest and the longest kept pairs
    ratios: NDArray[np.int32]  # (N_STEP,) kept pairs
    pairs: NDArray[Any]  # hashes of the kept pairs
    src_codes: NDArray[np.uint32]  # code points of the kept lines, and how often each occurs
    src_n_code: NDArray[np.int64]
    trg_codes: NDArray[np.uint32]
    trg_n_code: NDArray[np.int64]
    leak_keys: NDArray[np.int64]  # for each hit the place in `LEAK_KEYS`, the kept pair, and the held-out line
    leak_pairs: NDArray[np.int64]
    leak_places: NDArray[np.int64]


def measured(src: Units, trg: Units, kept: Mask, held_out: HeldOut) -> dict[str, Any]:
    """Measure the kept pairs of a block, as fields of `Looked`."""
    found: dict[str, Any] = {"n_pair": len(kept)}
    n_src, n_trg = src.n_char[kept], trg.n_char[kept]
    lengths = [np.bincount(np.minimum(n_char, LONGEST), minlength=LONGEST + 1) for n_char in (n_src, n_trg)]
    found["lengths"] = np.array(lengths, np.int32)
    order = np.argsort(n_src + n_trg, kind="stable")
    extremes = order[:N_EXTREME], order[::-1][:N_EXTREME]
    found["by_length"] = [[(int(n_src[n] + n_trg[n]), int(n)) for n in some] for some in extremes]
    filled = (n_src > 0) & (n_trg > 0)
    steps = np.rint(STEPS * (np.log2(n_trg[filled] / n_src[filled]) + FARTHEST)).astype(np.int64)
    found["ratios"] = np.bincount(np.clip(steps, 0, N_STEP - 1), minlength=N_STEP).astype(np.int32)
    for name, side in zip(SIDES, (src, trg), strict=True):
        found[f"{name}_codes"], found[f"{name}_n_code"] = _characters(side, kept)
    found["pairs"] = _pairs(src, trg, kept)
    found |= _leaks(src, trg, kept, held_out)
    return found


def aligned_by(side: Units) -> tuple[dict[str, Any], NDArray[np.int64]]:
    """Return what lines are aligned by, and how often each hash of an anchor occurs.

    Of each line are told: `len`, its characters; and the words of which its anchors are chosen later, since they may
    look alike in other languages: `anchors`, their hashes end to end, and `n_anchor`, how many there are.
    """
    hashed, n_of_unit = gathered(*facts_of(side.known).words.of(side.which), side.at)
    n_of = np.add.reduceat(n_of_unit, side.first)
    told = {
        "len": np.minimum(side.n_char, LONGEST_TOLD).astype(np.uint16),
        "anchors": hashed,
        "n_anchor": n_of.astype(np.uint32),
    }
    return told, np.bincount(hashed, minlength=N_HASH)


def _characters(side: Units, kept: Mask) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Code points of the kept lines, and how often each occurs."""
    n_of = side.counts(kept)
    all_codes, n_code = facts_of(side.known).codes.of(side.which)
    counts = np.bincount(all_codes, weights=np.repeat(n_of, n_code)).astype(np.int64)
    counts[10] -= int(n_of.sum())  # the line feeds after the units
    counts[32] -= int(kept.sum())  # the space before each line
    codes = np.flatnonzero(counts)
    return codes.astype(np.uint32), counts[codes]


def _pairs(src: Units, trg: Units, kept: Mask) -> NDArray[Any]:
    pairs = np.empty(int(kept.sum()), PAIR)
    for name, side in zip(SIDES, (src, trg), strict=True):
        pairs[name] = line_hashes(side)[kept]
    return pairs


def line_hashes(side: Units) -> Hashes:
    """A hash of each line without the white space around it, put together from those of its units."""
    found = row_hashes(facts_of(side.known).hashes[side.which][side.at], side.n_unit)
    if side.is_odd.any():
        # Without the white space around it, such a line may be equal to one that is cut into units.
        rows = [units_of(" " + line.strip()) for line in side.some(side.is_odd)]
        hashes = hashes_of(Block(list(itertools.chain.from_iterable(rows))))
        found[side.is_odd] = row_hashes(hashes, np.fromiter(map(len, rows), np.int64, len(rows)))
    return found


def _leaks(src: Units, trg: Units, kept: Mask, held_out: HeldOut) -> dict[str, Any]:
    """Find the kept pairs of a block that are like held-out lines, at each level, by their numbers."""
    alike = np.zeros(len(kept), dtype=bool)
    for side in (src, trg):
        alike |= np.isin(side.sums(facts_of(side.known).bags[side.which]), held_out.bags)
    number = np.cumsum(kept) - 1
    alike &= kept
    keys, pairs, places = [], [], []
    if alike.any():
        found = Keys.of(Block(src.some(alike)), Block(trg.some(alike)))
        for key, (pair, place) in held_out.known.hits(found).items():
            keys.append(np.full(len(pair), LEAK_KEYS.index(key)))
            pairs.append(number[alike][pair])
            places.append(place)
    empty = [np.empty(0, np.int64)]
    columns = (("leak_keys", keys), ("leak_pairs", pairs), ("leak_places", places))
    return {name: np.concatenate(empty + column) for name, column in columns}


_CODES = 0x110000
_RARITY = np.dtype(np.uint32)


class Texts(NamedTuple):
    """All lines of a validation or test set, which may have several files.

    ends: how many lines there are up to the end of each of its sources.
    """

    src: list[str]
    trg: list[str]
    ends: list[int]


class Survey:
    """Gets what was measured of every block, in order, and then its records; `begin_to_finish` ends it."""

    def __init__(self, folder: Path, sources: Sequence[Source], held_out: Mapping[str, Texts]) -> None:
        """folder: where three files may stand until the end; held_out: the lines of validation and test sets."""
        names = ("survey.pairs", "survey.records", "survey.rarity")
        self._paths = dict(zip(("pairs", "records", "rarity"), (folder / name for name in names), strict=True))
        self._out = {name: path.open("wb") for name, path in self._paths.items()}
        self._files: list[tuple[Source, int]] = []  # and how many records each has
        self._anchors = np.zeros((2, N_HASH), dtype=np.int64)  # of the source that is read
        self.dress = {"train": [Dress(), Dress()]}  # by split, of its sides
        self.lengths = np.zeros((2, LONGEST + 1), dtype=np.int64)
        self.ratios = np.zeros(N_STEP, dtype=np.int64)
        self._characters = np.zeros((2, _CODES), dtype=np.int64)
        self.n_kept = 0
        self.shortest: list[tuple[int, int]] = []  # kept pairs: characters of both sides, number
        self.longest: list[tuple[int, int]] = []
        self.alignments: list[tuple[Source, Alignment]] = []
        self.duplicates: dict[str, Any] = {}
        keys, bags = {}, np.empty(0, np.uint64)
        for split, (src, trg, ends) in held_out.items():
            self.dress[split] = [dress_of_lines(src), dress_of_lines(trg)]
            blocks = Block(src), Block(trg)
            keys[split] = Keys.of(*blocks)
            bags = np.concatenate([bags, *(block.bags() for block in blocks)])
            of_split = (source for source in sources if source.split == split)
            for source, (start, end) in zip(of_split, itertools.pairwise([0, *ends]), strict=True):
                self._files.append((source, end - start))
                records = records_of(Block(src[start:end]), Block(trg[start:end]), Anchors())
                self._out["records"].write(records.tobytes())
        self.leaks = Leaks(keys)
        self.held_out = HeldOut(self.leaks.known, bags)

    def begin(self, source: Source) -> None:
        """The blocks that follow are those of this source."""
        self._files.append((source, 0))
        self._anchors[:] = 0

    def add(self, found: Looked) -> None:
        """Add the next block."""
        source, n_pair = self._files[-1]
        self._files[-1] = source, n_pair + found.n_pair
        self.dress["train"] = [a.plus(Dress(*b)) for a, b in zip(self.dress["train"], found.dress, strict=True)]
        shortest, longest = ([(n, self.n_kept + place) for n, place in some] for some in found.by_length)
        self.shortest = sorted([*self.shortest, *shortest])[:N_EXTREME]
        self.longest = sorted([*self.longest, *longest], key=lambda one: (-one[0], one[1]))[:N_EXTREME]
        self.lengths += found.lengths
        self.ratios += found.ratios
        self._characters[0, found.src_codes] += found.src_n_code
        self._characters[1, found.trg_codes] += found.trg_n_code
        self._out["pairs"].write(found.pairs.tobytes())
        for n, key in enumerate(LEAK_KEYS):
            mine = found.leak_keys == n
            self.leaks.note(key, self.n_kept + found.leak_pairs[mine], found.leak_places[mine])
        self.n_kept += len(found.pairs)
        # Which words are rare is told by the blocks so far, as it is told of any other split of the work.
        self._anchors += found.anchor_counts
        self._out["rarity"].write(rarity_of(self._anchors).astype(_RARITY).tobytes())

    def rarity(self, n_block: int) -> NDArray[np.uint32]:
        """Count each anchor in the source of a block up to its end."""
        self._out["rarity"].flush()
        return np.fromfile(self._paths["rarity"], _RARITY, N_HASH, offset=n_block * N_HASH * _RARITY.itemsize)

    def add_records(self, records: bytes) -> None:
        """Add the records of the next block, for `find_shifts`."""
        assert len(records) % RECORD.itemsize == 0
        self._out["records"].write(records)

    def begin_to_finish(self, workers: WorkerPool) -> Callable[[Callable[[int], object]], None]:
        """Have the conclusions drawn that need all pairs. The answer, when called, waits for them.

        It is given what is told how many pairs more have been looked at.
        """
        for file in self._out.values():
            file.close()
        start, waiting = 0, []
        for _, n_pair in self._files:
            task = {"path": str(self._paths["records"]), "first": start, "n_pair": n_pair}
            waiting.append(workers.submit("shifts", task))
            start += n_pair
        duplicates = workers.submit("duplicates", {"path": str(self._paths["pairs"])})

        def finish(done: Callable[[int], object]) -> None:
            for (source, n_pair), found in zip(self._files, waiting, strict=True):
                told = found.result()
                stretches = tuple(Stretch(*each) for each in told["stretches"])
                self.alignments.append((source, Alignment(told["n_pair"], stretches, told["strength"])))
                done(n_pair)
            self.duplicates = duplicates.result()
            for path in self._paths.values():
                path.unlink()

        return finish

    def scripts(self) -> dict[str, dict[str, int]]:
        """Count the characters of each kind that the kept pairs have on each side, most frequent first."""
        found = {side: Counter[str]() for side in SIDES}
        for of, counts in zip(found.values(), self._characters, strict=True):
            for code in np.flatnonzero(counts).tolist():
                of[script_of(chr(code))] += int(counts[code])
        return {side: dict(sorted(of.items(), key=lambda each: (-each[1], each[0]))) for side, of in found.items()}


def script_of(character: str) -> str:
    """The script of a letter, as its name says it, or the kind of another character."""
    kind = unicodedata.category(character)
    if kind[0] == "L":
        # Named by the script first, in all of Unicode: LATIN SMALL LETTER A, CJK UNIFIED IDEOGRAPH-4E00.
        name = unicodedata.name(character, "unnamed").removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ")
        word = name.partition(" ")[0].partition("-")[0]
        return "Chinese characters" if word in ("CJK", "IDEOGRAPHIC") else word.capitalize()
    kinds = {"M": "marks", "N": "numbers", "P": "punctuation", "S": "symbols", "Z": "white space", "C": "control"}
    return "white space" if character == "\t" else kinds[kind[0]]
