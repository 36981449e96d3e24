"""Measurements of the training pairs, put together from blocks: overlap, repetitions, misaligned lines.

Nothing is kept of a pair but, on the disk and until the end, 20 bytes for its alignment and 16 for its repetitions.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.alignment_shift import records_of
from nmt.data.arrays import gathered
from nmt.data.dedup import PAIR, Keys, Leaks, hits
from nmt.data.letters import units_of
from nmt.data.sources import Source
from nmt.data.text import SIDES, Block, Dress, Hashes, Words, dress_of_lines, row_hashes
from nmt.data.units import Mask, Numbers, Units, facts_of
from nmt.data.worker_pool import WorkerPool

N_EXTREME = 3  # pairs that are shown, of the shortest and of the longest


class Looked(NamedTuple):
    """A block that was read, filtered and measured; what later tasks need of it lies in `file`, from `offset` on.

    source, first: number of its source, and of its first line there. dropped: reason, number of pairs, and line and
    texts of the first few. unlike: lines whose items of data.protect are not the same on both sides. dress: of source
    and target. The last five are made by `measured`.
    """

    source: int
    first: int
    file: str
    offset: int
    n_kept: int
    notes: dict[str, int]
    dropped: list[tuple[str, int, list[tuple[int, list[str]]]]]
    unlike: list[int]
    dress: list[Dress]
    n_pair: int  # read
    by_length: list[list[tuple[int, int]]]  # characters and number of the shortest and the longest kept pairs
    pairs: NDArray[Any]  # hashes of the kept pairs
    records: bytes  # of all pairs, for `find_shifts`
    leaks: dict[tuple[str, str], tuple[Numbers, Numbers]]  # by level and part: kept pairs, places of held-out lines


class HeldOut(NamedTuple):
    """Keys of the validation and test lines, to find them again. bags: of both sides, which may be on either."""

    known: dict[tuple[str, str], Hashes]
    bags: Hashes


def measured(src: Units, trg: Units, kept: Mask, held_out: HeldOut) -> dict[str, Any]:
    """Measure the pairs of a block, as fields of `Looked`."""
    n_char = (src.n_char + trg.n_char)[kept]
    order = np.argsort(n_char, kind="stable")
    pairs = np.empty(len(order), PAIR)
    for name, side in zip(SIDES, (src, trg), strict=True):
        pairs[name] = line_hashes(side)[kept]
    return {
        "n_pair": len(kept),
        "by_length": [[(int(n_char[n]), int(n)) for n in some[:N_EXTREME]] for some in (order, order[::-1])],
        "pairs": pairs,
        "records": records_of((src.n_char, trg.n_char), (words_of(src), words_of(trg))).tobytes(),
        "leaks": _leaks(src, trg, kept, held_out),
    }


def words_of(side: Units) -> Words:
    """The words that may look alike in other languages, as `Block.words` finds them in lines."""
    hashed, n_of_unit = gathered(*facts_of(side.known).words.of(side.which), side.at)
    n_of = np.add.reduceat(n_of_unit, side.first)
    return hashed, np.repeat(np.arange(len(n_of)), n_of)


def line_hashes(side: Units) -> Hashes:
    """A hash of each line without the white space around it, put together from those of its units."""
    found = row_hashes(facts_of(side.known).hashes[side.which][side.at], side.n_unit)
    if side.is_odd.any():
        # Without the white space around it, such a line may be equal to one that is cut into units.
        rows = [units_of(" " + line.strip()) for line in side.some(side.is_odd)]
        hashes = Block(list(itertools.chain.from_iterable(rows))).hashes()
        found[side.is_odd] = row_hashes(hashes, np.fromiter(map(len, rows), np.int64, len(rows)))
    return found


def _leaks(src: Units, trg: Units, kept: Mask, held_out: HeldOut) -> dict[tuple[str, str], tuple[Numbers, Numbers]]:
    """Find the kept pairs of a block that are like held-out lines, at each level, by their numbers."""
    alike = np.zeros(len(kept), dtype=bool)
    for side in (src, trg):
        alike |= np.isin(side.sums(facts_of(side.known).bags[side.which]), held_out.bags)
    alike &= kept
    if not alike.any():
        return {}
    numbers = (np.cumsum(kept) - 1)[alike]
    found = hits(held_out.known, Keys.of(Block(src.some(alike)), Block(trg.some(alike))))
    return {key: (numbers[pairs], places) for key, (pairs, places) in found.items()}


class Texts(NamedTuple):
    """All lines of a validation or test set, which may have several files.

    ends: how many lines there are up to the end of each of its sources.
    """

    src: list[str]
    trg: list[str]
    ends: list[int]


class Survey:
    """Gets what was measured of every block, in order; `begin_to_finish` ends it."""

    def __init__(self, folder: Path, sources: Sequence[Source], held_out: Mapping[str, Texts]) -> None:
        """folder: where two files may stand until the end; held_out: the lines of validation and test sets."""
        self._pair_path, self._record_path = folder / "survey.pairs", folder / "survey.records"
        self._pairs, self._records = self._pair_path.open("wb"), self._record_path.open("wb")
        self._files: list[tuple[Source, int]] = []  # and how many records each has
        self.dress = {"train": [Dress(), Dress()]}  # by split, of its sides
        self.n_kept = 0
        self.shortest: list[tuple[int, int]] = []  # kept pairs: characters of both sides, number
        self.longest: list[tuple[int, int]] = []
        self.alignments: list[tuple[Source, dict[str, Any]]] = []  # as `find_shifts` returns them
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
                one, other = Block(src[start:end]), Block(trg[start:end])
                records = records_of((one.lengths, other.lengths), (one.words(), other.words()))
                self._records.write(records.tobytes())
        self._first_training = len(self._files)
        self._files += [(source, 0) for source in sources if source.split == "train"]
        self.leaks = Leaks(keys)
        self.held_out = HeldOut(self.leaks.known, np.unique(bags))

    def add(self, found: Looked) -> None:
        """Add the next block."""
        n = self._first_training + found.source
        self._files[n] = self._files[n][0], self._files[n][1] + found.n_pair
        self.dress["train"] = [a.plus(Dress(*b)) for a, b in zip(self.dress["train"], found.dress, strict=True)]
        shortest, longest = ([(n, self.n_kept + place) for n, place in some] for some in found.by_length)
        self.shortest = sorted([*self.shortest, *shortest])[:N_EXTREME]
        self.longest = sorted([*self.longest, *longest], key=lambda one: (-one[0], one[1]))[:N_EXTREME]
        self._pairs.write(found.pairs.tobytes())
        self._records.write(found.records)
        for key, (pairs, places) in found.leaks.items():
            self.leaks.note(key, self.n_kept + pairs, places)
        self.n_kept += len(found.pairs)

    def begin_to_finish(self, workers: WorkerPool) -> Callable[[Callable[[int], object]], None]:
        """Have the conclusions drawn that need all pairs. The answer, when called, waits for them.

        It is given what is told how many pairs more have been looked at.
        """
        self._pairs.close()
        self._records.close()
        start, waiting = 0, []
        for _, n_pair in self._files:
            waiting.append(workers.submit("shifts", self._record_path, start, n_pair))
            start += n_pair
        duplicates = workers.submit("duplicates", self._pair_path)

        def finish(done: Callable[[int], object]) -> None:
            for (source, n_pair), found in zip(self._files, waiting, strict=True):
                self.alignments.append((source, found.result()))
                done(n_pair)
            self.duplicates = duplicates.result()
            self._pair_path.unlink()
            self._record_path.unlink()

        return finish
