"""The training pairs that are kept: files of their blocks, and a survey of overlap, repetitions and misaligned lines.

For the survey each pair takes 36 bytes on the disk: 20 for its alignment, 16 to find repetitions.
"""

import bisect
import itertools
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.alignment_shift import records_of
from nmt.data.dedup import N_SHOWN, PAIR, Hits, Leaks, hits, overlap_keys
from nmt.data.placeholders import BYTES
from nmt.data.sources import Source
from nmt.data.text import SIDES, Block, Dress, Hashes, cut, dress_of, hashes_of
from nmt.data.units import Mask, Units
from nmt.data.worker_pool import WorkerPool
from nmt.files import naming

N_EXTREME = 3  # pairs that the report shows, of the shortest and of the longest
_N_RANDOM = 10  # kept pairs that the report shows at random


class KeptBlock(NamedTuple):
    """File of the kept pairs of a block, and their place in the source."""

    file: str
    source: int  # number of the source
    first: int  # number of its first line in the source
    n_kept: int
    start: int = -1  # number of its first kept pair among those of all blocks


class BlockContent(NamedTuple):
    """A filtered block.

    kept: mask of the pairs that are not dropped. lines: of these pairs, of each side. learnt: the lines with
    placeholders, as they are learnt from and encoded; `lines` itself if the recipe protects nothing.
    """

    kept: Mask
    lines: Sequence[list[str]]
    learnt: Sequence[list[str]]


def write_block(path: Path, block: BlockContent) -> None:
    """Write a block to a file of its own: the mask, and the lines, each after a line feed."""
    sides = block.lines if block.learnt is block.lines else (*block.lines, *block.learnt)
    text = "\n".join(["", *itertools.chain.from_iterable(sides)]).encode(**BYTES)
    with naming(path):
        path.write_bytes(block.kept.tobytes() + text)


def read_block(block: KeptBlock) -> BlockContent:
    """Read a block with kept pairs."""
    mask, _, text = Path(block.file).read_bytes().partition(b"\n")
    lines = text.decode(**BYTES).split("\n")
    sides = [lines[start : start + block.n_kept] for start in range(0, len(lines), block.n_kept)]
    return BlockContent(np.frombuffer(mask, bool), sides[:2], sides[-2:])


class MeasuredBlock(NamedTuple):
    """Measurements of a block."""

    block: KeptBlock
    n_pair: int  # read
    dress: list[Dress]  # of source and target
    extremes: list[list[tuple[int, int]]]  # the shortest and the longest kept pairs: sort key, number
    pairs: NDArray[Any]  # hashes of the kept pairs
    records: bytes  # of all pairs, for `find_shifts`
    leaks: Hits  # of the kept pairs, from 0


class HeldOut(NamedTuple):
    """Ascending hashes of the validation and test lines. known: as in `Leaks`. bags: of the lines of both sides."""

    known: Hashes
    bags: Hashes


def measured(block: KeptBlock, src: Units, trg: Units, content: BlockContent, held_out: HeldOut) -> MeasuredBlock:
    """Measure the pairs of a block. src, trg: all its lines, of which `content` has the filtered ones."""
    kept = content.kept
    n_char = (src.n_char + trg.n_char)[kept]
    order = np.argsort(n_char, kind="stable")
    pairs = np.rec.fromarrays([hashes_of(map(str.strip, lines)) for lines in content.lines], PAIR)
    candidates = kept & (np.isin(src.bags(), held_out.bags) | np.isin(trg.bags(), held_out.bags))
    keys = overlap_keys(Block(src.some(candidates)), Block(trg.some(candidates)))
    leaks = hits(held_out.known, keys, (np.cumsum(kept) - 1)[candidates])
    extremes = [
        [(sign * int(n_char[n]), int(n)) for n in numbers[:N_EXTREME]]
        for sign, numbers in ((1, order), (-1, order[::-1]))
    ]
    records = records_of(src, trg).tobytes()
    return MeasuredBlock(block, len(kept), list(map(dress_of, content.lines)), extremes, pairs, records, leaks)


class Texts(NamedTuple):
    """All lines of a validation or test set. sources: each of its sources, with the place of its lines among them."""

    src: list[str]
    trg: list[str]
    sources: list[tuple[Source, slice]]


