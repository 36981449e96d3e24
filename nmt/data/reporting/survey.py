"""Measurements of the pairs, put together from blocks: lengths, scripts, leaks, repetitions, shifted lines.

What a block has is measured in `measure.py`. Nothing is kept of a pair but, on the disk and until the end, 52 bytes for
its alignment and 16 for its repetitions.
"""

import itertools
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.reading.sources import Source
from nmt.data.reporting.leaks import Keys, Leaks
from nmt.data.reporting.measure import LEAK_KEYS, LONGEST, N_EXTREME, N_STEP, HeldOut
from nmt.data.reporting.shift import RECORD, Alignment, Stretch, records_of
from nmt.data.text.facts import N_HASH, Anchors, Block, rarity_of
from nmt.data.text.moses import Dress, dress_of_lines
from nmt.data.text.split_names import SIDES
from nmt.data.worker_pool import WorkerPool

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
        self.lengths = np.zeros((2, 2, LONGEST + 1), dtype=np.int64)  # side; read, kept
        self.ratios = np.zeros((2, N_STEP), dtype=np.int64)  # read, kept
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

    def add(self, found: Mapping[str, Any]) -> None:
        """The next block. found: what `measured` says, and in `anchor_counts` how often each anchor occurs."""
        source, n_pair = self._files[-1]
        self._files[-1] = source, n_pair + int(found["lengths"][0, 0].sum())
        self.dress["train"] = [a.plus(Dress(*b)) for a, b in zip(self.dress["train"], found["dress"], strict=True)]
        shortest, longest = ([(n, self.n_kept + place) for n, place in some] for some in found["by_length"])
        self.shortest = sorted([*self.shortest, *shortest])[:N_EXTREME]
        self.longest = sorted([*self.longest, *longest], key=lambda one: (-one[0], one[1]))[:N_EXTREME]
        self.lengths += found["lengths"]
        self.ratios += found["ratios"]
        for side, name in enumerate(SIDES):
            self._characters[side, found[f"{name}_codes"]] += found[f"{name}_n_code"]
        self._out["pairs"].write(found["pairs"].tobytes())
        for n, key in enumerate(LEAK_KEYS):
            mine = found["leak_keys"] == n
            self.leaks.note(key, self.n_kept + found["leak_pairs"][mine], found["leak_places"][mine])
        self.n_kept += len(found["pairs"])
        # Which words are rare is told by the blocks so far, as it is told of any other split of the work.
        self._anchors += found["anchor_counts"]
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
        return {side: _by_script(counts) for side, counts in zip(SIDES, self._characters, strict=True)}


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
        name = unicodedata.name(character, "unnamed").removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ")
        word = name.partition(" ")[0].partition("-")[0]
        return "Chinese characters" if word in ("CJK", "IDEOGRAPHIC") else word.capitalize()
    kinds = {"M": "marks", "N": "numbers", "P": "punctuation", "S": "symbols", "Z": "white space", "C": "control"}
    return "white space" if character == "\t" else kinds[kind[0]]
