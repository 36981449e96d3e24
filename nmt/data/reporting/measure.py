"""Measurements of a block of pairs for the survey: counts that are summed over blocks, hashes, and words to align by.

One block in, arrays out, and nothing is remembered, so blocks may be measured anywhere and in any order. What becomes
of the arrays is in `survey.py`.
"""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays.ragged import GrownRows, gathered
from nmt.data.reporting.duplicates import PAIR
from nmt.data.reporting.leaks import LEVELS, PARTS, Keys, Known
from nmt.data.reporting.shift import LONGEST as LONGEST_TOLD
from nmt.data.text.facts import N_HASH, Block, Hashes, row_hashes, smallest
from nmt.data.text.split_names import SIDES
from nmt.data.units.block_units import Mask, Numbers, Units
from nmt.data.units.unit_facts import facts_of, hashes_of
from nmt.data.vocabulary.letters import units_of

LONGEST = 4096  # characters; longer lines are counted as so long
STEPS = 8  # bars of the histogram of ratios for each doubling
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


def measured(src: Units, trg: Units, kept: Mask, held_out: HeldOut) -> dict[str, Any]:
    """Measure a block for `Survey.add`: counts of all pairs of a block, and of those that are kept."""
    found: dict[str, Any] = {}
    lengths = np.zeros((2, 2, LONGEST + 1), dtype=np.int32)
    for n, (name, side) in enumerate(zip(SIDES, (src, trg), strict=True)):
        clipped = np.minimum(side.n_char, LONGEST)
        lengths[n] = [np.bincount(chosen, minlength=LONGEST + 1) for chosen in (clipped, clipped[kept])]
        found[f"{name}_codes"], found[f"{name}_n_code"] = _characters(side, kept)
    found["lengths"] = lengths
    found["by_length"] = _extremes((src.n_char + trg.n_char)[kept])
    found["ratios"] = _ratios(src.n_char, trg.n_char, kept)
    found["pairs"] = _pairs(src, trg, kept)
    found |= _leaks(src, trg, kept, held_out)
    return found


def aligned_by(side: Units) -> tuple[dict[str, Any], NDArray[np.int64]]:
    """Return what lines are aligned by, and how often each hash of an anchor occurs.

    Of each line are told: `len`, its characters; `marks`; and the words of which its anchors are chosen later, since
    they may look alike in other languages: `anchors`, their hashes end to end, and `n_anchor`, how many there are.
    """
    facts = facts_of(side.known)
    hashed, n_of = _of_lines(side, facts.words)
    marks, n_mark = _of_lines(side, facts.marks)
    told = {
        "len": np.minimum(side.n_char, LONGEST_TOLD).astype(np.uint16),
        "marks": smallest(marks, np.repeat(np.arange(len(n_mark), dtype=np.uint32), n_mark), len(n_mark)),
        "anchors": hashed,
        "n_anchor": n_of.astype(np.uint32),
    }
    return told, np.bincount(hashed, minlength=N_HASH)


def _of_lines(side: Units, rows: GrownRows) -> tuple[NDArray[np.uint16], Numbers]:
    """From the hashes of units to those of lines, end to end; and how many each line has."""
    values, n_of = gathered(*rows.of(side.which), side.at)
    return values, np.add.reduceat(n_of, side.first)


def _characters(side: Units, kept: Mask) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Code points of the kept lines, and how often each occurs."""
    n_of = side.counts(kept)
    all_codes, n_code = facts_of(side.known).codes.of(side.which)
    counts = np.bincount(all_codes, weights=np.repeat(n_of, n_code)).astype(np.int64)
    counts[10] -= int(n_of.sum())  # the line feeds after the units
    counts[32] -= int(kept.sum())  # the space before each line
    codes = np.flatnonzero(counts)
    return codes.astype(np.uint32), counts[codes]


def _extremes(n_char: Numbers) -> list[list[tuple[int, int]]]:
    """The shortest and the longest kept pairs of a block: characters and number of each."""
    order = np.argsort(n_char, kind="stable")
    return [[(int(n_char[n]), int(n)) for n in some] for some in (order[:N_EXTREME], order[::-1][:N_EXTREME])]


def _ratios(n_src: NDArray[np.int64], n_trg: NDArray[np.int64], kept: Mask) -> NDArray[np.int32]:
    filled = (n_src > 0) & (n_trg > 0)
    steps = np.zeros(len(filled), dtype=np.int64)
    steps[filled] = np.rint(STEPS * np.log2(n_trg[filled] / n_src[filled])).astype(np.int64)
    steps = np.clip(steps, -STEPS * FARTHEST, STEPS * FARTHEST) + STEPS * FARTHEST
    return np.array([np.bincount(steps[chosen], minlength=N_STEP) for chosen in (filled, filled & kept)], np.int32)


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