class KeptPairs:
    """The training pairs that are kept. Add all blocks in order, then begin and finish the survey.

    blocks: those with kept pairs. n_kept: number of these pairs.
    """

    def __init__(self, folder: Path, training: Sequence[Source], held_out: Mapping[str, Texts]) -> None:
        """folder: for the files of blocks, and two more. held_out: the lines of validation and test sets."""
        self.folder, self.training, self.held_out = folder, training, held_out
        self.blocks: list[KeptBlock] = []
        self._pair_path, self._record_path = folder / "survey.pairs", folder / "survey.records"
        self._pairs, self._records = self._pair_path.open("wb"), self._record_path.open("wb")
        self._sources, self._n_records = list[Source](), list[int]()  # all sources, and the records of each
        self._dress = {"train": np.array([Dress(), Dress()])}  # by split, of its sides
        self.n_kept = 0
        self._extremes: dict[str, list[tuple[int, int]]] = {"shortest": [], "longest": []}  # as in `MeasuredBlock`
        keys, bags = {}, np.empty(0, np.uint64)
        for split, (src, trg, sources) in held_out.items():
            self._dress[split] = np.array([dress_of(src), dress_of(trg)])
            blocks = Block(src), Block(trg)
            keys[split] = overlap_keys(*blocks)
            bags = np.concatenate([bags, *(block.bags() for block in blocks)])
            for source, lines in sources:
                records = records_of(Units(src[lines]), Units(trg[lines]))
                self._sources.append(source)
                self._n_records.append(len(records))
                self._records.write(records.tobytes())
        self._sources += training
        self._n_records += [0] * len(training)
        self.leaks = Leaks(keys)
        self.held_out_hashes = HeldOut(self.leaks.known, np.unique(bags))

    def add(self, measurements: MeasuredBlock) -> None:
        """Add the next block."""
        if measurements.block.n_kept:
            self.blocks.append(measurements.block._replace(start=self.n_kept))
        self._n_records[measurements.block.source - len(self.training)] += measurements.n_pair  # training comes last
        self._dress["train"] += np.array(measurements.dress)
        for (kind, pairs), new_pairs in zip(self._extremes.items(), measurements.extremes, strict=True):
            numbered = ((key, self.n_kept + number) for key, number in new_pairs)
            self._extremes[kind] = sorted([*pairs, *numbered])[:N_EXTREME]
        self._pairs.write(measurements.pairs.tobytes())
        self._records.write(measurements.records)
        self.leaks.note(measurements.leaks, self.n_kept)
        self.n_kept += len(measurements.pairs)

    def begin_survey(self, workers: WorkerPool) -> None:
        """Start the analyses that need all pairs: misaligned lines and repetitions."""
        self._pairs.close()
        self._records.close()
        places = zip(itertools.accumulate(self._n_records, initial=0), self._n_records, strict=False)
        self._shifts = [workers.submit("shifts", self._record_path, *place) for place in places]
        self._duplicates = workers.submit("duplicates", self._pair_path)

    def finish_survey(self) -> dict[str, Any]:
        """Wait for the analyses, and return entries of the report."""
        alignment = []
        for source, future in zip(self._sources, self._shifts, strict=True):
            shifts = future.result()
            for stretch in shifts["stretches"]:  # of pairs, but the report numbers lines
                stretch["first"] += source.src.header
                stretch["last"] += source.src.header
            files = {"split": source.split, "src": source.src.name, "trg": source.trg.name}
            alignment.append({**files, "from": source.first_number, "trg_from": 1 + source.trg.header, **shifts})
        duplicates = self._duplicates.result()
        self._pair_path.unlink()
        self._record_path.unlink()
        samples = {
            "random": sorted(random.Random(0).sample(range(self.n_kept), min(_N_RANDOM, self.n_kept))),
            **{kind: [number for _, number in pairs] for kind, pairs in self._extremes.items()},
        }
        most = [{"times": times, **self._shown(number)} for number, times in duplicates["most"]]
        examples = []
        for split, (src, trg, sources) in self.held_out.items():
            for level, part, line, number in self.leaks.examples(split, N_SHOWN):
                source, lines = next((source, lines) for source, lines in sources if line < lines.stop)
                place = source.place(line - lines.start + source.first_number)
                train_pair = {f"train_{key}": value for key, value in self._shown(number).items()}
                examples.append({"level": level, "part": part, **shown(place, src[line], trg[line]), **train_pair})
        return {
            "source_in_valid_or_test": self.leaks.n_source,
            "leaks": {"rows": self.leaks.rows(), "examples": examples},
            "samples": {kind: list(map(self._shown, numbers)) for kind, numbers in samples.items()},
            "duplicates": duplicates | {"most": most},
            "alignment": alignment,
            "dress": {
                split: {side: Dress(*dress)._asdict() for side, dress in zip(SIDES, sides.tolist(), strict=True)}
                for split, sides in self._dress.items()
            },
        }

    def _shown(self, number: int) -> dict[str, str]:
        """A kept pair as the report shows it, by its number."""
        block = self.blocks[bisect.bisect_right(self.blocks, number, key=lambda block: block.start) - 1]
        content, n = read_block(block), number - block.start
        place = self.training[block.source].place(block.first + int(np.flatnonzero(content.kept)[n]))
        return shown(place, *(lines[n] for lines in content.lines))


def shown(place: str, src: str, trg: str) -> dict[str, str]:
    """A pair as the report shows it."""
    return {"place": place, "src": cut(src), "trg": cut(trg)}
